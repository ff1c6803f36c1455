"""Arrays of an HDF5 file that are stored in chunks: where each chunk lies, and the whole of them.

A chunk is a block of the array, as large at its edges as elsewhere. A B-tree says where they lie
(in the format that h5py writes by default), or since HDF5 1.10 one address, that of the first of
many, or a list. The two indexes of arrays that can grow are not read.

Source: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, IV.A.2.i and VII.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product, repeat
from math import prod
from typing import TYPE_CHECKING

from vitconvert.formats.container import ITEM_SIZE, TensorInfo, tensor_from_buffer
from vitconvert.formats.hdf5.filters import StrangeStorage, filters_of, unfiltered
from vitconvert.formats.hdf5.objects import UNDEFINED, Source, exactly

if TYPE_CHECKING:
    import torch

_SINGLE, _IMPLICIT, _LIST = 1, 2, 3  # kinds of index since HDF5 1.10
_EDGES_UNFILTERED, _SINGLE_FILTERED = 1, 2  # flags of the layout

_Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Where a chunk lies; `skipped` has a bit for each filter that was left out."""

    offset: int
    size: int
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The chunks of an array.

    Attributes:
        shape: Of each.
        item: Bytes of an element.
        filters: By their numbers, in the order of writing.
        places: Where each begins along the axes of the array -> where it lies.
    """

    shape: _Shape
    item: int
    filters: tuple[int, ...]
    places: Mapping[_Shape, Chunk]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them, inflated."""
        return len(self.places) * self._size

    @property
    def _size(self) -> int:
        return prod(self.shape) * self.item

    def read(self, bytes_at: Callable[[int, int], bytes], info: TensorInfo) -> torch.Tensor:
        """Put the array together.

        Args:
            bytes_at: Reads so many bytes at an offset.
            info: The array.

        Raises:
            ValueError: A chunk is damaged.
        """
        import numpy as np

        whole = np.empty((*info.shape, self.item), np.uint8)
        for begins, chunk in self.places.items():
            stored = bytes_at(chunk.offset, chunk.size)
            data = unfiltered(stored, self.filters, chunk.skipped, self._size, self.item)
            part = np.frombuffer(data, np.uint8).reshape(*self.shape, self.item)
            place = whole[tuple(map(slice, begins, map(sum, zip(begins, self.shape, strict=True))))]
            place[...] = part[tuple(map(slice, place.shape))]
        return tensor_from_buffer(whole.reshape(-1).data, 0, info)


def chunks_of(
    source: Source, info: TensorInfo, largest: _Shape, layout: bytes, pipeline: bytes | None
) -> Chunks:
    """The chunks of an array, all of which must be there.

    Args:
        source: The file.
        info: The array.
        largest: How far each axis may grow.
        layout: The message that describes the chunks.
        pipeline: The message that lists the filters.

    Raises:
        StrangeStorage: They are stored in a way that is not read here.
        CorruptFile: The file contradicts itself.
    """
    filters = filters_of(source, pipeline) if pipeline is not None else ()
    stored, index = (_early if layout[0] == 3 else _modern)(source, layout)
    *shape, item = stored
    if len(shape) != len(info.shape) or item != ITEM_SIZE[info.dtype] or 0 in shape:
        raise source.corrupt("chunks do not go with the shape of their array")
    grid = _Grid(array=info.shape, largest=largest, chunk=tuple(shape), item=item)
    if grid.count > source.size:
        raise StrangeStorage("nowhere: most of it was never written")
    listed = list(index(grid))
    places = dict(listed)
    if places.keys() < set(grid) or any(chunk.offset == UNDEFINED for chunk in places.values()):
        raise StrangeStorage("nowhere: a part of it was never written")
    if [begins for begins, _ in listed] != list(grid):
        raise source.corrupt("its chunks are not in order")
    if any(chunk.offset + chunk.size > source.size for chunk in places.values()):
        raise source.corrupt("a chunk is not in the file", hint="download it again.")
    return Chunks(shape=grid.chunk, item=item, filters=filters, places=places)


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """How chunks fill an array: their beginnings, the last axis the fastest."""

    array: _Shape
    largest: _Shape
    chunk: _Shape
    item: int

    @property
    def count(self) -> int:
        return prod(self._along(self.array))

    @property
    def size(self) -> int:
        """Bytes of a chunk, inflated."""
        return prod(self.chunk) * self.item

    @property
    def grows(self) -> bool:
        return self._along(self.array) != self._along(self.largest)

    def __iter__(self) -> Iterator[_Shape]:
        return product(*map(range, repeat(0), self.array, self.chunk))

    def _along(self, array: _Shape) -> list[int]:
        return [-(-axis // length) for axis, length in zip(array, self.chunk, strict=True)]


_Index = Callable[[_Grid], Iterable[tuple[_Shape, Chunk]]]


def _early(source: Source, layout: bytes) -> tuple[_Shape, _Index]:
    """The shape of chunks, and of the bytes of an element as its last axis; and a B-tree."""
    rank, address = struct.unpack("<BQ", exactly(source, layout[2:11], 9))
    shape = struct.unpack(f"<{rank}I", exactly(source, layout[11 : 11 + 4 * rank], 4 * rank))
    return shape, lambda _: _in_tree(source, address, rank)


def _in_tree(source: Source, address: int, rank: int) -> Iterator[tuple[_Shape, Chunk]]:
    entry = struct.Struct(f"<II{rank}QQ")
    nodes = [address] if address != UNDEFINED else []
    while nodes:
        node = nodes.pop()
        signature, kind, level, used = struct.unpack("<4sBBH", source.read(node, 8))
        if signature != b"TREE" or kind != 1:
            raise source.corrupt("a part of the index of chunks is missing")
        entries = list(entry.iter_unpack(source.read(node + 24, entry.size * used)))
        if level:
            nodes += [child for *_, child in reversed(entries)]
            continue
        for size, skipped, *begins, child in entries:
            yield tuple(begins[:-1]), Chunk(offset=child, size=size, skipped=skipped)


def _modern(source: Source, layout: bytes) -> tuple[_Shape, _Index]:
    """As `_early`; the index is of one kind or another, by what the array may become."""
    flags, rank, width = exactly(source, layout[2:5], 3)
    end = 5 + rank * width
    sizes = exactly(source, layout[5:end], rank * width)
    shape = tuple(
        int.from_bytes(sizes[at : at + width], "little") for at in range(0, len(sizes), width or 1)
    )
    (kind,) = exactly(source, layout[end : end + 1], 1)
    listed = {_SINGLE: _single, _IMPLICIT: _in_a_row, _LIST: _in_list}.get(kind)
    if flags & _EDGES_UNFILTERED or listed is None:
        raise StrangeStorage("in chunks of an array that can grow")

    def places(grid: _Grid) -> Iterator[tuple[_Shape, Chunk]]:
        if grid.grows:
            raise StrangeStorage("in chunks of an array that can grow")
        return zip(grid, listed(source, grid, layout[end + 1 :], flags), strict=True)

    return shape, places


def _single(source: Source, grid: _Grid, rest: bytes, flags: int) -> Iterator[Chunk]:
    if grid.count != 1:
        raise source.corrupt("one chunk is not all of an array")
    if flags & _SINGLE_FILTERED:
        size, skipped, offset = struct.unpack("<QIQ", exactly(source, rest[:20], 20))
        yield Chunk(offset=offset, size=size, skipped=skipped)
    else:
        yield Chunk(offset=_number(exactly(source, rest[:8], 8)), size=grid.size)


def _in_a_row(source: Source, grid: _Grid, rest: bytes, _: int) -> Iterator[Chunk]:
    begin = _number(exactly(source, rest[:8], 8))
    for number in range(grid.count):
        yield Chunk(offset=begin + number * grid.size, size=grid.size)


def _in_list(source: Source, grid: _Grid, rest: bytes, _: int) -> Iterator[Chunk]:
    """A "fixed array"; a long one is kept in pages, each with a checksum."""
    address = _number(exactly(source, rest[1:9], 8))
    if address == UNDEFINED:
        raise StrangeStorage("nowhere: nothing was ever written to it")
    header = source.read_checked(address, 28)
    signature, filtered, width, bits, count, block = struct.unpack("<4sxBBBQQ", header[:24])
    if signature != b"FAHD" or count != grid.count or bits > 32 or width < 8 + 5 * filtered:
        raise source.corrupt("the list of chunks is not that of their array")
    for entry in _entries(source, block, count, width, 1 << bits):
        if filtered:
            size, skipped = _number(entry[8:-4]), _number(entry[-4:])
            yield Chunk(offset=_number(entry[:8]), size=size, skipped=skipped)
        else:
            yield Chunk(offset=_number(entry[:8]), size=grid.size)


def _entries(source: Source, block: int, count: int, width: int, page: int) -> Iterator[bytes]:
    begin, counts = block + 14, [count]  # behind a signature, two numbers and an address
    if count > page:
        pages = -(-count // page)
        begin += -(-pages // 8) + 4  # a bit for each that was written, and a checksum
        counts = [min(page, count - at) for at in range(0, count, page)]
    else:
        source.read_checked(block, 14 + width * count + 4)
    for entries in counts:
        data = source.read(begin, width * entries + 4)
        if count > page:
            source.check(data)
        yield from (data[at : at + width] for at in range(0, width * entries, width))
        begin += len(data)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
