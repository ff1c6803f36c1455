"""Parts of tensors in the files of processes: each an archive that torch.save wrote."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from vitconvert.containers.container import Stretch, TensorInfo
from vitconvert.containers.dcp.metadata import Part, Saved
from vitconvert.containers.mapped_file import MappedFile
from vitconvert.containers.shards import leads_out
from vitconvert.containers.torch.pickle_reader import OddTensor, StoredTensor, StrangePickle
from vitconvert.containers.torch.reading import CheckpointReader, refusal
from vitconvert.containers.torch.stored_tensors import LocatedTensor, located_tensors
from vitconvert.containers.zip_archive import (
    FREE_INFLATION,
    MOST_INFLATION,
    member_bytes,
    members_of,
)
from vitconvert.errors import CorruptFile, SourceError, UnsafeFile

if TYPE_CHECKING:
    import torch

_MOST_COMPARED = 64  # parts of a tensor that are compared with each other


class _Slice(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, begin: int, length: int) -> None:
        super().__init__()
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError("a place before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._length - self._at))
        self._file.seek(self._begin + self._at)
        read = self._file.readinto(memoryview(buffer)[:count])  # type: ignore[attr-defined]
        self._at += read
        return int(read)


@dataclass(frozen=True, kw_only=True)
class LocatedPart:
    """A part of a tensor, in its file."""

    path: Path
    begin: tuple[int, ...]
    tensor: LocatedTensor

    @property
    def info(self) -> TensorInfo:
        """Dtype and shape."""
        return self.tensor.info

    @property
    def stretch(self) -> Stretch:
        """Where it lies."""
        return self.tensor.stretch(self.path)

    def read(self, mapped: MappedFile) -> torch.Tensor:
        """A view on the mapped file."""
        return self.tensor.read(self.path, mapped)


def located_parts(metadata: Path, saved: Saved) -> list[LocatedPart]:
    """Find the parts of a tensor, which must make up all of it.

    Raises:
        CorruptFile: They do not, or a file is truncated.
        SourceError: A file is missing.
    """
    assert saved.info is not None
    _check_cover(metadata, saved)
    return [_located(metadata, saved.name, saved.info.dtype, part) for part in saved.parts]


def _check_cover(metadata: Path, saved: Saved) -> None:
    """Inside the whole, as many elements as it has, and none of them twice."""
    assert saved.info is not None
    whole, parts = saved.info.shape, saved.parts
    inside = all(
        len(part.begin) == len(part.shape) == len(whole)
        and all(b + n <= w for b, n, w in zip(part.begin, part.shape, whole, strict=True))
        for part in parts
    )
    counts = sum(prod(part.shape) for part in parts) == prod(whole)
    pairs = combinations(parts[:_MOST_COMPARED], 2)
    distinct = len({part.begin for part in parts}) == len(parts)
    if not (inside and counts and distinct) or any(_overlap(a, b) for a, b in pairs):
        raise CorruptFile(
            f"The parts of {saved.name[:80]!r} do not make up the whole tensor.",
            evidence={"file": metadata, "shape": list(whole), "parts": len(parts)},
        )


def _overlap(a: Part, b: Part) -> bool:
    axes = zip(a.begin, a.shape, b.begin, b.shape, strict=True)
    return all(max(i, j) < min(i + m, j + n) for i, m, j, n in axes)


def _located(metadata: Path, name: str, dtype: str, part: Part) -> LocatedPart:
    if leads_out(part.file):
        raise UnsafeFile(
            "The metadata name a file outside their own directory.",
            evidence={"file": metadata, "named": part.file[:200]},
        )
    path = metadata.parent / part.file
    try:
        file = path.open("rb")
    except OSError as error:
        raise SourceError(
            "A file of this distributed checkpoint is missing.",
            evidence={"file": path, "reason": error.strerror},
            hint="copy the whole directory.",
        ) from None
    with file:
        size = file.seek(0, io.SEEK_END)
        if part.offset < 0 or part.length < 0 or part.offset + part.length > size:
            raise CorruptFile(
                f"{name[:80]!r} lies beyond the end of its file.",
                evidence={"file": path, "found": f"{size:,} bytes"},
                hint="copy the directory again.",
            )
        tensor = _tensor_in(path, name, file, part)
    if tensor.info != TensorInfo(dtype=dtype, shape=part.shape):
        raise CorruptFile(
            f"{name[:80]!r} is another tensor in its file than the metadata say.",
            evidence={"file": path, "found": f"{tensor.info.dtype} {list(tensor.info.shape)}"},
        )
    return LocatedPart(path=path, begin=part.begin, tensor=tensor)


def _tensor_in(path: Path, name: str, file: BinaryIO, part: Part) -> LocatedTensor:
    """The tensor of an archive; places count from the beginning of the file."""
    archive = cast(BinaryIO, io.BufferedReader(_Slice(file, part.offset, part.length)))
    members = {
        inside: replace(member, offset=member.offset + part.offset)
        for inside, member in members_of(path, archive).items()
    }
    folder = next(iter(members), "").partition("/")[0]
    pickled = members.get(f"{folder}/data.pkl")
    if pickled is None or not all(member.stored for member in members.values()):
        raise CorruptFile(
            f"{name[:80]!r} lies in an archive that torch.save did not write.",
            evidence={"file": path, "at byte": part.offset},
        )
    data = member_bytes(path, pickled)
    try:
        value = CheckpointReader().read(data)
    except StrangePickle as error:
        raise refusal(path, data, error) from error
    if not isinstance(value, StoredTensor | OddTensor):
        raise CorruptFile(f"{name[:80]!r} is no tensor in its file.", evidence={"file": path})
    begin = f"{folder}/data/"
    storages = {n.removeprefix(begin): m for n, m in members.items() if n.startswith(begin)}
    return located_tensors(path, {name: value}, storages)[name]


def check_size(
    metadata: Path, files: Iterable[Path], parts: Mapping[str, list[LocatedPart]]
) -> None:
    """Refuse tensors that are far larger than the files in which they are said to lie.

    Raises:
        UnsafeFile: So they are.
    """
    limit = FREE_INFLATION + MOST_INFLATION * sum(file.stat().st_size for file in files)
    asked = sum(part.tensor.memory for several in parts.values() for part in several)
    if asked > limit:
        raise UnsafeFile(
            "The tensors are far larger than the files, of which they are views.",
            evidence={"file": metadata, "tensors": f"{asked:,} bytes", "limit": f"{limit:,} bytes"},
            meaning="Files like these are made to exhaust memory, or the disk.",
        )
