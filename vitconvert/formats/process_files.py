"""Safetensors of several processes, in each of which is a part of every tensor.

torch.distributed.checkpoint writes them with its HuggingFaceStorageWriter: what the second process
has is shard-00002-model-00001-of-00001.safetensors. Its metadata say where each of its tensors
begins in the whole one; the shape of that is nowhere, so it is what the parts make.

Source: torch/distributed/checkpoint/hf_storage.py and _hf_utils.py, torch 2.8 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, SourceError
from vitconvert.file_formats import file_of_process
from vitconvert.formats.container import Container, TensorInfo
from vitconvert.formats.grids import Extent, fill
from vitconvert.formats.json_object import parse_object
from vitconvert.formats.mapped_file import checked_shape

if TYPE_CHECKING:
    import torch

PARTS = "DCP_SHARDING_INFO"
"""The key of the metadata that say where tensors begin."""


@dataclass(frozen=True, kw_only=True)
class _Whole:
    """A tensor, and the file that each part of it is in, by where the part begins."""

    info: TensorInfo
    parts: Mapping[Extent, Container]


def open_processes(first: Container, open_one: Callable[[Path], Container]) -> Container:
    """Open the files of all processes that lie beside one of them.

    Args:
        first: The one.
        open_one: Opens a file.

    Raises:
        SourceError: Files are missing.
        CorruptFile: They contradict each other.
    """
    place, own = first.path.parent, first.path.name
    with ExitStack() as stack:
        files = [stack.enter_context(first)]
        if file_of_process(own):
            names = sorted(n.name for n in place.iterdir() if file_of_process(n.name))
            _check_numbers(place, names)
            files += [stack.enter_context(open_one(place / name)) for name in names if name != own]
        wholes = _wholes(files)
        close = stack.pop_all().close
    some = any(len(whole.parts) > 1 for whole in wholes.values())
    note = f"tensors were put together from the parts in {len(files)} files"
    return Container(
        path=first.path,
        files=tuple(file.path for file in files),
        format=first.format,
        manifest={name: whole.info for name, whole in wholes.items()},
        metadata={key: text for key, text in first.metadata.items() if key != PARTS},
        notes=(f"{note}, none of which says how many there were",) if some else (),
        reader=lambda name: _read(name, wholes[name]),
        release=close,
    )


def _check_numbers(place: Path, names: list[str]) -> None:
    """Those of processes count from one, and those of files from one to what each name says."""
    found = [numbers for numbers in map(file_of_process, names) if numbers]
    processes = {process for process, _, _ in found}
    files = {number for _, number, _ in found}
    counts = {count for _, _, count in found}
    if not _count_up(processes) or not _count_up(files) or counts != {len(files)}:
        raise SourceError(
            "Files of some processes are missing.",
            evidence={"directory": place},
            details=[f"found {name}" for name in names[:10]],
            hint="copy or download all of them into the same directory.",
        )


def _count_up(numbers: set[int]) -> bool:
    return sorted(numbers) == [*range(1, 1 + len(numbers))]


def _wholes(files: list[Container]) -> dict[str, _Whole]:
    found: dict[str, list[tuple[Extent, Container]]] = {}
    for file in files:
        for name, begin in _beginnings(file).items():
            found.setdefault(name, []).append((begin, file))
    return {name: _whole(files[0].path, name, parts) for name, parts in found.items()}


def _beginnings(file: Container) -> dict[str, Extent]:
    """Where each tensor of a file begins in the whole one."""
    said = parse_object(
        file.path, file.metadata.get(PARTS, "{}").encode(), what=f"{PARTS} in the metadata"
    )
    found = {}
    for name, info in file.manifest.items():
        entry = said.get(name)
        offsets = entry.get("saved_offsets") if isinstance(entry, dict) else None
        found[name] = checked_shape(file.path, name, offsets)
        if len(found[name]) != len(info.shape):
            raise _strange(file.path, f"{name[:80]!r} begins at {len(found[name])} axes")
    return found


def _whole(path: Path, name: str, parts: list[tuple[Extent, Container]]) -> _Whole:
    infos = [file.manifest[name] for _, file in parts]
    if len({(info.dtype, len(info.shape)) for info in infos}) > 1:
        raise _strange(path, f"parts of {name[:80]!r} have different types or axes")
    extents = [(begin, info.shape) for (begin, _), info in zip(parts, infos, strict=True)]
    ends = [tuple(map(add, begin, sizes)) for begin, sizes in extents]
    shape = checked_shape(path, name, tuple(map(max, *ends)) if len(ends) > 1 else ends[0])
    # Processes that had no part of a tensor wrote an empty one; several may stand in one place.
    filled = [(begin, sizes) for begin, sizes in extents if 0 not in sizes]
    if len(dict(filled)) < len(filled) or not fill(shape, dict(filled)):
        raise _strange(path, f"the parts of {name[:80]!r} overlap or leave gaps")
    return _Whole(
        info=TensorInfo(dtype=infos[0].dtype, shape=shape),
        parts={begin: file for begin, file in parts if 0 not in file.manifest[name].shape},
    )


def _read(name: str, whole: _Whole) -> torch.Tensor:
    import torch

    if len(whole.parts) == 1:
        return next(iter(whole.parts.values())).read(name)
    made = torch.empty(whole.info.shape, dtype=getattr(torch, whole.info.dtype))
    for begin, file in whole.parts.items():
        ends = map(add, begin, file.manifest[name].shape)
        made[tuple(map(slice, begin, ends))] = file.read(name)
    return made


def _strange(path: Path, problem: str) -> CorruptFile:
    return CorruptFile(
        "The files of several processes contradict each other.",
        evidence={"file": path, "problem": problem},
        hint="copy or download all of them from one save.",
    )
