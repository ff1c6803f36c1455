"""What HDF5 does to chunks of an array before it stores them, and how it is undone.

Three filters are read, which h5py calls gzip, shuffle and fletcher32; they are those that every
build of HDF5 has.

Source: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, IV.A.2.l, and the
library's H5Z*.c and H5checksum.c.
"""

from __future__ import annotations

import struct
import zlib

from vitconvert.formats.hdf5.objects import Source, exactly

_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_OTHERS = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc", 32015: "zstd"}
_BLOCK = 2**20  # words that are summed at once


class StrangeStorage(Exception):
    """Where an array lies that is not read, in words that follow "stored"."""


def filters_of(source: Source, pipeline: bytes) -> tuple[int, ...]:
    """The numbers of the filters that a message lists, in the order of writing.

    Raises:
        StrangeStorage: One is not read here.
    """
    version, count = exactly(source, pipeline[:2], 2)
    position, found = 8 if version == 1 else 2, []
    for _ in range(count):
        kind, length = struct.unpack("<HH", exactly(source, pipeline[position : position + 4], 4))
        if kind not in (_DEFLATE, _SHUFFLE, _FLETCHER32):
            named = _OTHERS.get(kind, f"HDF5's filter {kind}")
            raise StrangeStorage(f"in chunks that {named} has compressed")
        found.append(kind)
        if version == 1:
            position, length = position + 4, length + -length % 8
        else:
            position, length = position + 2, 0  # what HDF5 has itself has no name there
        _, values = struct.unpack("<HH", exactly(source, pipeline[position : position + 4], 4))
        position += 4 + length + 4 * (values + (values % 2 if version == 1 else 0))
    return tuple(found)


def unfiltered(data: bytes, filters: tuple[int, ...], skipped: int, size: int, item: int) -> bytes:
    """A chunk as it was before.

    Args:
        data: The chunk.
        filters: Their numbers.
        skipped: A bit for each filter that was left out.
        size: The bytes that there were before.
        item: Bytes of an element.

    Raises:
        ValueError: The chunk is damaged.
    """
    for number, kind in reversed(list(enumerate(filters))):
        if skipped >> number & 1:
            continue
        if kind == _DEFLATE:
            data = _inflated(data, size + 4 * filters.count(_FLETCHER32))
        elif kind == _SHUFFLE:
            data = _unshuffled(data, item)
        else:
            data = _checked(data)
    if len(data) != size:
        raise ValueError("it has another size than its shape says")
    return data


def _inflated(data: bytes, most: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        inflated = inflating.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError("it cannot be inflated") from error
    if not inflating.eof:
        raise ValueError("it inflates to another size than its shape says")
    return inflated


def _unshuffled(data: bytes, item: int) -> bytes:
    """First came the first bytes of all elements; what is left over at the end stays there."""
    import numpy as np

    whole = len(data) - len(data) % item
    planes = np.frombuffer(data, np.uint8, whole).reshape(item, -1)
    return planes.T.tobytes() + data[whole:]


def _checked(data: bytes) -> bytes:
    """The data before their checksum, by Fletcher: two sums of 16 bits, each modulo 2^16 - 1."""
    import numpy as np

    data, stored = data[:-4], data[-4:]
    words = np.frombuffer(data + bytes(len(data) % 2), ">u2")
    first = second = 0
    for begin in range(0, len(words), _BLOCK):
        block = words[begin : begin + _BLOCK].astype(np.uint64)
        count = np.arange(len(block), 0, -1, dtype=np.uint64)
        second += len(block) * first + int(block @ count)
        first += int(block.sum())
    sums = struct.unpack("<HH", stored) if len(stored) == 4 else ()
    if [total % 65535 for total in sums] != [first % 65535, second % 65535]:
        raise ValueError("its checksum is that of other bytes")
    return data
