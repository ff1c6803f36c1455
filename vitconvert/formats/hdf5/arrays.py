"""An array of an HDF5 file: its type and shape, and where its numbers lie.

The bytes of arrays that fill one stretch of the file, as Keras and TensorFlow write them, are used
where they lie; arrays in chunks are put together. Others are refused with the command that makes
such of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.container import TensorInfo
from vitconvert.formats.hdf5.chunks import Chunks, chunks_of
from vitconvert.formats.hdf5.filters import StrangeStorage
from vitconvert.formats.hdf5.objects import (
    DATASPACE,
    DATATYPE,
    EXTERNAL,
    FILTERS,
    LAYOUT,
    UNDEFINED,
    Message,
    Source,
    exactly,
)
from vitconvert.formats.headers import checked_shape
from vitconvert.formats.zip_archive import FREE_INFLATION, MOST_INFLATION

_REPACK = "h5repack -l CONTI -f NONE IN OUT (of HDF5's tools) stores it so that it is read here."

# The class of a type, its size, and for whole numbers whether they have a sign.
_WHOLE = {
    (size, sign): f"{'' if sign else 'u'}int{8 * size}"
    for size in (1, 2, 4, 8)
    for sign in (False, True)
}
_TEXT = {3: "text", 9: "text or arrays of changing length"}
_OTHER = {6: "records", 7: "references", 10: "arrays", 2: "times", 4: "bits"}

# Exponent and mantissa: first bit and width of each; then the bias. IEEE 754, and bfloat16.
_FLOATS: Mapping[tuple[int, ...], str] = {
    (8, 52, 11, 0, 52, 1023): "float64",
    (4, 23, 8, 0, 23, 127): "float32",
    (2, 10, 5, 0, 10, 15): "float16",
    (2, 7, 8, 0, 7, 127): "bfloat16",
}


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """An array; `offset` counts from where HDF5 begins, and is 0 where there is no number.

    Attributes:
        chunks: What it is stored in, if that is not one stretch that begins at `offset`.
    """

    info: TensorInfo
    offset: int = 0
    chunks: Chunks | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that reading it takes."""
        return self.chunks.nbytes if self.chunks else self.info.nbytes

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Offset and size of each stretch that it fills."""
        if self.chunks:
            return [(chunk.offset, chunk.size) for chunk in self.chunks.places.values()]
        return [(self.offset, self.info.nbytes)] if self.info.nbytes else []


def array(source: Source, name: str, messages: Sequence[Message]) -> StoredArray | str:
    """What the messages of an object say: an array of numbers, or which other kind of it.

    Raises:
        CorruptFile: They contradict themselves, or such arrays are not read.
        UnsafeFile: The numbers are in other files.
    """
    found = {message.kind: message for message in reversed(messages)}
    if EXTERNAL in found:
        raise UnsafeFile(
            f"The numbers of {name!r} are in another file.",
            evidence={"file": source.path},
            meaning="An HDF5 file can name any file of the machine; it was not opened.",
            hint="h5repack (of HDF5's tools) makes one file of what you trust.",
        )
    if not {DATATYPE, DATASPACE, LAYOUT} <= found.keys():
        return "a named type"
    dtype = _dtype(source, name, found[DATATYPE].data)
    if dtype in _TEXT.values():
        return f"array of {dtype}"
    sizes, largest = _shape(source, found[DATASPACE].data)
    info = TensorInfo(dtype=dtype, shape=checked_shape(source.path, name, sizes))
    if not info.nbytes or not _is_in_chunks(found[LAYOUT]):
        return StoredArray(info=info, offset=_offset(source, name, info, found[LAYOUT]))
    pipeline = found[FILTERS].data if FILTERS in found else None
    try:
        chunks = chunks_of(source, info, largest, found[LAYOUT].data, pipeline)
    except StrangeStorage as error:
        raise _unread(source, name, str(error)) from error
    return StoredArray(info=info, chunks=chunks)


def _shape(source: Source, data: bytes) -> tuple[list[int], tuple[int, ...]]:
    """The length of each axis, and the largest that it may have."""
    version, rank, flags = exactly(source, data[:3], 3)
    begin = {1: 8, 2: 4}.get(version)
    if begin is None or (version == 2 and data[3] > 1):
        raise source.corrupt("the shape of an array is of a kind that is not known here")
    end = begin + 8 * rank
    lengths = struct.unpack(f"<{rank}Q", exactly(source, data[begin:end], 8 * rank))
    if not flags & 1:
        return list(lengths), lengths
    return list(lengths), struct.unpack(
        f"<{rank}Q", exactly(source, data[end : end + 8 * rank], 8 * rank)
    )


def _dtype(source: Source, name: str, data: bytes) -> str:
    kind, bits, size = exactly(source, data[:8], 8)[0] & 15, data[1:4], data[4:8]
    width = int.from_bytes(size, "little")
    if kind in _TEXT:
        return _TEXT[kind]
    swapped = bool(bits[0] & 1)
    if kind == 0 and not swapped:
        offset, precision = struct.unpack("<HH", exactly(source, data[8:12], 4))
        whole = _WHOLE.get((width, bool(bits[0] & 8)))
        if whole and offset == 0 and precision == 8 * width:
            return whole
    if kind == 1 and not swapped:
        form = struct.unpack("<HHBBBBI", exactly(source, data[8:20], 12))
        _, _, *places, bias = form
        if dtype := _FLOATS.get((width, *places, bias)):
            return dtype
    if kind == 5 and width == 2:
        return "bfloat16"  # NumPy has none; ml_dtypes stores its two bytes as an opaque type
    if kind == 8 and width == 1:
        return "bool"  # h5py: an enumeration of FALSE and TRUE
    raise CorruptFile(
        f"{name!r} has a type that is not read here.",
        evidence={
            "file": source.path,
            "type": _OTHER.get(kind, f"{'big-endian ' * swapped}numbers of {width} bytes"),
        },
        hint="save numbers alone, of the types that NumPy and ml_dtypes have.",
    )


def _is_in_chunks(layout: Message) -> bool:
    return layout.data[0:1] in (b"\3", b"\4") and layout.data[1:2] == b"\2"


def _offset(source: Source, name: str, info: TensorInfo, layout: Message) -> int:
    data = exactly(source, layout.data[:2], 2) + layout.data[2:]
    version, kind = data[0], data[1]
    if version not in (3, 4):
        raise _unread(source, name, f"in version {version} of HDF5's layouts")
    if kind == 3:
        raise UnsafeFile(
            f"{name!r} is a view on arrays elsewhere.",
            evidence={"file": source.path},
            meaning="A virtual dataset can name any file of the machine; it was not opened.",
            hint="h5repack (of HDF5's tools) makes one file of what you trust.",
        )
    if kind == 0:
        (size,), offset = struct.unpack("<H", exactly(source, data[2:4], 2)), layout.offset + 4
    else:
        offset, size = struct.unpack("<QQ", exactly(source, data[2:18], 16))
    if not info.nbytes:
        return 0
    if offset == UNDEFINED:
        raise _unread(source, name, "nowhere: nothing was ever written to it")
    if size != info.nbytes or offset + size > source.size:
        raise CorruptFile(
            f"{name!r} does not have the size that its header declares.",
            evidence={
                "file": source.path,
                "shape": list(info.shape),
                "declared": f"{info.nbytes:,} bytes",
                "found": f"{max(0, min(size, source.size - offset)):,} bytes",
            },
        )
    return offset


def _unread(source: Source, name: str, where: str) -> CorruptFile:
    return CorruptFile(
        f"The numbers of {name!r} are stored {where}.", evidence={"file": source.path}, hint=_REPACK
    )


def check_apart(source: Source, arrays: Mapping[str, StoredArray]) -> None:
    """Make sure that no two arrays share bytes.

    Raises:
        CorruptFile: They do.
    """
    end, before = 0, ""
    filled = ((*stretch, name) for name, array in arrays.items() for stretch in array.stretches)
    for offset, size, name in sorted(filled):
        if offset < end:
            raise source.corrupt(f"{name!r} overlaps {before!r}")
        end, before = offset + size, name


def check_size(source: Source, arrays: Mapping[str, StoredArray]) -> None:
    """Make sure that the file justifies the memory that its arrays take.

    Raises:
        UnsafeFile: It is a bomb.
    """
    asked = sum(array.nbytes for array in arrays.values())
    if asked > (limit := FREE_INFLATION + MOST_INFLATION * source.size):
        raise UnsafeFile(
            "The arrays would inflate to far more than the size of the file.",
            evidence={
                "file": source.path,
                "on disk": f"{source.size:,} bytes",
                "arrays": f"{asked:,} bytes",
                "limit": f"{limit:,} bytes",
            },
            meaning="Weights hardly compress; a file like this is made to exhaust memory.",
        )
