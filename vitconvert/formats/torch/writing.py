"""Checkpoints as torch.save writes a plain dict of tensors, written without torch.

The bytes are those of torch.save (torch 2.15), down to the padding, but for half of the
serialization id, which torch hashes as its C++ compiler does. So torch maps such a file like its
own, and finds the storages by computing, where it is asked to.

Source: torch/serialization.py (`_save`), caffe2/serialize/inline_container.cc
(`PyTorchStreamWriter`) and miniz 3.0.2 (`mz_zip_writer_add_mem_ex_v2`).
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from vitconvert.formats.container import ITEM_SIZE, TensorInfo, row_major
from vitconvert.formats.content import Content, Room, checked_contents
from vitconvert.formats.format_modules import ALONE, Surroundings
from vitconvert.formats.torch.pickle_reader import (
    STORAGES,
    TENSOR,
    UNTYPED_STORAGE,
    UNTYPED_TENSOR,
)
from vitconvert.whole import SequentialWriter, whole_file

if TYPE_CHECKING:
    import torch

_FOLDER = "archive/"  # torch's name where it does not write to a path
_ALIGNMENT = 64
_MOST = 2**32 - 1  # from here on numbers stand in the extra fields of zip64
_UTF8, _DESCRIPTOR_FOLLOWS = 0x0800, 0x0008  # flags of a zip entry
_STORAGE_CLASSES = {dtype: name for name, dtype in STORAGES.items()}


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    surroundings: Surroundings = ALONE,
    read_soon: bool = True,
) -> str:
    """Write tensors as torch.save writes a plain dict, in the order of the mapping.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name that is not text, or no place for the file.
    """
    contents = checked_contents(tensors, list(ITEM_SIZE), "torch")
    with whole_file(path, read_soon=read_soon) as file:
        write_archive(file, contents, file.room, surroundings)
    return file.sha256


def write_archive(
    file: BinaryIO | SequentialWriter,
    contents: Mapping[str, Content],
    room: Room,
    around: Surroundings = ALONE,
) -> None:
    """Write tensors as torch.save writes a plain dict, in the order of the mapping.

    Args:
        file: Where; nothing has been written to it.
        contents: The tensors by name.
        room: What they are read into.
        around: The key of an outer dict, and what stands in it after the tensors.
    """
    tensors = {name: _Tensor(c.info, str(key)) for key, (name, c) in enumerate(contents.items())}
    pickled, archive = io.BytesIO(), _Archive(file)
    held = {around.wrapper: tensors, **around.extras} if around.wrapper else tensors
    _Pickler(pickled, protocol=2).dump(held)
    archive.add("data.pkl", pickled.getvalue())
    archive.add(".format_version", b"1")
    archive.add(".storage_alignment", str(_ALIGNMENT).encode())
    archive.add("byteorder", b"little")
    for key, content in enumerate(contents.values()):
        archive.add_chunks(f"data/{key}", content.info.nbytes, content.chunks(room))
    archive.add("version", b"3\n")
    # What torch calls the serialization id: a hash of all names, and one of all contents. torch
    # hashes the names with std::hash, in an order that is the compiler's too. Nothing checks it.
    identity = f"{archive.names:020}{archive.contents:020}"
    archive.add(".data/serialization_id", identity.encode())
    archive.finish()


class _Name:
    """A class or function of torch, which a pickle names."""

    def __init__(self, name: str) -> None:
        self.module, _, self.attribute = name.rpartition(".")


@dataclass(frozen=True, eq=False)
class _Storage:
    """A record of the archive: the class, the record's key and the number of elements."""

    kind: _Name
    key: str
    length: int


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor that is the whole of a storage."""

    info: TensorInfo
    key: str


# The names that a pickle may repeat are the same objects, which it writes once.
_NAMED = {name: _Name(name) for name in (TENSOR, UNTYPED_TENSOR, UNTYPED_STORAGE, *STORAGES)}
_NAMED |= {f"torch.{dtype}": _Name(f"torch.{dtype}") for dtype in ITEM_SIZE}


# The pickler that Python has in Python: that in C imports what it names.
_PythonsPickler: Any = pickle._Pickler


class _Pickler(_PythonsPickler):  # type: ignore[misc]
    """Writes names without a look at what they name, and tensors as the calls that torch makes."""

    def persistent_id(self, value: object) -> tuple[object, ...] | None:
        """What stands for a storage."""
        if isinstance(value, _Storage):
            return ("storage", value.kind, value.key, "cpu", value.length)
        return None

    def _batch_setitems(self, items: Iterable[tuple[object, object]], *_: object) -> None:
        pairs = list(items)
        # As Python's pickler in C, which torch.save uses: in batches of a thousand, and with a mark
        # before the last of them even if it has one item (`batch_dict_exact`).
        for begin in range(0, len(pairs), 1000):
            self.write(pickle.MARK if len(pairs) > 1 else b"")
            for key, value in pairs[begin : begin + 1000]:
                self.save(key)
                self.save(value)
            self.write(pickle.SETITEMS if len(pairs) > 1 else pickle.SETITEM)

    def save_name(self, name: _Name) -> None:
        self.write(f"c{name.module}\n{name.attribute}\n".encode())
        self.memoize(name)

    def save_tensor(self, tensor: _Tensor) -> None:
        info = tensor.info
        kind = _STORAGE_CLASSES.get(info.dtype)
        length = prod(info.shape) if kind else info.nbytes
        storage = _Storage(_NAMED[kind or UNTYPED_STORAGE], tensor.key, length)
        steps = row_major([max(axis, 1) for axis in info.shape])
        hooks: OrderedDict[int, object] = OrderedDict()
        needs_gradient = False
        arguments = (storage, 0, info.shape, steps, needs_gradient, hooks)
        self.save(_NAMED[TENSOR if kind else UNTYPED_TENSOR])
        self.save(arguments if kind else (*arguments, _NAMED[f"torch.{info.dtype}"]))
        self.write(pickle.REDUCE)
        self.memoize(tensor)

    dispatch: ClassVar[dict[type, object]] = {
        **_PythonsPickler.dispatch,
        _Name: save_name,
        _Tensor: save_tensor,
    }


class _Archive:
    """A zip archive as miniz writes it: a descriptor after every entry, and an end for zip64."""

    def __init__(self, file: BinaryIO | SequentialWriter) -> None:
        self.file = file
        self.position = 0
        self.directory = bytearray()
        self.count = 0
        self.names = 0  # hashes of the records so far
        self.contents = 0

    def add(self, record: str, data: bytes) -> None:
        """Write a record that is at hand."""
        self.add_chunks(record, len(data), [data])

    def add_chunks(self, record: str, size: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a record of `size` bytes, the first at a multiple of the alignment."""
        begin, name = self.position, (_FOLDER + record).encode()
        flags = _UTF8 | (_DESCRIPTOR_FOLLOWS if size else 0)
        extra = _zip64(size, 0, begin)
        padding = -(begin + 30 + len(name) + len(extra) + 4) % _ALIGNMENT
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding  # as PyTorchStreamWriter pads
        lengths = len(name), len(extra)
        self._write(struct.pack("<4s5H3I2H", b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, 0, *lengths))
        self._write(name + extra)
        crc, first = 0, self.position
        for chunk in chunks:
            crc = zlib.crc32(chunk, crc)
            self._write(chunk)
        assert self.position == first + size
        extra = _zip64(size, size, begin)
        if size:
            sizes = struct.pack("<2Q" if extra else "<2I", size, size)
            self._write(b"PK\7\x08" + struct.pack("<I", crc) + sizes)
            self.contents = _combined(self.contents, crc)
        self.names = _combined(self.names, zlib.crc32(record.encode()))
        shown = min(size, _MOST)
        numbers = crc, shown, shown, len(name), len(extra), 0, 0, 0, 0, min(begin, _MOST)
        self.directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 0, 0, flags, 0, 0, 0, *numbers)
        self.directory += name + extra
        self.count += 1

    def finish(self) -> None:
        """Write the directory and the records that point to it."""
        begin, size, count = self.position, len(self.directory), self.count
        end = begin + size
        self._write(bytes(self.directory))
        # 0x031e: made by zip 3.0 on Unix. 45: needs the version of zip that brought zip64.
        self._write(
            struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, size, begin)
        )
        self._write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        shown = min(count, 2**16 - 1)
        places = min(size, _MOST), min(begin, _MOST)
        self._write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, shown, shown, *places, 0))

    def _write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.position += len(data)


def _zip64(size: int, packed: int, begin: int) -> bytes:
    """The extra field with the numbers that 32 bits do not hold; nothing where they do."""
    numbers = [size, packed] if size >= _MOST else []
    if begin >= _MOST:
        numbers.append(begin)
    data = struct.pack(f"<{len(numbers)}Q", *numbers)
    return struct.pack("<2H", 1, len(data)) + data if data else b""


def _combined(seed: int, value: int) -> int:
    """c10::hash_combine, from boost."""
    return (seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2))) % 2**64
