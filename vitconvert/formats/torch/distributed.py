"""Directories that torch.distributed.checkpoint writes: `.metadata`, and a file of each process.

A file of a process (`__0_0.distcp`) is torch archives one after another, each with one chunk of a
tensor or with another value. What the directory holds is read as torch's own `dcp_to_torch` would
gather it. An archive is opened when its tensor is asked for; a tensor of one chunk is a view on the
file, one of several is put together.

Source: torch/distributed/checkpoint/filesystem.py, torch 2.0 to 2.15.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.errors import CorruptFile, SourceError, UnsafeFile
from vitconvert.formats.container import ITEM_SIZE, Container, TensorInfo, row_major
from vitconvert.formats.mapped_file import MappedFile, checked_shape
from vitconvert.formats.shards import is_file, leads_out
from vitconvert.formats.torch.checkpoint import read_record
from vitconvert.formats.torch.distributed_metadata import (
    Chunk,
    Metadata,
    Record,
    Sharded,
    read_metadata,
)
from vitconvert.formats.torch.pickle_reader import OddTensor, Storage, StoredTensor
from vitconvert.formats.torch.stored_tensors import located_tensors
from vitconvert.formats.torch.unwrapping import stand_in, unwrap

if TYPE_CHECKING:
    import torch

_LONGEST_VALUE = 2**16  # bytes of an archive that is opened for a value beside the tensors
_DEEPEST = 8  # lists and mappings in one another
_MOST_VALUES = 256  # of those; an archive takes a millisecond


def open_file(path: Path, _members: object, prefer: tuple[str, ...]) -> Container:
    """Read the metadata of a distributed checkpoint, and map the files that it names.

    Args:
        path: Of `.metadata`.
        prefer: Wrapper keys to try before the usual ones.

    Raises:
        CorruptFile: The metadata is damaged, or contradicts the files.
        UnsafeFile: It asks for classes, or names files outside its directory.
        SourceError: Files are missing.
        MissingFact: It holds several models.
    """
    metadata = read_metadata(path)
    sizes = _sizes(path, metadata)
    _check_records(path, metadata, sizes)
    found = unwrap(path, _nested(path, metadata), prefer)
    tensors = {name: metadata.tensors[_key(tensor)] for name, tensor in found.tensors.items()}
    manifest = {name: _checked(path, name, tensor) for name, tensor in tensors.items()}
    files = {file: MappedFile(path.parent / file, size) for file, size in sizes.items()}
    return Container(
        path=path,
        files=(path, *(path.parent / file for file in sizes)),
        format="dcp",
        manifest=manifest,
        wrapper=found.wrapper,
        extras=found.extras,
        notes=found.notes,
        reader=lambda name: _read(path.parent, files, name, tensors[name]),
        release=lambda: _close(files.values()),
    )


def _close(files: Iterable[MappedFile]) -> None:
    for mapped in files:
        mapped.close()


def _key(tensor: StoredTensor | OddTensor) -> str:
    assert isinstance(tensor, StoredTensor)  # no others are put among the values
    return tensor.storage.key


def _records(metadata: Metadata) -> list[Record]:
    chunks = (chunk for tensor in metadata.tensors.values() for chunk in tensor.chunks)
    return [*(chunk.record for chunk in chunks), *metadata.others.values()]


def _sizes(path: Path, metadata: Metadata) -> dict[str, int]:
    """The files that hold records, and their sizes."""
    names = sorted({record.file for record in _records(metadata)})
    if out := [name for name in names if leads_out(name)]:
        raise UnsafeFile(
            "The metadata names a file outside its own directory.",
            evidence={"file": path, "names": out[0][:160]},
        )
    if missing := [name for name in names if not is_file(path.parent / name)]:
        raise SourceError(
            f"{len(missing)} of {len(names)} files of this distributed checkpoint are missing.",
            evidence={"directory": path.parent},
            details=[name[:255] for name in missing[:10]],
            hint="copy or download them into the same directory.",
        )
    return {name: (path.parent / name).stat().st_size for name in names}


def _check_records(path: Path, metadata: Metadata, sizes: Mapping[str, int]) -> None:
    """Each record must lie inside its file and overlap no other."""
    of_file = defaultdict[str, list[Record]](list)
    for record in _records(metadata):
        of_file[record.file].append(record)
    for file, records in of_file.items():
        position = 0
        for record in sorted(records, key=lambda record: record.offset):
            if record.offset < position:
                raise CorruptFile(
                    "Two records of a distributed checkpoint overlap.",
                    evidence={"file": path.parent / file, "at": f"byte {record.offset:,}"},
                )
            position = record.offset + record.length
        if position > sizes[file]:
            raise CorruptFile(
                "The file is truncated.",
                evidence={
                    "file": path.parent / file,
                    "expected": f"at least {position:,} bytes",
                    "found": f"{sizes[file]:,} bytes",
                },
                hint="copy or download it again.",
            )


def _nested(path: Path, metadata: Metadata) -> dict[str, Any]:
    """The dictionary that was saved, each tensor described by its name and shape."""
    top: dict[str, Any] = {}
    values: dict[str, object] = {
        name: StoredTensor(
            storage=Storage(dtype=tensor.dtype, key=name, length=prod(tensor.shape)),
            offset=0,
            shape=tensor.shape,
            stride=row_major(tensor.shape),
        )
        for name, tensor in metadata.tensors.items()
    }
    for number, (name, record) in enumerate(metadata.others.items()):
        known = number < _MOST_VALUES and record.length <= _LONGEST_VALUE
        values[name] = _value(path.parent, record) if known else stand_in("value")
    taken = set[tuple[str, ...]]()
    for name, value in values.items():
        *outer, last = keys = metadata.keys[name]
        ends = {keys[:count] for count in range(1, len(keys))}
        level = top
        for key in outer if ends.isdisjoint(taken) else ():
            level = level.setdefault(key, {})
        if last in level or not ends.isdisjoint(taken):
            raise CorruptFile(
                f"{name[:80]!r} stands where another value stands.", evidence={"file": path}
            )
        level[last] = value
        taken.add(keys)
    return top


def _value(directory: Path, record: Record) -> object:
    """A value beside the tensors; of one that holds tensors, or an unknown class, only a kind."""
    try:
        found = read_record(directory / record.file, record.stretch)
    except UnsafeFile:
        return stand_in("object")
    return found.value if _is_plain(found.value) else stand_in(type(found.value).__name__)


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return depth < _DEEPEST and all(_is_plain(inner, depth + 1) for inner in value)
    return value is None or isinstance(value, bool | int | float | str)


def _checked(path: Path, name: str, tensor: Sharded) -> TensorInfo:
    """What a manifest says of a tensor, none of which is larger than its records."""
    if tensor.dtype not in ITEM_SIZE:
        raise CorruptFile(
            f"{name!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": tensor.dtype, "known": " ".join(ITEM_SIZE)},
        )
    for chunk in tensor.chunks:
        needed = prod(chunk.sizes) * ITEM_SIZE[tensor.dtype]
        if needed > chunk.record.length:
            raise CorruptFile(
                f"A chunk of {name!r} does not have the size that its shape says.",
                evidence={
                    "file": path,
                    "shape": list(chunk.sizes),
                    "needs": f"{needed:,} bytes",
                    "found": f"{chunk.record.length:,} bytes",
                },
            )
    return TensorInfo(dtype=tensor.dtype, shape=checked_shape(path, name, tensor.shape))


def _read(
    directory: Path, files: Mapping[str, MappedFile], name: str, tensor: Sharded
) -> torch.Tensor:
    import torch

    if len(tensor.chunks) == 1:
        return _chunk(directory, files, name, tensor, tensor.chunks[0])
    whole = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
    for chunk in tensor.chunks:
        part = _chunk(directory, files, name, tensor, chunk)
        ends = map(sum, zip(chunk.offsets, chunk.sizes, strict=True))
        whole[tuple(map(slice, chunk.offsets, ends))] = part
    return whole


def _chunk(
    directory: Path, files: Mapping[str, MappedFile], name: str, tensor: Sharded, chunk: Chunk
) -> torch.Tensor:
    """The tensor in the archive of a chunk, which must be the one that the metadata describe.

    Raises:
        CorruptFile: It is another, or is damaged.
        UnsafeFile: Its pickle asks for classes that are not plain data.
    """
    path = directory / chunk.record.file
    found = read_record(path, chunk.record.stretch)
    if not isinstance(found.value, StoredTensor | OddTensor):
        fact = f"The record of {name!r} holds no tensor."
    else:
        located = located_tensors(path, {name: found.value}, found.storages)[name]
        if located.info == TensorInfo(dtype=tensor.dtype, shape=chunk.sizes):
            return located.read(path, files[chunk.record.file])
        fact = f"The record of {name!r} holds another tensor than the metadata describe."
    raise CorruptFile(fact, evidence={"file": path, "at": f"byte {chunk.record.offset:,}"})
