"""The directory of a zip archive, checked before anything is inflated.

torch checkpoints and npz files are both zip archives. Where their members lie is checked here,
because a directory may be wrong on purpose: about sizes, to exhaust memory, and about positions.
"""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import SEEK_END
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from vitconvert.errors import CorruptFile, UnsafeFile

# Weights deflate by a tenth, and the zeros of a fresh head or optimiser, which deflate a
# thousandfold, are a small part of a file that also holds weights. So the members of a file may
# inflate to 20 times its size, plus 64 MiB, which any machine can spare and which lets tiny
# models be all zeros. A bomb asks for 1000 times its size.
MOST_INFLATION = 20
FREE_INFLATION = 64 * 2**20

BROKEN_ZIP = (
    zipfile.BadZipFile,
    NotImplementedError,  # a feature of zip that zipfile does not have
    ValueError,  # a negative offset, an undecodable name
    OSError,
    EOFError,
    zlib.error,
)
"""What zipfile raises for archives that are damaged."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file of an archive: its inflated size and CRC, and where its bytes begin."""

    name: str
    size: int
    crc: int
    stored: bool
    offset: int


def zip_members(path: Path) -> dict[str, Member]:
    """The members of an archive by name, known to lie inside the file and to fit in memory.

    Raises:
        CorruptFile: The archive is truncated, or its directory contradicts the file.
        UnsafeFile: The members would inflate to far more than the size of the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except BROKEN_ZIP as error:
        raise CorruptFile(
            "The file begins as a zip archive, but its directory, at the end, cannot be read.",
            evidence={"file": path, "reason": error, "found": f"{path.stat().st_size:,} bytes"},
            meaning="The file is probably truncated.",
            hint="download it again.",
        ) from error
    _refuse_bombs(path, entries)
    _refuse_strange_entries(path, entries)
    with path.open("rb") as file:
        return {entry.filename: _located(path, file, entry) for entry in entries}


def member_bytes(path: Path, member: Member) -> bytes:
    """The contents of a member, inflated.

    Raises:
        CorruptFile: They are damaged.
    """
    with reading(path, member), zipfile.ZipFile(path) as archive:
        return archive.read(member.name)


@contextmanager
def reading(path: Path, member: Member) -> Iterator[None]:
    """Whatever zipfile raises inside becomes an error that names the member."""
    try:
        yield
    except BROKEN_ZIP as error:
        raise CorruptFile(
            f"{member.name!r} cannot be read from the archive.",
            evidence={"file": path, "reason": error},
            hint="download it again.",
        ) from error


def _refuse_bombs(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    size = path.stat().st_size
    inflated = sum(entry.file_size for entry in entries)
    if inflated > FREE_INFLATION + MOST_INFLATION * size:
        raise UnsafeFile(
            "The archive would inflate to far more than its size.",
            evidence={
                "file": path,
                "on disk": f"{size:,} bytes",
                "inflated": f"{inflated:,} bytes",
                "limit": f"{FREE_INFLATION + MOST_INFLATION * size:,} bytes",
            },
            meaning="Weights hardly compress; an archive like this is made to exhaust memory.",
        )


def _refuse_strange_entries(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    repeated = [
        name for name, count in Counter(entry.filename for entry in entries).items() if count > 1
    ]
    if repeated:
        raise CorruptFile(
            f"The archive holds {repeated[0]!r} more than once.", evidence={"file": path}
        )
    for entry in entries:
        stored = entry.compress_type == zipfile.ZIP_STORED
        if not stored and entry.compress_type != zipfile.ZIP_DEFLATED:
            fact = f"{entry.filename!r} is compressed in a way that is not read here."
        elif entry.flag_bits & 1:
            fact = f"{entry.filename!r} is encrypted."
        elif stored and entry.compress_size != entry.file_size:
            fact = f"{entry.filename!r} has two different sizes in the archive's directory."
        else:
            continue
        raise CorruptFile(fact, evidence={"file": path})
    for first, second in pairwise(sorted(entries, key=lambda entry: entry.header_offset)):
        if first.header_offset + first.compress_size > second.header_offset:
            raise CorruptFile(
                f"{first.filename!r} and {second.filename!r} overlap in the archive.",
                evidence={"file": path},
            )


def _located(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> Member:
    size = file.seek(0, SEEK_END)
    # The directory points to a local header of 30 bytes, whose last four are the lengths of a
    # name and of an extra field; the data follow (APPNOTE.TXT 6.3.10, 4.3.7).
    file.seek(min(max(entry.header_offset, 0), size))
    header = file.read(30)
    name_length = int.from_bytes(header[26:28], "little")
    extra_length = int.from_bytes(header[28:30], "little")
    offset = entry.header_offset + 30 + name_length + extra_length
    if header[:4] != b"PK\3\4" or offset + entry.compress_size > size:
        raise CorruptFile(
            f"The archive's directory gives a wrong position for {entry.filename!r}.",
            evidence={"file": path, "position": entry.header_offset},
        )
    return Member(
        name=entry.filename,
        size=entry.file_size,
        crc=entry.CRC,
        stored=entry.compress_type == zipfile.ZIP_STORED,
        offset=offset,
    )
