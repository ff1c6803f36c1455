"""Checkpoints of torch: read in every form that torch.save has written, written in its newest.

pickle_reader    the opcodes of pickles, read without calling anything
stored_tensors   where the tensors that a pickle describes lie in a file
unwrapping       the named tensors among all that a checkpoint holds
reading          what the pickle of a checkpoint may name, and what it describes
checkpoint       the files themselves: zip archives since torch 1.6, and as they were before
rescue           whole objects that were saved, of which the tensors are read as data
pickled_arrays   plain pickles of NumPy's arrays, a format of their own
torchscript      programs with weights, a format of their own
writing          what torch.save would write, written without torch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import UnsafeFile, VitConvertError
from vitconvert.formats.torch.checkpoint import open_archive, open_legacy

if TYPE_CHECKING:
    from vitconvert.formats.container import Container
    from vitconvert.formats.content import Content
    from vitconvert.formats.format_modules import Array, Surroundings
    from vitconvert.formats.zip_archive import Member

READER = "torch.load"
EXAMPLE = """\
import torch

state_dict = torch.load("model.pt", weights_only=True)"""


def open_file(
    path: Path, members: Mapping[str, Member], prefer: tuple[str, ...], rescue: bool
) -> Container:
    """Read a checkpoint; where it holds whole objects, `rescue` reads their tensors as data."""

    def opened(*, rescue: bool) -> Container:
        if members:
            return open_archive(path, members, prefer, rescue=rescue)
        return open_legacy(path, prefer, rescue=rescue)

    try:
        return opened(rescue=False)
    except UnsafeFile as error:
        if rescue:
            return opened(rescue=True)
        with suppress(VitConvertError), opened(rescue=True) as rescued:
            error.rescuable = True
            error.hint = (
                "--rescue (in Python, rescue=True) takes its tensors as data "
                f"({len(rescued.manifest)} of them) and runs nothing; what the classes do with "
                "them stays unknown. Where you trust the file, the program that wrote it can save "
                "them alone: torch.save(model.state_dict(), path)."
            )
        raise


def write_file(
    path: Path, contents: Mapping[str, Content], surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a checkpoint with a wrapper and what stands beside it, as `write_torch` does."""
    from vitconvert.formats.torch.writing import write_torch

    wrapper, extras = surroundings.wrapper, surroundings.extras
    return write_torch(path, contents, wrapper=wrapper, extras=extras, read_soon=read_soon)


def read_plainly(path: Path, wrapper: str) -> Iterator[Array]:
    """Read a checkpoint with torch."""
    import torch

    from vitconvert.formats.content import bytes_of

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for name, tensor in (loaded[wrapper] if wrapper else loaded).items():
        yield name, tuple(tensor.shape), bytes_of(tensor).tobytes()
