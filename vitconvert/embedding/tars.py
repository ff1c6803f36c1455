"""Images in tar archives, as WebDataset has them: files of one name belong together.

A sample is what stands together under one name up to the first dot: `0001.jpg`, `0001.cls`. Its
image has one of the suffixes of images; the others can go along as text. Names that begin with a
dot are left out.
Source: github.com/webdataset/webdataset, "The WebDataset Format".
"""

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from vitconvert.embedding.places import (
    MOST_BYTES,
    MOST_TIMES,
    check_state,
    lowered,
    opened,
    too_large,
)
from vitconvert.embedding.units import Item, Unit, key_of
from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError
from vitconvert.preprocessing.finding import SUFFIXES

_MOST_TEXT = 2**20  # bytes of a file that goes along, and of what stands before a file
_ENDLESS = 2**63
_MOST_IMAGES = 16  # of a sample, which is in memory; the next belong to another
# What tarfile raises on one; numbers of 88 bits overflow, and headers before headers recurse.
_DAMAGE = (
    *(tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError),
    *(OverflowError, RecursionError),
)


@dataclass
class _Sample:
    """Images of one name, where they begin, and the text beside them."""

    name: str
    offset: int
    images: list[tuple[str, bytes | VitConvertError]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


def split(file: str, rows: int) -> Iterator[tuple[int, int, bool]]:
    """Where in an archive units begin, how many images each has, and whether the tar ends early.

    A compressed one is one unit: whoever begins in its middle unpacks all that is before.

    Raises:
        CorruptFile: It is no tar archive.
        UnsafeFile: It unpacks to far more than it is.
    """
    rows = _ENDLESS if _unpacking(file) else rows
    begin, count, ends_early = 0, 0, False
    for sample in _samples(file, 0, kept={}, contents=False):
        if not sample.images:
            ends_early = sample.name == _CUT
            continue
        if count and count + len(sample.images) > rows:
            yield begin, count, False
            begin, count = sample.offset, 0
        count += len(sample.images)
    if count or ends_early:
        yield begin, count + ends_early, ends_early


def read(unit: Unit, kept: Mapping[str, str]) -> Iterator[Item]:
    """The images of a unit, in order, each with the files beside it that are kept.

    Args:
        unit: Of a tar.
        kept: Suffixes of files that go along -> the columns that they become.

    Raises:
        SourceError: The archive is gone, another than when the plan was made, or cannot be read.
    """
    check_state(unit.place, unit.state)
    key = key_of(unit.file)
    left = unit.rows - unit.ends_early
    for sample in _samples(unit.place, unit.begin, kept, contents=True):
        for name, picture in sample.images[:left]:
            yield Item(f"{key}/{name}", picture, sample.texts)
            left -= 1
        if not left:
            break
    for number in range(left + unit.ends_early):
        yield Item(f"{key}#{number}", _cut(unit.file))


_CUT = "\0"  # stands for what is missing at the end: no file of an archive is called so


def _cut(file: str) -> CorruptFile:
    return CorruptFile("The archive ends early.", evidence={"archive": file})


def _samples(
    file: str, begin: int, kept: Mapping[str, str], *, contents: bool
) -> Iterator[_Sample]:
    """Samples from a place on; the last is called `_CUT` if the archive ends early."""
    sample = None
    with _opened(file, begin) as archive:
        for member in _members(archive):
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            if base.startswith("."):
                continue
            name = f"{folder}/{base.partition('.')[0]}"
            if sample is None or sample.name != name or len(sample.images) == _MOST_IMAGES:
                if sample:
                    yield sample
                sample = _Sample(name, member.offset)
            _add(sample, archive, member, kept, contents=contents)
        if sample:
            yield sample
        if not _is_whole(archive):
            yield _Sample(_CUT, 0)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Its members, up to where it is damaged."""
    while True:
        try:
            member = archive.next()
        except _DAMAGE:
            return
        # A negative size would lead back, for ever (CVE-2025-8194).
        if member is None or archive.offset <= member.offset:
            return
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep all
        yield member


def _is_whole(archive: tarfile.TarFile) -> bool:
    """Whether a block of zeros stands where its members end."""
    try:
        archive.fileobj.seek(archive.offset)
        return archive.fileobj.read(512) == bytes(512)
    except _DAMAGE:
        return False


def _add(
    sample: _Sample,
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    kept: Mapping[str, str],
    *,
    contents: bool,
) -> None:
    kind = member.name.rpartition("/")[2].partition(".")[2].lower()
    if member.name.lower().endswith(SUFFIXES):
        picture: bytes | VitConvertError = b""
        if contents:
            picture = _content(archive, member)
        sample.images.append((member.name, picture))
    elif contents and kind in kept and member.size <= _MOST_TEXT:
        content = _content(archive, member)
        if isinstance(content, bytes):
            sample.texts[kept[kind]] = content.decode("utf-8", errors="replace").strip()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | VitConvertError:
    if member.size > MOST_BYTES:
        return too_large(member.name)
    if member.issparse():  # a few bytes may stand for any number of zeros
        return CorruptFile("The image has holes.", evidence={"image": member.name})
    file: _Bounded = archive.fileobj  # type: ignore[assignment]
    try:
        file.seek(member.offset_data)
        content = file.read(member.size, most=MOST_BYTES)
    except _DAMAGE:
        return _cut(member.name)
    return content if len(content) == member.size else _cut(member.name)


class _Bounded:
    """A file of which no more is read at a time than headers have.

    Before a file, there may be headers of any declared size, which tarfile reads whole; of a
    compressed archive, its own size does not bound them.
    """

    def __init__(self, file: "IO[bytes] | _Unpacked") -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int, *, most: int = _MOST_TEXT) -> bytes:
        """The next bytes."""
        if not 0 <= size <= most:
            raise tarfile.ReadError("too much before a file")
        return self._file.read(size)


class _Unpacked:
    """A compressed file, unpacked once: only the last block can be read again, as tarfile does.

    Args:
        file: What unpacks it.
        most: How many bytes it may become.
        name: What it is called.
    """

    def __init__(self, file: IO[bytes], most: int, name: str) -> None:
        self._file, self._most, self._name = file, most, name
        self._last = b""
        self._place = self._end = 0  # where is read, and how far it is unpacked

    def tell(self) -> int:
        """Where it is."""
        return self._place

    def seek(self, offset: int) -> int:
        """Go to a place; to the end, if that is before it."""
        if offset < self._end - len(self._last):
            raise tarfile.ReadError("a place that was passed")
        self._place = min(offset, self._end)
        while self._place < offset and self.read(min(_MOST_TEXT, offset - self._place)):
            pass
        return self._place

    def read(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            UnsafeFile: There are more of them than its size justifies.
        """
        again = self._last[len(self._last) - (self._end - self._place) :][:size]
        new = self._file.read(size - len(again)) if len(again) < size else b""
        self._last = (self._last + new[-tarfile.BLOCKSIZE :])[-tarfile.BLOCKSIZE :]
        self._place += len(again) + len(new)
        self._end += len(new)
        if self._end > self._most:
            raise UnsafeFile(
                "The archive unpacks to far more than it is.",
                evidence={"archive": self._name, "limit": f"{self._most:,} bytes"},
                hint="if that is right, unpack it, and name the folder.",
            )
        return again + new


@contextmanager
def _opened(file: str, begin: int) -> Iterator[tarfile.TarFile]:
    """An archive from a place on, where a member begins; of a compressed one, when unpacked."""
    with ExitStack() as held:
        stream: Any = held.enter_context(opened(file))
        if unpacking := _unpacking(file):
            most = 2 * MOST_BYTES + MOST_TIMES * stream.size()
            stream = _Unpacked(held.enter_context(unpacking(stream)), most, file)
        try:
            stream.seek(begin)
            bounded: Any = _Bounded(stream)
            archive = held.enter_context(tarfile.open(fileobj=bounded, mode="r:"))
        except _DAMAGE as error:
            raise CorruptFile(
                "This is no tar archive, or a damaged one.",
                evidence={"archive": file, "why": error},
            ) from None
        yield archive


def _unpacking(file: str) -> Callable[[Any], Any] | None:
    found = (unpack for end, unpack in _COMPRESSIONS.items() if lowered(file).endswith(end))
    return next(found, None)


_COMPRESSIONS: dict[str | tuple[str, ...], Callable[[Any], Any]] = {
    (".gz", ".tgz"): gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
