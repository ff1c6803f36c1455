"""The directory of a zip archive, checked before anything is inflated.

torch checkpoints and npz files are both zip archives. `zipfile` reads the directory. Checked here
is that no other reader of zip archives reads other numbers, and that what is inflated fits in
memory.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitconvert.errors import UnsafeFile
from vitconvert.formats.headers import AGAIN, corrupt

# Deflate shortens nothing more than 1,032 times, and weights by a tenth. Files that any machine can
# hold may be all zeros.
MOST_INFLATION = 1000
FREE_INFLATION = 64 * 2**20

_DIRECTORY = 0x10  # among the attributes of DOS
_ENCRYPTED = 0x2041  # flags: by a password, strongly, or with its names

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
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries, begin = archive.infolist(), archive.start_dir
    except BROKEN_ZIP as error:
        raise corrupt(
            path,
            "The file begins as a zip archive, but its directory, at the end, cannot be read.",
            meaning="The file is probably truncated.",
            hint=AGAIN,
            reason=error,
            found=f"{path.stat().st_size:,} bytes",
        ) from error
    asked = sum(entry.file_size for entry in entries)
    refuse_bomb(path, path.stat().st_size, asked, "The archive")
    _refuse_strange_entries(path, entries)
    members: dict[str, Member] = {}
    position, before = 0, "the beginning of the file"
    with path.open("rb") as file:
        _check_end(path, file, begin, len(entries))
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            if entry.header_offset < position:
                raise corrupt(path, f"{before} and {entry.filename!r} overlap in the archive.")
            member = _located(path, file, entry)
            position, before = member.offset + entry.compress_size, repr(member.name)
            members[member.name] = member
    if position > begin:
        raise corrupt(path, f"{before} and the directory of the archive overlap.")
    return {entry.filename: members[entry.filename] for entry in entries}


def member_bytes(path: Path, member: Member) -> bytes:
    """The contents of a member, inflated, once their CRC is known to be right.

    Raises:
        CorruptFile: They are damaged.
    """
    with reading(path, member):
        if member.stored:  # without zipfile, which would read the whole directory once more
            with path.open("rb") as file:
                file.seek(member.offset)
                data = file.read(member.size)
            checked_crc(path, member, data)
        else:
            with zipfile.ZipFile(path) as archive:
                data = archive.read(member.name)
        if len(data) != member.size:
            raise EOFError(f"{len(data):,} bytes instead of {member.size:,}")
    return data


def checked_crc(path: Path, member: Member, data: bytes | memoryview) -> None:
    """Compare the bytes of a stored member with the archive's checksum.

    Raises:
        CorruptFile: It is that of other bytes.
    """
    with reading(path, member):
        if zlib.crc32(data) != member.crc:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.name!r}")


@contextmanager
def reading(path: Path, member: Member) -> Iterator[None]:
    """Whatever zipfile raises inside becomes an error that names the member."""
    try:
        yield
    except BROKEN_ZIP as error:
        fact = f"{member.name!r} cannot be read from the archive."
        raise corrupt(path, fact, hint=AGAIN, reason=error) from error


def refuse_bomb(path: Path, size: int, asked: int, what: str) -> None:
    """Make sure that what is on disk justifies the memory that its content takes.

    Args:
        path: The file.
        size: Bytes on disk.
        asked: Bytes of the content.
        what: The subject of the sentence that refuses it.

    Raises:
        UnsafeFile: The content is far larger.
    """
    if asked > (limit := FREE_INFLATION + MOST_INFLATION * size):
        raise UnsafeFile(
            f"{what} would take far more memory than the file has bytes.",
            evidence={
                "file": path,
                "on disk": f"{size:,} bytes",
                "in memory": f"{asked:,} bytes",
                "limit": f"{limit:,} bytes",
            },
            meaning="Weights hardly compress; a file like this is made to exhaust memory.",
        )


def _refuse_strange_entries(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    counted = Counter(entry.filename for entry in entries)
    for entry in entries:
        stored = entry.compress_type == zipfile.ZIP_STORED
        if counted[entry.filename] > 1:
            fact = f"The archive holds {entry.filename!r} more than once."
        elif not stored and entry.compress_type != zipfile.ZIP_DEFLATED:
            fact = f"{entry.filename!r} is compressed in a way that is not read here."
        elif entry.filename.endswith("/") or entry.external_attr & _DIRECTORY:
            fact = f"{entry.filename!r} is called a directory, so that some readers find it empty."
        elif entry.volume:
            fact = f"{entry.filename!r} is in another part of an archive in several files."
        elif entry.flag_bits & _ENCRYPTED:
            fact = f"{entry.filename!r} is encrypted."
        elif stored and entry.compress_size != entry.file_size:
            fact = f"{entry.filename!r} has two different sizes in the archive's directory."
        else:
            continue
        raise corrupt(path, fact)


def _check_end(path: Path, file: BinaryIO, begin: int, count: int) -> None:
    """Compare what an archive ends with with the directory that zipfile found.

    zipfile looks for the directory before this end; others go where it points to. The end is 22
    bytes; in archives with zip64, a record of 56 and a locator of 20 stand before it (APPNOTE.TXT
    6.3.10, 4.3.14 to 4.3.16).
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - 98, 0))
    tail = file.read().rjust(98, b"\0")
    record = struct.unpack("<4sQ4x2I4Q", tail[:56])
    locator = struct.unpack("<4sIQI", tail[56:76])
    end = struct.unpack("<4s2H2H2IH", tail[76:])
    has_record = locator[0] == b"PK\6\7"
    length = size - (98 if has_record else 22) - begin
    plain = (b"PK\5\6", 0, 0, count, count, length, begin, 0)
    if has_record:
        full = (b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0)
        agrees = all(found in pair for found, *pair in zip(end, plain, full, strict=True))
        agrees &= record == (b"PK\6\6", 44, 0, 0, count, count, length, begin)
        agrees &= locator == (b"PK\6\7", 0, size - 98, 1)
    else:
        agrees = end == plain
    if not agrees:
        fact = "The end of the archive contradicts its directory."
        raise corrupt(path, fact, hint=AGAIN, directory=begin, members=count)


def _located(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> Member:
    """Find the bytes of a member: a header of 30 bytes, a name and an extra field precede them.

    Source: APPNOTE.TXT 6.3.10, 4.3.7.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(min(entry.header_offset, size))
    header = file.read(30).ljust(30, b"\0")
    name_length, extra_length = struct.unpack_from("<HH", header, 26)
    offset = entry.header_offset + 30 + name_length + extra_length
    if header[:4] != b"PK\3\4" or offset + entry.compress_size > size:
        fact = f"The archive's directory gives a wrong position for {entry.filename!r}."
        raise corrupt(path, fact, position=entry.header_offset)
    return Member(
        name=entry.filename,
        size=entry.file_size,
        crc=entry.CRC,
        stored=entry.compress_type == zipfile.ZIP_STORED,
        offset=offset,
    )
