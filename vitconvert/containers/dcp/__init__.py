"""Directories of torch.distributed.checkpoint: `.metadata`, and a file of each process.

`.metadata` is a pickle, of which nothing is called: it becomes a description. A file of a process
(`__0_0.distcp`) is a row of archives as torch.save writes them, each with one tensor, or with a
part of one that several processes share.

Source: torch/distributed/checkpoint/metadata.py and filesystem.py, torch 2.1 to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.containers.container import Container, TensorInfo, row_major
from vitconvert.containers.dcp.metadata import Saved, read_metadata
from vitconvert.containers.dcp.parts import LocatedPart, check_size, located_parts
from vitconvert.containers.mapped_file import MappedFile
from vitconvert.containers.torch.pickle_reader import Storage, StoredTensor
from vitconvert.containers.torch.unwrapping import unwrap

if TYPE_CHECKING:
    import torch


def open_file(path: Path, _members: object, prefer: tuple[str, ...]) -> Container:
    """Read what `.metadata` says, and the header of each tensor in the files of the processes.

    Args:
        path: `.metadata`; the files of the processes lie beside it.
        prefer: Wrapper keys to try before the usual ones.

    Raises:
        CorruptFile: The files are truncated, or contradict `.metadata`.
        UnsafeFile: `.metadata` asks for classes that are not torch's own.
        SourceError: A file of a process is missing.
    """
    saved = read_metadata(path)
    found = unwrap(path, _tree(saved), prefer)
    names = {name: tensor.storage.key for name, tensor in found.tensors.items()}  # type: ignore[union-attr]
    parts = {name: located_parts(path, saved[key]) for name, key in names.items()}
    files = sorted({part.path for several in parts.values() for part in several})
    check_size(path, files, parts)
    stack = ExitStack()
    mapped = {file: MappedFile(file) for file in files}
    for each in mapped.values():
        stack.callback(each.close)
    infos = {name: saved[key].info for name, key in names.items()}
    manifest = {name: info for name, info in infos.items() if info}
    return Container(
        path=path,
        files=(path, *files),
        format="dcp",
        manifest=manifest,
        wrapper=found.wrapper,
        extras=found.extras,
        notes=found.notes,
        places={n: several[0].stretch for n, several in parts.items() if _is_whole(several)},
        reader=lambda name: _read(manifest[name], parts[name], mapped),
        release=stack.close,
    )


def _is_whole(parts: list[LocatedPart]) -> bool:
    return len(parts) == 1


def _tree(saved: Mapping[str, Saved]) -> dict[str, Any]:
    """The dict that was saved, with a description in place of each tensor."""
    tree: dict[str, Any] = {}
    for name, one in saved.items():
        *keys, last = one.keys
        place = tree
        for key in keys:
            inner = place.setdefault(key, {})
            place = inner if isinstance(inner, dict) else {}
        place[last] = _described(name, one.info) if one.info else "a value that was not read"
    return tree


def _described(name: str, info: TensorInfo) -> StoredTensor:
    storage = Storage(dtype=info.dtype, key=name, length=0)
    strides = row_major(info.shape)
    return StoredTensor(storage=storage, offset=0, shape=info.shape, stride=strides)


def _read(
    info: TensorInfo, parts: list[LocatedPart], mapped: Mapping[Path, MappedFile]
) -> torch.Tensor:
    import torch

    if _is_whole(parts):
        return parts[0].read(mapped[parts[0].path])
    whole = torch.empty(info.shape, dtype=getattr(torch, info.dtype))
    for part in parts:
        place = tuple(
            slice(begin, begin + size)
            for begin, size in zip(part.begin, part.info.shape, strict=True)
        )
        whole[place] = part.read(mapped[part.path])
    return whole
