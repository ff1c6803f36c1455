"""Images in tar archives, as WebDataset has them: files of one name belong together.

A sample is what stands together under one name up to the first dot: `0001.jpg`, `0001.cls`. Its
image has one of the suffixes of images; the others can be kept as text. Names that begin with a
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

from vitconvert.embedding.sources import (
    MOST_BYTES,
    MOST_TIMES,
    Item,
    Wanted,
    lowered,
    opened,
    text,
    too_large,
)
from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError
from vitconvert.preprocessing.finding import SUFFIXES

_MOST_TEXT = 2**20  # bytes of a file that is kept, and of what stands before a file
_MOST_IMAGES = 16  # of a sample, which is in memory; the next belong to another
# What tarfile raises on one; numbers of 88 bits overflow, and headers before headers recurse.
_DAMAGE = (
    *(tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError),
    *(OverflowError, RecursionError),
)


@dataclass
class _Sample:
    """Images of one name, and the text that is kept of what stands beside them."""

    name: str
    images: list[tuple[str, bytes | VitConvertError]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


def read(file: str, key: str, kept: Mapping[str, str], wanted: Wanted) -> Iterator[Item]:
    """The images of an archive that are wanted, in order, each with the files beside it.

    An archive is read once, from its begin to its end; one that ends early is a failure more.

    Args:
        file: A path or a URL.
        key: What it is called.
        kept: Suffixes of files that are kept -> the columns that they become.
        wanted: Says of each key whether the image is.

    Raises:
        SourceError: It cannot be read.
        CorruptFile: It is no tar archive.
        UnsafeFile: It unpacks to far more than it is.
    """
    with _opened(file) as archive:
        for sample in _samples(archive, key, kept, wanted):
            for name, picture in sample.images:
                yield Item(name, picture, sample.texts)
        if not _is_whole(archive) and wanted(f"{key}#end"):
            yield Item(f"{key}#end", _cut(file))


def _cut(file: str) -> CorruptFile:
    return CorruptFile("The archive ends early.", evidence={"archive": file})


def _samples(
    archive: tarfile.TarFile, key: str, kept: Mapping[str, str], wanted: Wanted
) -> Iterator[_Sample]:
    sample = None
    for member in _members(archive):
        folder, _, base = member.name.rpartition("/")
        if not member.isfile() or base.startswith("."):
            continue
        name = f"{folder}/{base.partition('.')[0]}"
        if sample is None or sample.name != name or len(sample.images) == _MOST_IMAGES:
            if sample:
                yield sample
            sample = _Sample(name)
        kind = base.partition(".")[2].lower()
        if member.name.lower().endswith(SUFFIXES):
            image = text(f"{key}/{member.name}")
            if wanted(image):
                sample.images.append((image, _content(archive, member)))
        elif kind in kept and member.size <= _MOST_TEXT:
            content = _content(archive, member)
            if isinstance(content, bytes):
                sample.texts[kept[kind]] = content.decode("utf-8", errors="replace").strip()
    if sample:
        yield sample


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
def _opened(file: str) -> Iterator[tarfile.TarFile]:
    with ExitStack() as held:
        stream: Any = held.enter_context(opened(file))
        found = (unpack for end, unpack in _COMPRESSIONS.items() if lowered(file).endswith(end))
        if unpacking := next(found, None):
            most = 2 * MOST_BYTES + MOST_TIMES * stream.size()
            stream = _Unpacked(held.enter_context(unpacking(stream)), most, file)
        try:
            bounded: Any = _Bounded(stream)
            archive = held.enter_context(tarfile.open(fileobj=bounded, mode="r:"))
        except _DAMAGE as error:
            raise CorruptFile(
                "This is no tar archive, or a damaged one.",
                evidence={"archive": file, "why": error},
            ) from None
        yield archive


_COMPRESSIONS: dict[str | tuple[str, ...], Callable[[Any], Any]] = {
    (".gz", ".tgz"): gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
