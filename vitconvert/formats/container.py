"""What every checkpoint file becomes: a manifest of named tensors that are read one by one.

Most formats have their tensors in a file that is mapped into memory, and view it without a copy.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Self

from vitconvert.errors import CorruptFile

if TYPE_CHECKING:
    import torch

ITEM_SIZE: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
}
"""Bytes per element of the dtypes that checkpoints hold, by torch's names."""

FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e5m2")
"""Those of them in which nothing is computed."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """The dtype of a tensor, by torch's name, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return prod(self.shape) * ITEM_SIZE[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Where a tensor lies in a file: its first byte, and its strides in elements."""

    path: Path
    offset: int
    strides: tuple[int, ...]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, kw_only=True)
class Container:
    """An open checkpoint: everything that its header states, and its tensors on demand.

    Attributes:
        path: The file that was opened.
        files: Every file that was read: `path`, and the shards that an index names.
        format: Name of the file's format, one of `vitconvert/file_formats.py`.
        manifest: Name, dtype and shape of each tensor, in the order of the file.
        metadata: What the header says besides: the `__metadata__` of safetensors, or GGUF's values.
        wrapper: Keys that were unwrapped to reach the tensors, such as `("model",)`.
        extras: What lay beside the tensors, by its full path in the file: JSON-like values as
            they are, anything else as the name of its type.
        config: What the file itself states about the model, as a `config.json` would.
        places: Where tensors lie whose bytes stand in a file as they are: neither compressed nor
            byte-swapped.
        notes: What a user should know of how the file was read.
    """

    path: Path
    files: tuple[Path, ...]
    format: str
    manifest: Mapping[str, TensorInfo]
    metadata: Mapping[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    extras: Mapping[str, object] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Stretch] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reader: Callable[[str], torch.Tensor] = field(repr=False)
    release: Callable[[], None] = field(repr=False)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor, on the CPU and in the dtype of the file.

        It is a view on the mapped file where the format allows it. The mapping is private:
        writing to the tensor does not touch the file.

        Raises:
            KeyError: The manifest has no such name.
            CorruptFile: The bytes of this tensor are damaged.
        """
        return self.reader(name)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Some of the tensors under other names, and only the files that hold them.

        Args:
            names: The new name of each -> its name here.
        """
        needed = set(self.files)
        if all(old in self.places for old in names.values()):
            needed = {self.path, *(self.places[old].path for old in names.values())}
        return replace(
            self,
            files=tuple(file for file in self.files if file in needed),
            manifest={new: self.manifest[old] for new, old in names.items()},
            places={new: self.places[old] for new, old in names.items() if old in self.places},
            reader=lambda new: self.reader(names[new]),
        )

    def close(self) -> None:
        """Release the file. Tensors already read stay valid; no more can be read."""
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MappedFile:
    """A file that is mapped into memory, copy on write, when the first of its tensors is read.

    Until then the file is only open: whoever reads its header needs no memory of its size. It stays
    the file whose header was read, whatever is renamed to its path meanwhile.

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
        self._bytes: mmap.mmap | None = None
        # Not a file of Python: one that nobody closes warns about itself.
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self._size = self._checked_size(size)

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
        self._closing()

    def _mapping(self) -> mmap.mmap:
        if not self._closing.alive:
            raise ValueError("read from a closed container")
        self._checked_size(self._size)
        if self._bytes is None:
            self._bytes = _mapped(self._descriptor)
        return self._bytes

    def _checked_size(self, expected: int) -> int:
        if (found := os.fstat(self._descriptor).st_size) < expected:
            raise _cut(self.path, expected, found)
        return found


def _mapped(descriptor: int) -> mmap.mmap:
    """A whole file, private and writable.

    torch warns about buffers that are read-only, and a user who writes to a tensor must not change
    the file. Linux counts all of such a mapping as memory that may be needed, and refuses one that
    is larger than what there is. MAP_NORESERVE says that pages are rarely written (mmap(2)), so a
    model is converted tensor by tensor that does not fit.
    """
    if sys.platform == "linux":
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 names it
        return mmap.mmap(descriptor, 0, flags=flags)
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)


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


def mapped_container(
    path: Path,
    form: str,
    manifest: Mapping[str, TensorInfo],
    begins: Mapping[str, int],
    *,
    size: int = 1,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    read: Callable[[MappedFile, str], torch.Tensor] | None = None,
) -> Container:
    """The container of one file, which is mapped.

    Args:
        path: The file.
        form: The name of its format.
        manifest: Its tensors.
        begins: First bytes of the tensors that lie in the file as they are.
        size: That the file had when its header was read.
        strides: Of those that are not row-major.
        read: Reads one tensor; without it, each is a view on the file.

    Raises:
        CorruptFile: The file is shorter than `size` now.
    """
    mapped = MappedFile(path, size)
    strides = strides or {}

    def reader(name: str) -> torch.Tensor:
        return read(mapped, name) if read else mapped.tensor(begins[name], manifest[name])

    return Container(
        path=path,
        files=(path,),
        format=form,
        manifest=manifest,
        places={
            name: Stretch(
                path=path,
                offset=begin,
                strides=strides[name] if name in strides else row_major(manifest[name].shape),
            )
            for name, begin in begins.items()
        },
        reader=reader,
        release=mapped.close,
    )


def joined(parts: Sequence[Container]) -> Container:
    """Several files as one container, with the path and the wrapper of the first.

    No two of them have a tensor of the same name.
    """
    holders = {name: part for part in parts for name in part.manifest}

    def release() -> None:
        for part in parts:
            part.close()

    return replace(
        parts[0],
        files=tuple(file for part in parts for file in part.files),
        manifest={name: part.manifest[name] for name, part in holders.items()},
        metadata={key: text for part in parts for key, text in part.metadata.items()},
        extras={key: value for part in parts for key, value in part.extras.items()},
        places={name: place for part in parts for name, place in part.places.items()},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        reader=lambda name: holders[name].read(name),
        release=release,
    )


def weights_branch(
    places: Collection[Sequence[str]], order: Sequence[str], most: int
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The keys around the weights of a tree, and how many values lie under each key beside them.

    Args:
        places: The keys that lead to each value.
        order: Keys of wrappers, best first.
        most: How many wrappers may lie in one another.
    """
    wrapper: tuple[str, ...] = ()
    beside = Counter[str]()
    level = list(places)
    while len(wrapper) < most:
        inner = {keys[0] for keys in level if len(keys) > 1}
        key = next((key for key in order if key in inner), None)
        if key is None:
            break
        beside.update("/".join([*wrapper, keys[0]]) for keys in level if keys[0] != key)
        level = [keys[1:] for keys in level if keys[0] == key and len(keys) > 1]
        wrapper = (*wrapper, key)
    return wrapper, dict(beside)
