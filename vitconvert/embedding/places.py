"""Files of the input, here or behind a URL: which there are, what they are like, their bytes."""

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from vitconvert.embedding.folders import filesystem, open_regular
from vitconvert.errors import IntegrityError, SourceError, UnsafeFile
from vitconvert.inference.batches import Picture
from vitconvert.preprocessing.finding import SUFFIXES, find_images

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PARQUETS = (".parquet",)
_EVERY = (*SUFFIXES, *TARS, *PARQUETS)

# Of an image that is read whole: more than the largest photographs have. Some twenty are in memory.
MOST_BYTES = 2**27
# Of what is packed together, for each byte that it has: images hardly shrink.
MOST_TIMES = 100


class Found(NamedTuple):
    """A file of the input.

    Attributes:
        name: Its path or URL, as it was given or found.
        group: The sub-folder of the source that it lies in: with many datasets, its class.
        state: As `state_of`; None if it could not be asked for.
    """

    name: str
    group: str | None
    state: tuple[int, int] | None


def is_url(source: str) -> bool:
    """Whether this names a place of an object store."""
    return "://" in source


def lowered(name: str) -> str:
    """A name whose end tells the kind of file: a URL's without what follows a question mark."""
    return (name.partition("?")[0] if is_url(name) else name).lower()


def absolute(name: str) -> str:
    """A name that leads to the same file from any directory."""
    return name if is_url(name) else os.path.abspath(name)  # noqa: PTH100 (a Path drops ..)


def find(sources: Iterable[str], *, recursive: bool) -> Iterator[Found]:
    """The images, tars and Parquet files that sources name, in order, as they are found.

    A source is a file, a folder (sorted by name, without hidden files), a pattern, or a URL of a
    file or a folder. One that leads nowhere is kept as it is: reading it tells why.
    """
    for source in sources:
        if is_url(source):
            yield from _remote(source, recursive=recursive)
            continue
        inside = os.path.join(source, "")  # noqa: PTH118 (a Path drops ./)
        for path in find_images(source, recursive=recursive, suffixes=_EVERY):
            name = str(path)
            group, slash, _ = name.removeprefix(os.path.normpath(inside) + os.sep).partition(os.sep)
            nested = slash and name.startswith(os.path.normpath(inside) + os.sep)
            yield Found(name, group if nested else None, state_of(name))


def _remote(url: str, *, recursive: bool) -> Iterator[Found]:
    from pyarrow.fs import FileSelector, FileType

    system, path = filesystem(url)
    scheme = url.partition("://")[0]
    query = url[url.index("?") :] if "?" in url else ""
    try:
        info = system.get_file_info(path)
        found = [info]
        if info.type == FileType.Directory:
            found = system.get_file_info(FileSelector(path, recursive=recursive))
    except OSError as error:
        raise SourceError(
            "The store does not answer.", evidence={"URL": url, "why": error}
        ) from None
    for entry in sorted(found, key=lambda entry: entry.path):
        if entry.type == FileType.Directory:
            continue
        group, slash, _ = entry.path.removeprefix(path).lstrip("/").partition("/")
        if entry.path == path or entry.path.lower().endswith(_EVERY):
            name = f"{scheme}://{entry.path}{query}"
            state = None if entry.size is None else (entry.size, entry.mtime_ns or 0)
            yield Found(name, group if slash else None, state)


def state_of(name: str) -> tuple[int, int] | None:
    """The size of a file, and when it was changed (ns); None if there is none."""
    if is_url(name):
        system, path = _filesystem_of(name)
        info = system.get_file_info(path)
        return None if info.size is None else (info.size, info.mtime_ns or 0)
    try:
        status = os.stat(name)  # noqa: PTH116 (a tenth of a Path's time)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def opened(name: str) -> "Reading":
    """A file to read, in any order.

    Raises:
        SourceError: It cannot be opened.
    """
    try:
        if not is_url(name):
            return Reading(open_regular(Path(name)), name)
        system, path = _filesystem_of(name)
        return Reading(system.open_input_file(path), name)
    except (OSError, ValueError) as error:
        raise SourceError(
            "The file cannot be opened.",
            evidence={"file": name, "why": getattr(error, "strerror", None) or error},
        ) from None


class Reading:
    """An open file, whose troubles with the disk or the network are told from damage.

    What reads archives takes an OSError for a damaged archive, and damage is recorded for good.

    Args:
        file: Where it is read.
        name: What it is called.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self.name = name

    def read(self, size: int = -1) -> bytes:
        """The next bytes.

        Raises:
            SourceError: The disk, or the store, does not give them.
        """
        try:
            return self._file.read(size)
        except OSError as error:
            raise SourceError(
                "The file cannot be read.",
                evidence={"file": self.name, "why": error.strerror or error},
            ) from None

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Where it is."""
        return self._file.tell()

    def size(self) -> int:
        """How many bytes it has."""
        here, end = self.tell(), self.seek(0, os.SEEK_END)
        self.seek(here)
        return end

    def readable(self) -> bool:
        """It is, as programs that read files of Python ask."""
        return True

    seekable = readable

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def close(self) -> None:
        """Read no more."""
        self._file.close()

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def picture(name: str) -> Picture:
    """An image by its name: a path, or what reads it once a thread has time for it."""
    return partial(_content, name) if is_url(name) else Path(name)


def _content(name: str) -> bytes:
    with opened(name) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise too_large(name)
    return content


def too_large(name: str) -> UnsafeFile:
    """That nothing of this size is read for an image."""
    return UnsafeFile(
        "The file is too large for an image.",
        evidence={"image": name, "limit": f"{MOST_BYTES:,} bytes"},
    )


def check_state(name: str, planned: tuple[int, int] | None) -> None:
    """Check that an archive is still the one that was planned.

    Raises:
        SourceError: It is gone.
        IntegrityError: It is another.
    """
    now = state_of(name)
    if now is None:
        raise SourceError("The archive is gone.", evidence={"archive": name})
    if now != planned:
        raise IntegrityError(
            "The archive changed after the plan was made.",
            evidence={"archive": name},
            hint="a new output, or the archive as it was.",
        )


@lru_cache(maxsize=1)
def _bucket(scheme: str, bucket: str, query: str) -> Any:
    """One connection for all objects of a bucket."""
    return filesystem(f"{scheme}://{bucket}{query}")[0]


def _filesystem_of(url: str) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    path, question, query = rest.partition("?")
    return _bucket(scheme, path.partition("/")[0], question + query), path
