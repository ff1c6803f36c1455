"""Checkpoints as torch.save writes a plain dict of tensors, written without torch.

The bytes are those of torch.save (torch 2.15), down to the padding, but for half of the
serialization id, which torch hashes as its C++ compiler does. So torch maps such a file like its
own, and finds the storages by computing, where it is told to.

Source: torch/serialization.py (`_save`), caffe2/serialize/inline_container.cc
(`PyTorchStreamWriter`) and miniz 3.0.2 (`mz_zip_writer_add_mem_ex_v2`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vitconvert.formats.container import ITEM_SIZE, TensorInfo, row_major
from vitconvert.formats.content import Content, Room, checked_contents
from vitconvert.formats.format_modules import ALONE, Surroundings
from vitconvert.formats.torch.pickle_reader import (
    HOOKS,
    STORAGES,
    TENSOR,
    UNTYPED_STORAGE,
    UNTYPED_TENSOR,
)
from vitconvert.whole import SequentialWriter, whole_file

if TYPE_CHECKING:
    import torch

_Values = Mapping[str, "TensorInfo | int | _Values"]

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
    infos = {name: each.info for name, each in contents.items()}
    pickle, archive = _Pickle(), _Archive(file)
    pickle.data += b"\x80\x02"
    pickle.add_values({around.wrapper: infos, **around.extras} if around.wrapper else infos)
    archive.add("data.pkl", bytes(pickle.data + b"."))
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


class _Pickle:
    """A pickle of protocol 2, in which what recurs is written once, as Python's own does."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.memo: dict[bytes, int] = {}
        self.count = 0
        self.tensors = 0

    def add(self, code: bytes) -> None:
        """Write the end of a value that can be asked for again."""
        self.data += code + _numbered(b"q", b"r", self.count)
        self.count += 1

    def add_once(self, code: bytes) -> None:
        """Write a whole value, or ask for it again."""
        if code in self.memo:
            self.data += _numbered(b"h", b"j", self.memo[code])
        else:
            self.memo[code] = self.count
            self.add(code)

    def add_values(self, values: _Values) -> None:
        """Write a dict of tensors, whole numbers and further such dicts."""
        self.add(b"}")
        alone = len(values) == 1
        self.data += b"" if alone else b"("
        for name, value in values.items():
            self.add_once(_text(name))
            match value:
                case int():
                    self.data += _integer(value)
                case TensorInfo():
                    self.add_tensor(str(self.tensors), value)
                    self.tensors += 1
                case _:
                    self.add_values(value)
        self.data += b"s" if alone else b"u"

    def add_tensor(self, key: str, info: TensorInfo) -> None:
        """Write the call that rebuilds a tensor that is the whole of the storage `key`."""
        storage_class = _STORAGE_CLASSES.get(info.dtype)
        self.add_once(_global(TENSOR if storage_class else UNTYPED_TENSOR))
        self.data += b"(("
        self.add_once(_text("storage"))
        self.add_once(_global(storage_class or UNTYPED_STORAGE))
        self.add_once(_text(key))
        self.add_once(_text("cpu"))
        elements = prod(info.shape) if storage_class else info.nbytes
        self.add(_integer(elements) + b"t")
        self.data += b"Q" + _integer(0)  # the offset in the storage
        self.add_sizes(info.shape)
        self.add_sizes(row_major([max(axis, 1) for axis in info.shape]))
        self.data += b"\x89"  # needs no gradient
        self.add_once(_global(HOOKS))
        self.add(b")R")
        if not storage_class:
            self.add_once(_global(f"torch.{info.dtype}"))
        self.add(b"t")
        self.add(b"R")

    def add_sizes(self, sizes: tuple[int, ...]) -> None:
        """Write a tuple of whole numbers; the short ones have opcodes of their own."""
        numbers = b"".join(map(_integer, sizes))
        match len(sizes):
            case 0:
                self.data += b")"
            case 1 | 2 | 3 as length:
                self.add(numbers + b"\x85\x86\x87"[length - 1 : length])
            case _:
                self.add(b"(" + numbers + b"t")


def _numbered(short: bytes, long: bytes, number: int) -> bytes:
    return short + bytes([number]) if number < 256 else long + struct.pack("<I", number)


def _global(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _integer(number: int) -> bytes:
    if number < 2**8:
        return b"K" + bytes([number])
    if number < 2**16:
        return b"M" + struct.pack("<H", number)
    if number < 2**31:
        return b"J" + struct.pack("<i", number)
    data = number.to_bytes(number.bit_length() // 8 + 1, "little")
    return b"\x8a" + bytes([len(data)]) + data


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
        """Write the directory and what tells where it is."""
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
