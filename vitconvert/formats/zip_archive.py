"""The directory of a zip archive, checked before anything is inflated.

torch checkpoints and npz files are both zip archives. Where their members lie is checked here,
because a directory may be wrong on purpose: about sizes, to exhaust memory, and about positions.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitconvert.errors import UnsafeFile
from vitconvert.formats.headers import AGAIN, corrupt

# Weights deflate by a tenth, and the zeros of a fresh head or optimiser, which deflate a
# thousandfold, are a small part of a file that also holds weights. So the members of a file may
# inflate to 20 times its size, plus 64 MiB, which any machine can spare and which lets tiny
# models be all zeros. A bomb asks for 1000 times its size.
MOST_INFLATION = 20
FREE_INFLATION = 64 * 2**20

_DIRECTORY = 0x10  # among the attributes of DOS
_DESCRIPTOR_FOLLOWS, _UTF8 = 0x8, 0x800  # flags: sizes and CRC follow the bytes; encoding

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

    Other readers of zip archives trust other copies of the facts about a member: that in
    the directory, or that before the member's bytes. An archive whose copies differ is refused.

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
    with path.open("rb") as file:
        _check_end(path, file, begin, len(entries))
        members = {entry.filename: _located(path, file, entry) for entry in entries}
    _refuse_overlaps(path, entries, members, begin)
    return members


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
    repeated = [
        name for name, count in Counter(entry.filename for entry in entries).items() if count > 1
    ]
    if repeated:
        raise corrupt(path, f"The archive holds {repeated[0]!r} more than once.")
    for entry in entries:
        stored = entry.compress_type == zipfile.ZIP_STORED
        if not stored and entry.compress_type != zipfile.ZIP_DEFLATED:
            fact = f"{entry.filename!r} is compressed in a way that is not read here."
        elif entry.filename.endswith("/") or entry.external_attr & _DIRECTORY:
            fact = f"{entry.filename!r} is called a directory, so that some readers find it empty."
        elif entry.volume:
            fact = f"{entry.filename!r} lies in another part of an archive in several files."
        elif entry.flag_bits & 1:
            fact = f"{entry.filename!r} is encrypted."
        elif stored and entry.compress_size != entry.file_size:
            fact = f"{entry.filename!r} has two different sizes in the archive's directory."
        elif entry.filename != entry.orig_filename:
            fact = f"{entry.filename!r} has a name that readers of zip archives take differently."
        else:
            continue
        raise corrupt(path, fact)


def _check_end(path: Path, file: BinaryIO, begin: int, count: int) -> None:
    """Compare what an archive ends with with the directory that zipfile found.

    zipfile looks for the directory before this end; others go where it points to. The end is 22
    bytes; in archives with zip64, a locator of 20 and a record of 56 stand before them (APPNOTE.TXT
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
    if agrees:  # and the entries, by the lengths of their parts, are as long as the directory
        file.seek(begin)
        directory, place = file.read(length), 0
        for _ in range(count):
            if place + 46 > length:
                agrees = False
                break
            place += 46 + sum(struct.unpack_from("<3H", directory, place + 28))
        agrees &= place == length
    if not agrees:
        raise corrupt(
            path,
            "The end of the archive contradicts its directory.",
            hint=AGAIN,
            directory=begin,
            members=count,
        )


def _located(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> Member:
    size = file.seek(0, io.SEEK_END)
    # The directory points to a local header of 30 bytes, then a name and an extra field; the data
    # follow (APPNOTE.TXT 6.3.10, 4.3.7).
    file.seek(min(max(entry.header_offset, 0), size))
    header = file.read(30).ljust(30, b"\0")
    signature, flags, method, crc, packed, whole, name_length, extra_length = struct.unpack(
        "<4s2xHH4xIIIHH", header
    )
    name, extra = file.read(name_length), file.read(extra_length)
    offset = entry.header_offset + 30 + name_length + extra_length
    if signature != b"PK\3\4" or offset + entry.compress_size > size:
        fact = f"The archive's directory gives a wrong position for {entry.filename!r}."
        raise corrupt(path, fact, position=entry.header_offset)
    here: tuple[object, ...] = (name, flags, method)
    encoded = entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF8 else "cp437")
    there: tuple[object, ...] = (encoded, entry.flag_bits, entry.compress_type)
    if not flags & _DESCRIPTOR_FOLLOWS:
        here += (crc, *_zip64_sizes(packed, whole, extra))
        there += (entry.CRC, entry.compress_size, entry.file_size)
    if here != there:
        places = {"before its bytes": str(here)[:200], "in the directory": str(there)[:200]}
        fact = f"The archive says two different things of {entry.filename!r}."
        raise corrupt(path, fact, hint=AGAIN, **places)
    return Member(
        name=entry.filename,
        size=entry.file_size,
        crc=entry.CRC,
        stored=entry.compress_type == zipfile.ZIP_STORED,
        offset=offset,
    )


def _zip64_sizes(packed: int, whole: int, extra: bytes) -> tuple[int, int]:
    """The packed size and the whole one, which may stand in an extra field instead."""
    while packed == whole == 2**32 - 1 and len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        if kind == 1 and length >= 16 and len(extra) >= 20:
            whole, packed = struct.unpack("<QQ", extra[4:20])
            break
        extra = extra[4 + length :]
    return packed, whole


def _refuse_overlaps(
    path: Path, entries: list[zipfile.ZipInfo], members: Mapping[str, Member], directory: int
) -> None:
    """Each member, with what stands before it, must end before the next begins."""
    position, before = 0, "the beginning of the file"
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < position:
            raise corrupt(path, f"{before} and {entry.filename!r} overlap in the archive.")
        position = members[entry.filename].offset + entry.compress_size
        before = repr(entry.filename)
    if position > directory:
        raise corrupt(path, f"{before} and the directory of the archive overlap.")
