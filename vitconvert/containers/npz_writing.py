"""Named tensors to an npz archive: uncompressed, and each array where it can be mapped.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from typing import IO

from vitconvert.containers.boxes import Room
from vitconvert.containers.container import TensorInfo
from vitconvert.containers.content import Content
from vitconvert.containers.npz_file import DTYPES
from vitconvert.containers.sequential_writer import SequentialWriter

__all__ = ["DTYPES", "write_npz_archive"]

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can tell
_NPY_ALIGNMENT = 64  # numpy pads its headers so that data begin at a multiple of this
_ALIGNMENT_FIELD = 0xD935  # the extra field that Android's zipalign pads with


def write_npz_archive(file: SequentialWriter, contents: Mapping[str, Content], room: Room) -> None:
    """Write tensors as numpy.savez does, sorted by name.

    Args:
        file: Where; nothing has been written to it.
        contents: The tensors by name.
        room: What they are read into.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            entry = _aligned_entry(f"{name}.npy", file.tell())
            with archive.open(entry, "w", force_zip64=True) as member:
                _write_npy_header(member, contents[name].info)
                for chunk in contents[name].chunks(room):
                    member.write(chunk)


def _aligned_entry(name: str, position: int) -> zipfile.ZipInfo:
    """An entry whose data begin at a multiple of the alignment when it is written at `position`."""
    entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
    entry.create_system = 3  # Unix on every system, for the same bytes everywhere
    # A local header is 30 bytes, the name, and the extra fields: ours, and 20 bytes of zip64.
    begin = position + 30 + len(name.encode()) + 20 + struct.calcsize("<HHH")
    padding = -begin % _NPY_ALIGNMENT
    entry.extra = struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + padding, _NPY_ALIGNMENT) + bytes(
        padding
    )
    return entry


def _write_npy_header(file: IO[bytes], info: TensorInfo) -> None:
    from numpy.lib.format import write_array_header_1_0

    codes = {dtype: code for code, dtype in DTYPES.items()}
    code = codes[info.dtype]
    sign = "|" if code[0] in "Vb" or code[1] == "1" else "<"
    write_array_header_1_0(
        file, {"descr": sign + code, "fortran_order": False, "shape": info.shape}
    )
