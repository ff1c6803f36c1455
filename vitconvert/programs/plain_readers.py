"""What other programs see in a file of weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers import Container, bytes_of, written_module
from vitconvert.errors import ParityFailed
from vitconvert.formats import written_formats
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor


def open_plainly(directory: Path, table: Table, container: Container) -> str:
    """Read an output as its users do, and compare every tensor with what vitconvert reads.

    Args:
        directory: The output.
        table: The dialect that it was written in.
        container: The output as vitconvert reads it.

    Returns:
        The name of the function that read it.

    Raises:
        ParityFailed: It finds other names, shapes or bytes.
    """
    form, module = written_formats()[table.container], written_module(table.container)
    left = set(container.manifest)
    for path in sorted(directory.glob(f"*{Path(form.output).suffix}")):
        for name, shape, data in module.read_plainly(path, table.wrapper):
            if name not in left or (shape, data) != _contents(container.read(name)):
                raise _differs(module.READER, name)
            left.remove(name)
    if left:
        raise _differs(module.READER, min(left))
    return module.READER


def _contents(tensor: "Tensor") -> tuple[tuple[int, ...], bytes]:
    return tuple(tensor.shape), bytes_of(tensor).tobytes()


def _differs(reader: str, key: str) -> ParityFailed:
    return ParityFailed(
        f"{reader} reads other tensors in the output than were written.",
        evidence={"tensor": key},
        hint="nothing was written. Please report this with the checkpoint's name.",
    )
