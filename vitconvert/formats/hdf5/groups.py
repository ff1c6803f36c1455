"""What is in a group of an HDF5 file: names, and the addresses of objects.

Three ways to keep them are read: a B-tree of nodes with symbols (the earliest format), messages in
the group's own header, and for many members a fractal heap with an index, another B-tree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.hdf5.objects import (
    LINK,
    LINK_INFO,
    SYMBOL_TABLE,
    UNDEFINED,
    Message,
    Source,
    exactly,
)

_SOFT_SYMBOL = 2  # the kind of a symbol that is a soft link
_HARD = 0
_RECORD = 11  # bytes of a record in an index of names: a hash, and 7 of an address in the heap


def members(source: Source, messages: Sequence[Message]) -> Iterator[tuple[str, int]] | None:
    """Name and address of each object in a group, or None if these messages make no group.

    Raises:
        CorruptFile: The group contradicts itself.
        UnsafeFile: A name leads elsewhere: into another file, or by a path.
    """
    for message in messages:
        if message.kind == SYMBOL_TABLE:
            tree, heap = struct.unpack("<QQ", exactly(source, message.data[:16], 16))
            return _symbols(source, tree, heap)
    for message in messages:
        if message.kind == LINK_INFO:
            stored = (m.data for m in messages if m.kind == LINK)
            return _links(source, (*stored, *_dense(source, message.data)))
    return None


def _symbols(source: Source, tree: int, heap: int) -> Iterator[tuple[str, int]]:
    names = _names(source, heap)
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        signature = source.read(node, 4)
        if signature == b"TREE":
            kind, _, used = struct.unpack("<BBH", source.read(node + 4, 4))
            if kind != 0:
                raise source.corrupt("the tree of a group is of another kind")
            entries = source.read(node + 24, 16 * used)
            children = [child for _, child in struct.iter_unpack("<QQ", entries)]
            nodes += reversed(children)
        elif signature == b"SNOD":
            (used,) = struct.unpack("<H", source.read(node + 6, 2))
            for entry in struct.iter_unpack("<QQI20x", source.read(node + 8, 40 * used)):
                begin, address, kind = entry
                name = _text(source, names[begin : names.find(b"\0", begin)])
                if kind == _SOFT_SYMBOL:
                    raise _led_away(source, name)
                yield name, address
        else:
            raise source.corrupt("a part of a group is missing")


def _names(source: Source, heap: int) -> bytes:
    if source.read(heap, 4) != b"HEAP":
        raise source.corrupt("the names of a group are missing")
    size, _, begin = struct.unpack("<3Q", source.read(heap + 8, 24))
    return source.read(begin, size)


def _links(source: Source, messages: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    for data in messages:
        try:
            yield _link(source, data)
        except IndexError:
            raise source.corrupt("a link in a group is too short") from None


def _link(source: Source, data: bytes) -> tuple[str, int]:
    if data[0] != 1:
        raise source.corrupt(f"version {data[0]} of a link is not known here")
    flags, position, kind = data[1], 2, _HARD
    if flags & 8:
        kind, position = data[position], position + 1
    position += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
    width = 1 << (flags & 3)
    begin = position + width
    end = begin + int.from_bytes(data[position:begin], "little")
    name = _text(source, data[begin:end])
    if kind != _HARD:
        raise _led_away(source, name)
    return name, int.from_bytes(exactly(source, data[end : end + 8], 8), "little")


def _text(source: Source, name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise source.corrupt("a name is no valid UTF-8") from None
    if not text or "/" in text or text == ".":
        raise source.corrupt("a name is empty, or a path")
    return text


def _led_away(source: Source, name: str) -> UnsafeFile:
    return UnsafeFile(
        f"{name!r} in this HDF5 file is a link to something else.",
        evidence={"file": source.path},
        meaning="Such a link may lead to another file, or in a circle, so it was not followed.",
        hint="h5py copies what you trust into a file without links.",
    )


def _dense(source: Source, info: bytes) -> Iterator[bytes]:
    """The links of a group that has too many for its header."""
    exactly(source, info[:2], 2)
    begin = 2 + (8 if info[1] & 1 else 0)
    heap, index = struct.unpack("<QQ", exactly(source, info[begin : begin + 16], 16))
    if heap == UNDEFINED:
        return
    stored = _Heap(source, heap)
    for record in _records(source, index):
        yield stored.at(record[4:])


def _records(source: Source, address: int) -> Iterator[bytes]:
    """The records of a B-tree of version 2, whatever their order."""
    header = source.read_checked(address, 38)
    kind, node_size, size, depth = struct.unpack_from("<5xBIHH", header)
    root, count = struct.unpack_from("<QH", header, 16)
    if header[:5] != b"BTHD\0" or kind != 5 or size != _RECORD or depth > 8:
        raise source.corrupt("the index of a group is of another kind")
    # A pointer to a node says how many records are in it, and below it where there are any.
    most = [(node_size - 10) // size]
    below = [most[0]]
    for _ in range(depth):
        pointer = 8 + _width(most[0]) + (_width(below[-1]) if len(below) > 1 else 0)
        most.append((node_size - 10 - pointer) // (size + pointer))
        below.append((most[-1] + 1) * below[-1] + most[-1])
    nodes = [(root, count, depth)] if count else []
    while nodes:
        place, count, level = nodes.pop()
        node = source.read(place, node_size)
        width = _width(most[0])
        step = 8 + width + (_width(below[level - 1]) if level > 1 else 0)
        end = 6 + size * count
        last = end + step * (count + 1) if level else end
        source.check(node[: last + 4])
        if node[:4] != (b"BTIN" if level else b"BTLF"):
            raise source.corrupt("a part of the index of a group is missing")
        yield from (exactly(source, node[p : p + size], size) for p in range(6, end, size))
        for at in range(end, last, step):
            child = int.from_bytes(node[at : at + 8], "little")
            nodes.append(
                (child, int.from_bytes(node[at + 8 : at + 8 + width], "little"), level - 1)
            )


def _width(most: int) -> int:
    """Bytes of a number that is at most so large."""
    return max(1, (most.bit_length() + 7) // 8)


class _Heap:
    """A fractal heap: blocks whose sizes double with every second row."""

    def __init__(self, source: Source, address: int) -> None:
        self._source = source
        header = source.read_checked(address, 146)
        (self._filtered,) = struct.unpack_from("<H", header, 7)
        self._first: int
        self._row, self._first, largest, bits = struct.unpack_from("<HQQH", header, 110)
        self._root: int
        self._root, self._rows = struct.unpack_from("<QH", header, 132)
        managed = int.from_bytes(header[10:14], "little")
        if header[:5] != b"FRHP\0" or self._filtered or not (self._first and self._row):
            raise source.corrupt("the links of a group are stored in a way that is not read here")
        self._offset = (bits + 7) // 8
        self._length = min((largest.bit_length() + 6) // 8, _width(managed))
        self._direct = (largest // self._first).bit_length() + 1  # rows of blocks with objects

    def at(self, place: bytes) -> bytes:
        """The object at a place in the heap."""
        if place[0] & 0xF0:  # of another version, huge or tiny
            raise self._unread()
        offset = int.from_bytes(place[1 : 1 + self._offset], "little")
        begin = 1 + self._offset
        size = int.from_bytes(place[begin : begin + self._length], "little")
        return self._source.read(self._position(offset), size)

    def _position(self, offset: int) -> int:
        if not self._rows:
            return self._root + offset
        row, start = 0, 0
        while offset >= start + (width := self._row * self._block(row)):
            start, row = start + width, row + 1
            if row >= min(self._rows, self._direct):
                raise self._unread()
        number, within = divmod(offset - start, self._block(row))
        entry = self._root + 13 + self._offset + 8 * (row * self._row + number)
        return self._source.address(entry) + within

    def _block(self, row: int) -> int:
        return self._first << max(row - 1, 0)

    def _unread(self) -> CorruptFile:
        return self._source.corrupt("a group has more members than are read here")
