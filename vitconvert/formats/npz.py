"""npz: a zip archive of .npy arrays, as JAX checkpoints are published.

Format: NEP 1 and numpy.lib.format, versions 1.0 and 2.0 (3.0 differs for structured arrays only,
which are no weights). The headers are read here, because numpy allocates what a header asks for
before it checks that the file has it, and opens pickles where it is allowed to. Arrays are written
uncompressed, and each where it can be mapped.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.atomic_write import atomic_file
from vitconvert.errors import UnsafeFile, UsageError
from vitconvert.formats.container import (
    Container,
    MappedFile,
    TensorInfo,
    mapped_container,
    row_major,
    tensor_from_buffer,
)
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import ALONE, Array, Surroundings
from vitconvert.formats.headers import check_size, checked_dtype, checked_shape, corrupt
from vitconvert.formats.zip_archive import Member, checked_crc, member_bytes, reading
from vitconvert.settings import without_warnings

if TYPE_CHECKING:
    import torch

READER = "numpy.load"
EXAMPLE = """\
import numpy

arrays = dict(numpy.load("model.npz"))"""

_NPY_MAGIC = b"\x93NUMPY"

DTYPES: Mapping[str, str] = {
    "f8": "float64",
    "f4": "float32",
    "f2": "float16",
    "V2": "bfloat16",  # numpy has no bfloat16; ml_dtypes stores its two bytes as an opaque type
    "i8": "int64",
    "i4": "int32",
    "i2": "int16",
    "i1": "int8",
    "u8": "uint64",
    "u4": "uint32",
    "u2": "uint16",
    "u1": "uint8",
    "b1": "bool",
    "c8": "complex64",
}
"""torch's name of each numpy type code."""

_CHECKED = 2**20  # bytes of an array that are read rather than mapped, with their checksum
_LONGEST_HEADER = 10_000  # characters; numpy's own limit for literal_eval
LONGEST_NPY_HEADER = 12 + _LONGEST_HEADER
_LONGEST_NAME = 2**16 - 1 - len(".npy")  # bytes; zip counts them in two
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can hold
_ALIGNMENT = 64  # numpy pads its headers so that data begin at a multiple of this
_ALIGNMENT_FIELD = 0xD935  # the extra field that Android's zipalign pads with


@dataclass(frozen=True, kw_only=True)
class _StoredArray:
    """One array of the archive; `offset` counts from the beginning of its member."""

    member: Member
    info: TensorInfo
    code: str
    swapped: bool
    fortran: bool
    offset: int


def open_file(path: Path, members: Mapping[str, Member], *_: object) -> Container:
    """Read the headers of all arrays of an npz and map the file.

    Arrays of text are set aside in `extras`; arrays of Python objects are refused. The checksum of
    a member is compared when it is read whole: where it is deflated or big-endian, or has up to
    1 MiB. Larger arrays are mapped, and their bytes not looked at before somebody needs them.

    Raises:
        CorruptFile: A header contradicts itself or the size of its member.
        UnsafeFile: An array is a pickle.
    """
    arrays: dict[str, _StoredArray] = {}
    texts: dict[str, object] = {}
    with zipfile.ZipFile(path) as archive:
        for member in members.values():
            if not member.name.endswith(".npy"):
                raise corrupt(path, f"{member.name!r} in this npz is not an array.")
            name = member.name.removesuffix(".npy")
            with reading(path, member), archive.open(member.name) as file:
                start = file.read(LONGEST_NPY_HEADER)
            descr, fortran, shape, offset = parse_header(path, name, start)
            if descr[1] in "US":
                texts[name] = f"array of text ({descr})"
                continue
            if descr[1] == "O":
                raise UnsafeFile(
                    f"{name!r} holds Python objects, not numbers.",
                    evidence={"file": path},
                    meaning="Reading such an array runs whatever code its pickle asks for.",
                    hint="save the arrays inside it one by one, with numpy.savez.",
                )
            code = checked_dtype(path, name, descr[1:], DTYPES)
            info = TensorInfo(dtype=DTYPES[code], shape=checked_shape(path, name, shape))
            check_size(path, name, info, member.size - offset)
            swapped = descr[0] == ">" and code not in ("V2", "i1", "u1", "b1")
            arrays[name] = _StoredArray(
                member=member, info=info, code=code, swapped=swapped, fortran=fortran, offset=offset
            )
    plain = {n: array for n, array in arrays.items() if array.member.stored and not array.swapped}
    container = mapped_container(
        path,
        "npz",
        {name: array.info for name, array in arrays.items()},
        {name: array.member.offset + array.offset for name, array in plain.items()},
        strides={n: row_major(a.info.shape[::-1])[::-1] for n, a in plain.items() if a.fortran},
        read=lambda mapped, name: _read(mapped, arrays[name]),
    )
    return replace(container, extras=texts)


def parse_header(path: Path, name: str, start: bytes) -> tuple[str, bool, object, int]:
    """Type code such as "<f4", Fortran order, shape, and where the data begin."""
    if start[:6] != _NPY_MAGIC or start[6:8] not in (b"\1\0", b"\2\0") or len(start) < 12:
        fact = f"{name!r} is not a .npy array of version 1 or 2."
        raise corrupt(path, fact, begins=start[:8].hex(" "))
    begin = 12 if start[6] == 2 else 10
    end = begin + int.from_bytes(start[8:begin], "little")
    if end > len(start):
        fact = f"The header of {name!r} is longer than the array, or than a header may be."
        raise corrupt(path, fact, header=f"{end:,} bytes", limit=f"{_LONGEST_HEADER:,}")
    text = start[begin:end].decode("latin1")
    try:
        with without_warnings():  # Python warns about odd literals
            # Python 2 wrote lengths as `3L`.
            header = ast.literal_eval(re.sub(r"(?<=\d)L(?=\s*[,)])", "", text).strip(" \n"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        header = None
    match header:
        case {"descr": str(descr), "fortran_order": bool(fortran), "shape": tuple(shape)} if len(
            header
        ) == 3 and re.fullmatch(r"[<>|=]?[?a-zA-Z]\d*", descr):
            sign = descr[0] if descr[0] in "<>|=" else "|"
            return sign + descr.lstrip("<>|="), fortran, shape, end
    fact = f"{name!r} has a header that does not describe an array of numbers."
    raise corrupt(path, fact, header=text.strip()[:80])


def _read(mapped: MappedFile, array: _StoredArray) -> torch.Tensor:
    import numpy as np

    member, shape = array.member, array.info.shape[::-1] if array.fortran else array.info.shape
    info = TensorInfo(dtype=array.info.dtype, shape=shape)
    if member.stored and not array.swapped and info.nbytes > _CHECKED:
        tensor = mapped.tensor(member.offset + array.offset, info)
    else:
        if member.stored:
            data = mapped.bytes_at(member.offset, member.size)
            checked_crc(mapped.path, member, data)
        else:
            data = member_bytes(mapped.path, member)
        elements = bytearray(memoryview(data)[array.offset :])
        if array.swapped:
            numbers = np.frombuffer(elements, f">{array.code}").astype(f"<{array.code}")
            elements = bytearray(numbers.data)
        tensor = tensor_from_buffer(elements, 0, info)
    return tensor.permute(tuple(reversed(range(len(shape))))) if array.fortran else tensor


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    _surroundings: Surroundings = ALONE,
) -> str:
    """Write tensors as numpy.savez does, but sorted by name, and each array where it can be mapped.

    bfloat16 becomes numpy's opaque two-byte type, as JAX stores it.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name or a dtype that npz cannot hold, or no place for the file.
    """
    from numpy.lib.format import write_array_header_1_0

    contents = checked_contents(tensors, list(DTYPES.values()), "npz")
    for name in contents:
        if "\0" in name or len(name.encode()) > _LONGEST_NAME:
            raise UsageError(
                "A tensor has a name that npz cannot hold.", evidence={"name": ascii(name)[:80]}
            )
    with (
        atomic_file(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name in sorted(contents):
            entry = _aligned_entry(f"{name}.npy", file.tell())
            with archive.open(entry, "w", force_zip64=True) as member:
                write_array_header_1_0(member, header_of(contents[name].info))
                for chunk in contents[name].chunks():
                    member.write(chunk)
    return file.sha256


def header_of(info: TensorInfo) -> dict[str, object]:
    """What a .npy says of an array of little-endian numbers in row-major order."""
    code = next(code for code, dtype in DTYPES.items() if dtype == info.dtype)
    sign = "|" if code[0] in "Vb" or code[1] == "1" else "<"
    return {"descr": sign + code, "fortran_order": False, "shape": info.shape}


def _aligned_entry(name: str, position: int) -> zipfile.ZipInfo:
    """An entry whose data begin at a multiple of the alignment when it is written at `position`."""
    entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
    entry.create_system = 3  # Unix on every system, for the same bytes everywhere
    # A local header is 30 bytes, the name, and the extra fields: ours, and 20 bytes of zip64.
    begin = position + 30 + len(name.encode()) + 20 + struct.calcsize("<HHH")
    padding = -begin % _ALIGNMENT
    entry.extra = struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + padding, _ALIGNMENT) + bytes(padding)
    return entry


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read an archive with numpy."""
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            yield name, arrays[name].shape, arrays[name].tobytes()
