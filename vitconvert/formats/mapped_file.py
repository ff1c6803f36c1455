"""A file mapped into memory, and tensors that view it without a copy."""

from __future__ import annotations

import mmap
import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import ITEM_SIZE, TensorInfo

if TYPE_CHECKING:
    import torch

# No weight comes near either limit; beyond them torch and numpy fail with their own messages.
_MOST_AXES = 32
_MOST_ELEMENTS = 2**63 - 1


class MappedFile:
    """A file mapped into memory, copy on write.

    A file that another program cuts is noticed when the next tensor of it is asked for. But what
    looks at a page that was mapped before and is gone now is ended by the system (SIGBUS).

    Args:
        path: The file.
        size: That it had when its header was read.

    Raises:
        CorruptFile: It is shorter now.
    """

    def __init__(self, path: Path, size: int = 1) -> None:
        self.path = path
        with path.open("rb") as file:
            if (found := os.fstat(file.fileno()).st_size) < size:
                raise _cut(path, size, found)
            # Private and writable: torch warns about buffers that are read-only, and a user who
            # writes to a tensor must not change the file.
            self._bytes: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __len__(self) -> int:
        return len(self._mapping())

    def bytes_at(self, offset: int, size: int) -> bytes:
        """A copy of a stretch of the file; shorter where the file ends."""
        return self._mapping()[offset : offset + size]

    def tensor(self, offset: int, info: TensorInfo) -> torch.Tensor:
        """The tensor at `offset`: a view on the file, or a copy where it is not aligned."""
        if offset % ITEM_SIZE[info.dtype]:
            plain = TensorInfo(dtype="uint8", shape=(info.nbytes,))
            copy = tensor_from_buffer(self._mapping(), offset, plain).clone()
            return tensor_from_buffer(copy.numpy().data, 0, info)
        return tensor_from_buffer(self._mapping(), offset, info)

    def close(self) -> None:
        """Release the mapping, which lives on until the last tensor that views it is gone.

        Not `mmap.close`: torch.frombuffer keeps the mapping alive, but not its memory exported,
        so the mapping would close and the tensors would crash the process (torch 2.15).
        """
        self._bytes = None

    def _mapping(self) -> mmap.mmap:
        if self._bytes is None:
            raise ValueError("read from a closed container")
        if (size := self._bytes.size()) < len(self._bytes):  # the file's now, and when mapped
            raise _cut(self.path, len(self._bytes), size)
        return self._bytes


def _cut(path: Path, expected: int, found: int) -> CorruptFile:
    return CorruptFile(
        "The file became shorter while it was read.",
        evidence={"file": path, "expected": f"{expected:,} bytes", "found": f"{found:,} bytes"},
    )


def tensor_from_buffer(
    buffer: bytearray | memoryview | mmap.mmap, offset: int, info: TensorInfo
) -> torch.Tensor:
    """A tensor on little-endian, row-major bytes; shares their memory."""
    import torch

    dtype: torch.dtype = getattr(torch, info.dtype)
    count = prod(info.shape)
    if count == 0:
        return torch.empty(info.shape, dtype=dtype)
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    return flat.view(info.shape)


def checked_shape(path: Path, name: str, shape: object) -> tuple[int, ...]:
    """The shape that a header declares, if memory could hold one like it.

    Raises:
        CorruptFile: It is not a list of axis lengths, or absurdly large.
    """
    if not isinstance(shape, list | tuple) or not all(type(axis) is int for axis in shape):
        fact = f"{name!r} has a shape that is not a list of whole numbers."
    elif any(axis < 0 for axis in shape):
        fact = f"{name!r} has an axis of negative length."
    elif len(shape) > _MOST_AXES or prod(max(axis, 1) for axis in shape) > _MOST_ELEMENTS:
        fact = f"{name!r} has a shape that no memory can hold."
    else:
        return tuple(shape)
    raise CorruptFile(fact, evidence={"file": path, "shape": shown(shape)})


def shown(value: object) -> str:
    """A value of a hostile header, short. What nests, or has a million digits, is named only."""
    parts = list(value[:_MOST_AXES]) if isinstance(value, list | tuple) else [value]
    if not all(_is_short(part) for part in parts):
        return f"a {type(value).__name__}"
    return str(parts if isinstance(value, list | tuple) else value)[:80]


def _is_short(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**64
    return value is None or isinstance(value, str | float)
