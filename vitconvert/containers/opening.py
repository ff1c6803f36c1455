"""From a path to an open container."""

from functools import partial
from pathlib import Path

from vitconvert.containers.container import Container
from vitconvert.containers.recognition import recognise, recognise_archive
from vitconvert.containers.safetensors_file import open_safetensors
from vitconvert.containers.shards import open_shards
from vitconvert.errors import CorruptFile


def open_container(path: Path, *, prefer: tuple[str, ...] = ()) -> Container:
    """Open a checkpoint and read its header, whatever its suffix says.

    safetensors, torch checkpoints, TorchScript archives and npz are read, and the index of a
    sharded checkpoint. Nothing in the file is executed, and no more memory is taken than the file
    justifies. Only torch checkpoints out of the ordinary import torch here: legacy ones, say.

    Args:
        path: The file.
        prefer: Wrapper keys of a torch checkpoint to try before the usual ones; for instance
            `("state_dict",)` for the plain weights where averaged ones lie beside them.

    Raises:
        SourceError: There is no file to read at this path.
        CorruptFile: The file is cut short, contradicts itself or is something else.
        UnsafeFile: Reading it would run code or exhaust memory.
    """
    if recognise(path) == "index":
        return open_shards(path, partial(_open_file, prefer=prefer))
    return _open_file(path, prefer=prefer)


def _open_file(path: Path, *, prefer: tuple[str, ...]) -> Container:
    # Imports are late: those of zip archives take a quarter of the time of all others.
    match recognise(path):
        case "safetensors":
            return open_safetensors(path)
        case "torch legacy":
            from vitconvert.containers.torch_file import open_torch_legacy

            return open_torch_legacy(path, prefer=prefer)
        case "zip":
            return _open_archive(path, prefer=prefer)
        case "index":
            raise CorruptFile("An index names another index.", evidence={"file": path})


def _open_archive(path: Path, *, prefer: tuple[str, ...]) -> Container:
    from vitconvert.containers.zip_directory import zip_members

    members = zip_members(path)
    match recognise_archive(path, members):
        case "npz":
            from vitconvert.containers.npz_file import open_npz

            return open_npz(path, members)
        case "torchscript":
            from vitconvert.containers.torchscript_file import open_torchscript

            return open_torchscript(path, members)
        case "torch":
            from vitconvert.containers.torch_zip import open_torch_zip

            return open_torch_zip(path, members, prefer=prefer)
