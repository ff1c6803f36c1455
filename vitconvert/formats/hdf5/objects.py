"""The objects of an HDF5 file: headers, and the messages in them that describe groups and arrays.

Both generations are read: that of the "earliest" format, which h5py writes by default and so
Keras and TensorFlow, and that of HDF5 1.8 and later. Attributes are not looked at.

Source: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitconvert.errors import CorruptFile
from vitconvert.formats.hdf5.checksum import checksum

SIGNATURE = b"\x89HDF\r\n\x1a\n"
UNDEFINED = 2**64 - 1
"""The address of what is not there."""
LONGEST_NAME = 1024
"""Of a path, in letters; those of weights have 100 or so."""

DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL, LAYOUT = 0x1, 0x2, 0x3, 0x6, 0x7, 0x8
FILTERS, CONTINUATION, SYMBOL_TABLE = 0xB, 0x10, 0x11
"""Kinds of messages."""

_SHARED = 2  # flag of a message that stands elsewhere
_PARTS = 1000  # of one header


@dataclass(frozen=True)
class Message:
    """One message of an object header; `offset` is where its data begin."""

    kind: int
    data: bytes
    offset: int


class Source:
    """The bytes of an HDF5 file, or of one within an archive.

    What describes the tensors takes less than the file: whoever asks for more is led in circles.

    Args:
        path: The file.
        file: The same, open.
        base: Where HDF5 begins in it.
        size: Of the HDF5 file.
    """

    def __init__(self, path: Path, file: BinaryIO, base: int, size: int) -> None:
        self.path = path
        self.base = base
        self.size = size
        self._file = file
        self._left = 2 * size + 2**16

    def read(self, offset: int, count: int) -> bytes:
        """Bytes that must be there."""
        self._left -= count
        if self._left < 0:
            raise self.corrupt("parts of its description overlap, or refer in a circle")
        if not 0 <= offset <= self.size - count:
            raise self.corrupt(
                f"it describes {count:,} bytes at {offset:,}, and has {self.size:,}",
                hint="download it again.",
            )
        self._file.seek(self.base + offset)
        data = self._file.read(count)
        if len(data) != count:
            raise self.corrupt("it became shorter while it was read")
        return data

    def read_checked(self, offset: int, count: int) -> bytes:
        """Bytes of which the last four are the checksum of the others."""
        data = self.read(offset, count)
        self.check(data)
        return data

    def check(self, data: bytes) -> None:
        """Refuse bytes of which the last four are not the checksum of the others."""
        if len(data) < 4 or checksum(data[:-4]) != data[-4:]:
            raise self.corrupt("a checksum is that of other bytes", hint="download it again.")

    def address(self, offset: int) -> int:
        """An address that is stored at an offset."""
        return int.from_bytes(self.read(offset, 8), "little")

    def corrupt(self, problem: str, hint: str | None = None) -> CorruptFile:
        """The error for a file that contradicts itself, or is not read."""
        return CorruptFile(
            "This HDF5 file cannot be read.",
            evidence={"file": self.path, "problem": problem},
            hint=hint,
        )


def root_address(source: Source) -> int:
    """Where the header of the outermost group lies.

    Raises:
        CorruptFile: The superblock is of another version, or says that the file is longer.
    """
    start = source.read(0, 16)
    match start[8]:
        case 0 | 1 as version:
            sizes, begin = start[13:15], 24 + 4 * version
            base, _, end, _, _, root = struct.unpack("<6Q", source.read(begin, 48))
        case 2 | 3:
            sizes = start[9:11]
            base, _, end, root = struct.unpack("<4Q", source.read_checked(0, 48)[12:44])
        case version:
            raise source.corrupt(f"version {version} of its superblock is not known here")
    if sizes != b"\x08\x08" or base:
        raise source.corrupt("its addresses have an unusual size or origin")
    if end > source.size:
        raise source.corrupt(
            f"it should have {end:,} bytes, and has {source.size:,}", hint="download it again."
        )
    return int(root)


def messages_at(source: Source, address: int) -> Iterator[Message]:
    """The messages of an object header, those of its continuations among them."""
    modern = source.read(address, 4) == b"OHDR"
    parts = [_modern_start(source, address) if modern else _early_start(source, address)]
    for count, (begin, size) in enumerate(iter(lambda: parts.pop() if parts else None, None)):
        if count > _PARTS:
            raise source.corrupt("an object header has too many parts")
        data, skip = source.read(begin, size), 0
        if modern and count:
            if data[:4] != b"OCHK":
                raise source.corrupt("a part of an object header is missing")
            source.check(data)
            data, skip = data[:-4], 4
        for message in _messages(source, data, begin, skip, _Style.of(source, address, modern)):
            if message.kind == CONTINUATION:
                parts.append(struct.unpack("<QQ", exactly(source, message.data[:16], 16)))
            else:
                yield message


def exactly(source: Source, data: bytes, count: int) -> bytes:
    """Data that are as long as they must be."""
    if len(data) != count:
        raise source.corrupt("a message in an object header is too short")
    return data


@dataclass(frozen=True)
class _Style:
    """How messages begin: the length of their heads, and how wide their kind is."""

    head: int
    kind: int

    @classmethod
    def of(cls, source: Source, address: int, modern: bool) -> _Style:
        if not modern:
            return cls(head=8, kind=2)
        ordered = source.read(address + 5, 1)[0] & 4  # messages have the order of their creation
        return cls(head=6 if ordered else 4, kind=1)


def _early_start(source: Source, address: int) -> tuple[int, int]:
    version, _, _, size = struct.unpack("<BxHII", source.read(address, 12))
    if version != 1:
        raise source.corrupt(f"there is no object header at {address:,}")
    return address + 16, size


def _modern_start(source: Source, address: int) -> tuple[int, int]:
    version, flags = source.read(address + 4, 2)
    if version != 2:
        raise source.corrupt(f"version {version} of an object header is not known here")
    begin = address + 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(source.read(begin, width), "little")
    source.read_checked(address, begin + width - address + size + 4)
    return begin + width, size


def _messages(
    source: Source, data: bytes, begin: int, position: int, style: _Style
) -> Iterator[Message]:
    while position + style.head <= len(data):
        kind = int.from_bytes(data[position : position + style.kind], "little")
        size, flags = struct.unpack_from("<HB", data, position + style.kind)
        position += style.head
        if flags & _SHARED and kind in (DATASPACE, DATATYPE, LAYOUT, FILTERS):
            raise source.corrupt("a description is shared by several objects")
        content = exactly(source, data[position : position + size], size)
        yield Message(kind, content, begin + position)
        position += size
