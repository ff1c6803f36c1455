"""What other programs see in a file of weights: torch.load, numpy.load and safetensors."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers import Container
from vitconvert.errors import ParityFailed
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

_Array = tuple[str, tuple[int, ...], bytes]  # name, shape, elements in row-major order
_Read = Callable[[Path], Iterator[_Array]]


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
    readers: Mapping[str, tuple[str, str, _Read]] = {
        "torch": ("torch.load", "pt", partial(_torch_load, wrapper=table.wrapper)),
        "npz": ("numpy.load", "npz", _numpy_load),
        "safetensors": ("safetensors.torch.load_file", "safetensors", _safetensors_load),
    }
    name, suffix, read = readers[table.container]
    left = set(container.manifest)
    for path in sorted(directory.glob(f"*.{suffix}")):
        for key, shape, data in read(path):
            if key not in left or (shape, data) != _contents(container.read(key)):
                raise _differs(name, key)
            left.remove(key)
    if left:
        raise _differs(name, min(left))
    return name


def _torch_load(path: Path, wrapper: str) -> Iterator[_Array]:
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for key, tensor in (loaded[wrapper] if wrapper else loaded).items():
        yield key, *_contents(tensor)


def _safetensors_load(path: Path) -> Iterator[_Array]:
    from safetensors.torch import load_file

    for key, tensor in load_file(path).items():
        yield key, *_contents(tensor)


def _numpy_load(path: Path) -> Iterator[_Array]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            yield key, arrays[key].shape, arrays[key].tobytes()


def _contents(tensor: "Tensor") -> tuple[tuple[int, ...], bytes]:
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tuple(tensor.shape), flat.numpy().tobytes()


def _differs(reader: str, key: str) -> ParityFailed:
    return ParityFailed(
        f"{reader} reads other tensors in the output than were written.",
        evidence={"tensor": key},
        hint="nothing was written. Please report this with the checkpoint's name.",
    )
