"""An array of an HDF5 file: its type and shape, and where its numbers lie.

Arrays that fill one stretch of the file are read, as Keras and TensorFlow write them: their bytes
are used where they lie. Others are refused with the command that makes such of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from vitconvert.containers.container import TensorInfo
from vitconvert.containers.hdf5.objects import (
    DATASPACE,
    DATATYPE,
    EXTERNAL,
    LAYOUT,
    UNDEFINED,
    Message,
    Source,
    exactly,
)
from vitconvert.containers.mapped_file import checked_shape
from vitconvert.errors import CorruptFile, UnsafeFile

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
    """An array; `offset` counts from where HDF5 begins, and is 0 where there is no number."""

    info: TensorInfo
    offset: int


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
    shape = checked_shape(source.path, name, _shape(source, found[DATASPACE].data))
    info = TensorInfo(dtype=dtype, shape=shape)
    return StoredArray(info=info, offset=_offset(source, name, info, found[LAYOUT]))


def _shape(source: Source, data: bytes) -> list[int]:
    version, rank, flags = exactly(source, data[:3], 3)
    begin = {1: 8, 2: 4}.get(version)
    if begin is None or (version == 2 and data[3] > 1):
        raise source.corrupt("the shape of an array is of a kind that is not known here")
    del flags  # whether largest sizes follow
    return list(
        struct.unpack(f"<{rank}Q", exactly(source, data[begin : begin + 8 * rank], 8 * rank))
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
    if kind == 2:
        raise _unread(source, name, "in chunks, which may be compressed")
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
    filled = ((a.offset, n, a.info) for n, a in arrays.items() if prod(a.info.shape))
    for offset, name, info in sorted(filled, key=lambda item: item[:2]):
        if offset < end:
            raise source.corrupt(f"{name!r} overlaps {before!r}")
        end, before = offset + info.nbytes, name
