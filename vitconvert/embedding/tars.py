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
from contextlib import ExitStack
from typing import IO, Any

from vitconvert.embedding.files import (
    MOST_BYTES,
    MOST_TIMES,
    InputFile,
    Item,
    Wanted,
    grouped,
    lowered,
    opened,
    text,
    too_large,
)
from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError
from vitconvert.preprocessing.finding import SUFFIXES

_MOST_TEXT = 2**20  # bytes of a file that is kept, and of what stands before a file
_MOST_HEADERS = 256  # that are read before the files between them
_MOST_IMAGES = 16  # of a sample, which is in memory; the next belong to another
# What tarfile raises on one; numbers of 88 bits overflow, and headers before headers recurse.
_DAMAGE = (
    *(tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError),
    *(OverflowError, RecursionError),
)
_COMPRESSIONS: dict[str | tuple[str, ...], Callable[[Any], Any]] = {
    (".gz", ".tgz"): gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


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
        UnsafeFile: It unpacks to far more than its size.
    """
    with ExitStack() as held:
        stream = _Forward(held.enter_context(opened(file)), file, held)
        try:
            archive = held.enter_context(tarfile.open(fileobj=stream, mode="r:"))  # type: ignore[call-overload]
        except _DAMAGE as error:
            raise CorruptFile(
                "This is not a tar archive, or it is damaged.",
                evidence={"archive": file, "why": error},
            ) from None
        sample: list[tuple[str, bytes | VitConvertError]] = []
        texts: dict[str, str] = {}
        last, size = "", 0
        for member, image, is_wanted in _asked(archive, stream, key, wanted):
            folder, _, base = member.name.rpartition("/")
            name, _, kind = base.partition(".")
            if last != f"{folder}/{name}" or len(sample) == _MOST_IMAGES or size > MOST_BYTES:
                yield from (Item(image, picture, texts) for image, picture in sample)
                sample, texts, last, size = [], {}, f"{folder}/{name}", 0
            if image:
                if is_wanted:
                    sample.append((image, stream.content(member)))
                    size += member.size
            elif kind.lower() in kept and member.size <= _MOST_TEXT:
                content = stream.content(member)
                if isinstance(content, bytes):
                    found = content.decode("utf-8", errors="replace").strip()
                    texts[kept[kind.lower()]] = found
        yield from (Item(image, picture, texts) for image, picture in sample)
        # tarfile stays before the block of zeros that ends an archive.
        ended = stream.header == bytes(512) and stream.after == archive.offset + 512
        if not ended and wanted([f"{key}#end"])[0]:
            yield Item(f"{key}#end", _cut(file))


def _asked(
    archive: tarfile.TarFile, stream: "_Forward", key: str, wanted: Wanted
) -> Iterator[tuple[tarfile.TarInfo, str, bool]]:
    """Files; of an image its key, and whether it is wanted: asked for many, if one can go back."""
    for group in grouped(_members(archive), 1 if stream.packed else _MOST_HEADERS):
        images = [
            text(f"{key}/{member.name}") if member.name.lower().endswith(SUFFIXES) else ""
            for member in group
        ]
        answers = iter(wanted(list(filter(None, images))))
        for member, image in zip(group, images, strict=True):
            yield member, image, bool(image) and next(answers)


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
        if member.isfile() and not member.name.rpartition("/")[2].startswith("."):
            yield member


def _cut(file: str) -> CorruptFile:
    return CorruptFile("The archive ends early.", evidence={"archive": file})


class _Forward:
    """A file as tarfile reads it: from its begin to its end, with bounds that tarfile has not.

    Before a member, there may be headers of any declared size, which tarfile reads whole. A
    compressed file is unpacked once, and to no more than its size justifies.

    Args:
        file: A plain file, or a compressed one.
        name: What it is called; its suffix tells.
        held: Closes what unpacks it.
    """

    def __init__(self, file: InputFile, name: str, held: ExitStack) -> None:
        self._name = name
        self._file: InputFile | IO[bytes] = file
        found = (unpack for end, unpack in _COMPRESSIONS.items() if lowered(name).endswith(end))
        self._most: int | None = None
        if unpack := next(found, None):
            self._most = 2 * MOST_BYTES + MOST_TIMES * file.size()
            self._file = held.enter_context(unpack(file))
        self.packed = self._most is not None
        self._place = self.after = 0
        self.header = b""  # the last thing that was read of them, which ends at `after`

    def tell(self) -> int:
        """Where it is."""
        return self._place

    def seek(self, offset: int) -> int:
        """Go forward to a place; of a compressed file, to its end if that comes before."""
        if self._most is None:
            self._place = self._file.seek(offset)
        elif offset < self._place:
            raise tarfile.ReadError("a place that was passed")
        while self._place < offset and self._take(min(_MOST_TEXT, offset - self._place)):
            pass
        return self._place

    def read(self, size: int) -> bytes:
        """The next bytes of headers."""
        if not 0 <= size <= _MOST_TEXT:
            raise tarfile.ReadError("too much before a file")
        self.header = self._take(size)
        self.after = self._place
        return self.header

    def _take(self, size: int) -> bytes:
        found = self._file.read(size)
        self._place += len(found)
        if self._most is not None and self._place > self._most:
            raise UnsafeFile(
                "The archive unpacks to far more than its size.",
                evidence={"archive": self._name, "limit": f"{self._most:,} bytes"},
                hint="if that is right, unpack it, and name the folder.",
            )
        return found

    def content(self, member: tarfile.TarInfo) -> bytes | VitConvertError:
        """The content of a member, or why there is none."""
        if member.size > MOST_BYTES:
            return too_large(member.name)
        if member.issparse():  # a few bytes may stand for any number of zeros
            return CorruptFile("The image has holes.", evidence={"image": member.name})
        try:
            self.seek(member.offset_data)
            content = self._take(member.size)
        except _DAMAGE:
            return _cut(member.name)
        return content if len(content) == member.size else _cut(member.name)
