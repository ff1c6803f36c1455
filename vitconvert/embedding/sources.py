"""The images of folders, lists, patterns, archives and URLs, one after the other in a stable order.

Whatever a source is, each of its images is an `Item`: a key, which stays the same from run to run,
and the image or the reason why there is none. Nothing is listed ahead: memory holds one directory.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from vitconvert.embedding.folders import filesystem, open_regular
from vitconvert.errors import SourceError, UnsafeFile, UsageError, some
from vitconvert.inference.batches import Picture
from vitconvert.preprocessing.finding import SUFFIXES, find_images

LISTED = "-"  # stands for names on stdin
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PARQUETS = (".parquet",)
_EVERY = (*SUFFIXES, *TARS, *PARQUETS)
_TAKEN = ("key", "features", "indices", "scores", "labels")  # columns of our own
_MOST_PLACES = 20  # that a record lists; of more, a hash

# Of an image that is read whole: more than the largest photos have. Some twenty are in memory.
MOST_BYTES = 2**27
# Of what is packed together, for each byte that it has: images hardly shrink.
MOST_TIMES = 100


@dataclass(frozen=True, slots=True)
class Item:
    """One image: what it is called, the image or why there is none, and its other columns."""

    key: str
    picture: Picture
    columns: Mapping[str, Any] = field(default_factory=dict)


class Found(NamedTuple):
    """A file of the input, and the sub-folder of the source that it lies in: often its class."""

    name: str
    group: str | None


Wanted = Callable[[str], bool]  # whether the image of a key is to be computed; asked once for each


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the images are.

    Attributes:
        given: Files, folders, patterns, tars, Parquet files, URLs; "-" for the names of `listed`.
        listed: Names of files, one after the other, as from stdin.
        recursive: Whether folders are searched with their sub-folders.
        keep: Columns of Parquet files, or files of a WebDataset sample, that are kept.
        image_column: The one that holds the images, where that is not clear.
    """

    given: Sequence[str]
    listed: Iterable[str] = ()
    recursive: bool = False
    keep: Sequence[str] = ()
    image_column: str | None = None

    def found(self) -> Iterator[Found]:
        """The files, in order.

        Raises:
            SourceError: A source leads nowhere.
        """
        for source in self.given:
            if source == LISTED:
                listed = (f for name in self.listed for f in find(name, recursive=self.recursive))
                yield from listed
            else:
                yield from self._at(source)

    def _at(self, source: str) -> Iterator[Found]:
        found = None
        for found in find(source, recursive=self.recursive):
            itself = found.name == str(Path(source)) and not is_url(source)
            named = lowered(source).endswith(SUFFIXES) and not glob.has_magic(source)
            nowhere = os.path.isdir(source) or not os.path.lexists(source)  # noqa: PTH112
            if itself and nowhere and not named:
                raise _nothing(source)
            yield found
        if found is None and not lowered(source).endswith(SUFFIXES):
            raise _nothing(source)

    def check(self) -> None:
        """Look at what is on this machine, before any work is done.

        Raises:
            SourceError: A source leads nowhere.
            UsageError: An option is about columns, and there are none.
        """
        for source in self.given:
            if source != LISTED and not is_url(source):
                next(self._at(source))
        if (self.keep or self.image_column) and LISTED not in self.given:
            first = next(self.found())
            is_parquet = lowered(first.name).endswith(PARQUETS)
            if self.keep and not is_parquet and not lowered(first.name).endswith(TARS):
                raise no_columns(self.keep, first.name)
            named = (lowered(source).endswith(PARQUETS) for source in self.given)
            if self.image_column and not is_parquet and not any(named):
                raise UsageError(
                    "image_column names a column of Parquet files, and there are none.",
                    hint="leave out --image-column.",
                )

    def description(self, layout: "Layout") -> dict[str, object]:
        """What must be the same when a run goes on."""
        places = [name if name == LISTED else layout.key(name) for name in self.given]
        if len(places) > _MOST_PLACES:
            names = blake2b("\0".join(places).encode(errors="surrogatepass")).hexdigest()[:32]
            places = [f"{len(places)} places {names}"]
        return {
            "sources": places,
            "recursive": self.recursive,
            "keep": list(self.keep),
            "image column": self.image_column or "the only one",
        }


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What rows of an output are called and have besides features; the same in each run.

    Attributes:
        base: The directory that keys start from; None: keys are absolute. A run from another
            directory, or of another spelling of a name, so gives an image the same key.
        columns: Name -> the type, as Arrow writes it.
        kept: A column of the source -> its name in `columns`.
    """

    base: str | None
    columns: Mapping[str, str]
    kept: Mapping[str, str]

    @classmethod
    def of(
        cls, sources: Sources, kept_types: Callable[[str, Sequence[str]], dict[str, str]]
    ) -> "Layout":
        """The layout of an output that begins with these sources."""
        here = os.getcwd()  # noqa: PTH109
        relative = [os.path.abspath(n) for n in sources.given if not _is_absolute(n)]  # noqa: PTH100
        base = os.path.commonpath([here, *relative]) if relative else None
        grouped = sources.recursive and any(map(_has_folders, sources.given))
        kept: dict[str, str] = {}
        for name in sources.keep:
            column = text(name)
            while column in (*_TAKEN, "class" if grouped else "", *kept.values()):
                column = f"source_{column}"
            kept.setdefault(name, column)
        types = dict.fromkeys(sources.keep, "string")
        if sources.keep and LISTED not in sources.given:
            first = next(sources.found()).name
            if lowered(first).endswith(PARQUETS):
                types = kept_types(first, sources.keep)
        columns = {column: types[name] for name, column in kept.items()}
        return cls(
            base=base, columns={**({"class": "string"} if grouped else {}), **columns}, kept=kept
        )

    def key(self, name: str) -> str:
        """What a file is called in the output: as text, without what is said of its server."""
        if is_url(name):
            return text(name.partition("?")[0])
        path = os.path.abspath(name)  # noqa: PTH100 (a Path drops ..)
        inside = self.base and path.startswith(os.path.join(self.base, ""))  # noqa: PTH118
        return text(os.path.relpath(path, self.base) if inside else path)


def find(source: str, *, recursive: bool) -> Iterator[Found]:
    """The images, tars and Parquet files that a source names, in order, as they are found.

    A source is a file, a folder (sorted by name, without hidden files), a pattern, or a URL of a
    file or a folder. One that leads nowhere is kept as it is: reading it tells why.
    """
    if is_url(source):
        yield from _remote(source, recursive=recursive)
        return
    inside = os.path.normpath(source) + os.sep
    for path in find_images(source, recursive=recursive, suffixes=_EVERY):
        name = str(path)
        group, slash, _ = name.removeprefix(inside).partition(os.sep)
        yield Found(name, group if slash and name.startswith(inside) else None)


def _remote(url: str, *, recursive: bool) -> Iterator[Found]:
    from pyarrow.fs import FileSelector, FileType

    system, path = filesystem(url)
    scheme = url.partition("://")[0]
    query = url[url.index("?") :] if "?" in url else ""
    try:
        info = system.get_file_info(path)
        found = [info] if info.type == FileType.File else []
        if info.type == FileType.Directory:
            found = system.get_file_info(FileSelector(path, recursive=recursive))
    except OSError as error:
        raise SourceError(
            "The store does not answer.", evidence={"URL": url, "why": error}
        ) from None
    for entry in sorted(found, key=lambda entry: entry.path):
        group, slash, _ = entry.path.removeprefix(path).lstrip("/").partition("/")
        if entry.path == path or (entry.is_file and entry.path.lower().endswith(_EVERY)):
            yield Found(f"{scheme}://{entry.path}{query}", group if slash else None)


def is_url(source: str) -> bool:
    """Whether this names a place of an object store."""
    return "://" in source


def lowered(name: str) -> str:
    """A name whose end tells the kind of file: a URL's without what follows a question mark."""
    return (name.partition("?")[0] if is_url(name) else name).lower()


def is_archive(name: str) -> bool:
    """Whether a file holds several images."""
    return lowered(name).endswith((*TARS, *PARQUETS))


def text(name: str) -> str:
    r"""A name as a column of text can hold it: what is no text becomes an escape, \udcff."""
    return name.encode("utf-8", "backslashreplace").decode()


def reason(error: Any) -> str:
    """Why there are no features of an image, in a line; the key says of which."""
    evidence = (
        f"{name} {value}"
        for name, value in error.evidence.items()
        if name not in ("image", "file", "archive")
    )
    return "; ".join((error.fact.rstrip("."), *evidence))


def _is_absolute(name: str) -> bool:
    return is_url(name) or (name != LISTED and os.path.isabs(name))  # noqa: PTH117


def _has_folders(source: str) -> bool:
    if is_url(source):
        return any(found.group is not None for found in _remote(source, recursive=True))
    try:
        with os.scandir(source) as entries:
            return any(e.is_dir() and not e.name.startswith(".") for e in entries)
    except (OSError, ValueError):
        return False


def _nothing(source: str) -> SourceError:
    return SourceError(
        "There are no images here.",
        evidence={"source": source},
        hint="--recursive (in Python, recursive=True) looks into sub-folders too.",
    )


def no_columns(keep: Sequence[str], file: str) -> UsageError:
    """The error for columns to keep, where files stand alone."""
    return UsageError(
        "Files of their own have no columns that could be kept.",
        evidence={"keep": some(keep), "file": file},
        hint="leave out --keep; with --recursive, sub-folders become the column class.",
    )


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


def opened(name: str) -> "Reading":
    """A file to read, in any order.

    Raises:
        SourceError: It cannot be opened.
    """
    try:
        if not is_url(name):
            return Reading(open_regular(Path(name)), name)
        scheme, _, rest = name.partition("://")
        path, question, query = rest.partition("?")
        system = _bucket(scheme, path.partition("/")[0], question + query)
        return Reading(system.open_input_file(path), name)
    except (OSError, ValueError) as error:
        raise SourceError(
            "The file cannot be opened.",
            evidence={"file": name, "why": getattr(error, "strerror", None) or error},
        ) from None


@lru_cache(maxsize=1)
def _bucket(scheme: str, bucket: str, query: str) -> Any:
    """One connection for all objects of a bucket."""
    return filesystem(f"{scheme}://{bucket}{query}")[0]


class Reading:
    """An open file, whose troubles with the disk or the network are told from damage.

    What reads archives takes an OSError for a damaged archive, and damage is recorded for good.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self.name = name
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

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

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
