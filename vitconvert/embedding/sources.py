"""The images of folders, lists, patterns, archives and URLs, one after the other in a stable order.

Whatever a source is, each of its images is an `Item`: a key, which stays the same from run to run,
and the image or the reason why there is none. Nothing is listed ahead: memory holds one directory.
"""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vitconvert.embedding import parquet, tars
from vitconvert.embedding.files import (
    MOST_BYTES,
    Item,
    Wanted,
    asking,
    filesystem,
    grouped,
    is_url,
    lowered,
    opened,
    reason,
    text,
    too_large,
)
from vitconvert.embedding.options import PARQUETS, TARS
from vitconvert.errors import (
    CorruptFile,
    SourceError,
    UnsafeFile,
    UsageError,
    some,
    warn,
    without_secrets,
)
from vitconvert.preprocessing.finding import SOUND, SUFFIXES, find_images, not_images, not_read

LISTED = "-"  # stands for names on stdin
_ARCHIVES = (*TARS, *PARQUETS)
_EVERY = (*SUFFIXES, SOUND, *_ARCHIVES)
_TAKEN = ("key", "features", "indices", "scores", "labels")  # columns of our own
_MOST_PLACES = 20  # that a record lists; of more, a hash


class Found(NamedTuple):
    """A file of the input, and the sub-folder of the source that it lies in: often its class."""

    name: str
    group: str | None

    @property
    def is_archive(self) -> bool:
        """Whether it holds several images."""
        return lowered(self.name).endswith(_ARCHIVES)


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
                for name in self.listed:
                    yield from find(name, recursive=self.recursive)
            else:
                yield from self._at(source)

    def count(self) -> int | None:
        """How many images there are, if no server is asked and no archive opened for that."""
        if any(source == LISTED or is_url(source) for source in self.given):
            return None
        count = 0
        for one in self.found():
            if one.is_archive:
                return None
            count += 1
        return count

    def _at(self, source: str) -> Iterator[Found]:
        is_image = lowered(source).endswith((*SUFFIXES, SOUND))  # which fails when it is read
        deeper = os.path.isdir(source) and not self.recursive  # noqa: PTH112
        local = os.path.isdir(source)  # noqa: PTH112
        others = not_images(source, _EVERY) if local else ""
        nothing = SourceError(
            "There are no images here.",
            evidence={"source": source, **({"there": others} if others else {})},
            hint="--recursive (in Python, recursive=True) looks into sub-folders too."
            if deeper
            else None,
        )
        found = None
        for found in find(source, recursive=self.recursive):
            itself = found.name == str(Path(source)) and not is_url(source)
            nowhere = os.path.isdir(source) or not os.path.lexists(source)  # noqa: PTH112
            if itself and nowhere and not (is_image and not glob.has_magic(source)):
                raise nothing
            yield found
        if found is None and not is_image:
            raise nothing

    def folders_of_archives(self) -> list[str]:
        """Where tars and Parquet files are, if all that is named here are such."""
        local = [name for name in self.given if not is_url(name)]
        if LISTED in local or not all(next(self._at(name)).is_archive for name in local):
            return []
        folders = [os.path.dirname(os.path.normpath(name)) for name in local]  # noqa: PTH120
        return [folder for folder in folders if not glob.has_magic(folder)]

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
            if self.keep and not first.is_archive:
                raise self._no_columns(first)
            given = (first.name, *self.given)
            if self.image_column and not any(lowered(n).endswith(PARQUETS) for n in given):
                raise UsageError(
                    "image_column names a column of Parquet files, and there are none.",
                    hint="leave out --image-column.",
                )

    def _no_columns(self, found: Found) -> UsageError:
        return UsageError(
            "Files of their own have no columns that could be kept.",
            evidence={"keep": some(self.keep), "file": found.name},
            hint="leave out --keep; with --recursive, sub-folders become the column class.",
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

    def items(
        self,
        found: Iterable[Found],
        layout: "Layout",
        wanted: Wanted,
        abandoned: Callable[[str, str], None],
    ) -> Iterator[Item]:
        """The images of files that are wanted, in order.

        Args:
            found: The files.
            layout: Of the output.
            wanted: Says of each key whether the image is to be computed.
            abandoned: Is told of an archive that cannot be read further, and why; others go on.
        """
        for file, key in asked(found, layout, wanted):
            if not file.is_archive:
                if self.keep:
                    raise self._no_columns(file)
                # A URL's content is read once a thread has time for it.
                remote = is_url(file.name)
                picture = partial(_content, file.name) if remote else Path(file.name)
                yield Item(key, picture, {"class": file.group})
                continue
            try:
                if lowered(file.name).endswith(TARS):
                    yield from tars.read(file.name, key, layout.kept, wanted)
                else:
                    column, kept = self.image_column, layout.kept
                    yield from parquet.read(file.name, key, column, kept, layout.columns, wanted)
            except (SourceError, CorruptFile, UnsafeFile) as error:
                abandoned(key, reason(error))


def _content(name: str) -> bytes:
    with opened(name) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise too_large(name)
    return content


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What rows of an output are called and have besides features; the same in each run.

    Attributes:
        base: The directory that keys start from: of names without one, and of archives; None: keys
            are absolute. A run from another directory, or of another spelling of a name, so gives
            an image the same key.
        columns: Name -> the type, as Arrow writes it.
        kept: A column of the source -> its name in `columns`.
    """

    base: str | None
    columns: Mapping[str, str]
    kept: Mapping[str, str]

    @classmethod
    def of(cls, sources: Sources) -> "Layout":
        """The layout of an output that begins with these sources."""
        named = (name for name in sources.given if not is_url(name))
        relative = [os.path.abspath(n) for n in named if not os.path.isabs(n)]  # noqa: PTH100, PTH117
        places = [os.getcwd(), *relative] if relative else sources.folders_of_archives()  # noqa: PTH109
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
                types = parquet.kept_types(first, sources.keep)
        columns = {"class": "string"} if grouped else {}
        return cls(
            base=_above(places),
            columns=columns | {column: types[name] for name, column in kept.items()},
            kept=kept,
        )

    def key(self, name: str) -> str:
        """What a file is called in the output: as text, without what is said of its server."""
        if is_url(name):
            return text(without_secrets(name))
        path = os.path.abspath(name)  # noqa: PTH100 (a Path drops ..)
        if self.base:
            base = os.path.normcase(os.path.join(self.base, ""))  # noqa: PTH118
            if os.path.normcase(path).startswith(base):
                path = os.path.relpath(path, self.base)
        return text(_with_slashes(path))

    def keys(self, names: list[str]) -> list[str]:
        """What files that were found are called: all at once, if they are of one folder."""
        folder = os.path.commonprefix(names[:1] + names[-1:])  # noqa: RUF071 (cut in a line)
        folder = folder[: folder.rfind(os.sep) + 1]
        above = os.path.join(os.path.abspath(folder), "")  # noqa: PTH100, PTH118
        base = os.path.join(self.base or above, "")  # noqa: PTH118
        every = text("\0".join(["", *names]))
        _, *rest = every.split(f"\0{text(folder)}")
        alike = len(rest) == len(names) == every.count("\0")
        alike &= bool(folder) or not any(map(os.path.isabs, names))
        strange = (":" in every and "://" in every) or "." in names
        strange |= every.count("..") != folder.count("..") * len(names)
        if not alike or strange or (base != above and base.startswith(above)):
            return [self.key(name) for name in names]
        inside = self.key(f"{folder}_")[:-1]
        return [_with_slashes(inside + name) for name in rest]


def _above(places: Iterable[str]) -> str | None:
    """The folder that has them all, if there is one: drives of Windows have none."""
    try:
        return os.path.commonpath(list(places))
    except ValueError:
        return None


def _with_slashes(path: str) -> str:
    """A path as keys have it on every system, so that a run may go on on another."""
    return path if os.sep == "/" else path.replace(os.sep, "/")


def asked(found: Iterable[Found], layout: Layout, wanted: Wanted) -> Iterator[tuple[Found, str]]:
    """Archives, and files that are wanted, with their keys, in order."""
    groups: list[str | None] = []

    def names() -> Iterator[str]:
        for name, group in found:  # tuples that are kept are work for the collector of garbage
            groups.append(group)
            yield name

    for together in grouped(names()):
        keys = layout.keys(together)
        every = "\0".join(together).lower()
        if not any(begin in every for begin in {suffix[:4] for suffix in _ARCHIVES}):
            chosen = wanted(keys)
        else:
            alone = [not lowered(name).endswith(_ARCHIVES) for name in together]
            answers = iter(wanted(list(compress(keys, alone))))
            chosen = [not is_one or next(answers) for is_one in alone]
        for name, group, key in compress(zip(together, groups, keys, strict=True), chosen):
            yield Found(name, group), key
        groups.clear()


def _has_folders(source: str) -> bool:
    if is_url(source):
        return any(found.group is not None for found in find(source, recursive=True))
    try:
        with os.scandir(source) as entries:
            return any(e.is_dir() and not e.name.startswith(".") for e in entries)
    except (OSError, ValueError):
        return False


def find(source: str, *, recursive: bool) -> Iterator[Found]:
    """The images, tars and Parquet files that a source names, in order, as they are found.

    A source is a file, a folder (sorted by name, without hidden files), a pattern, or a URL of a
    file or a folder. One that leads nowhere is kept as it is: reading it tells why.
    """
    if not is_url(source):
        inside = os.path.normpath(source) + os.sep
        for path in find_images(source, recursive=recursive, suffixes=_EVERY):
            name = str(path)
            group, slash, _ = name.removeprefix(inside).partition(os.sep)
            yield Found(name, group if slash and name.startswith(inside) else None)
        return
    from pyarrow.fs import FileSelector, FileType

    system, root = filesystem(source)
    scheme, _, rest = source.partition("://")
    rest, question, query = rest.partition("?")
    # Names begin as the source does, with what it says of the server and of who asks.
    place = f"{scheme}://{rest.partition('/')[0]}"
    _, bucket = filesystem(f"{place}{question}{query}")
    try:
        with asking(source):
            info = system.get_file_info(root)
            entries = [info] if info.type == FileType.File else []
            if info.type == FileType.Directory:
                entries = system.get_file_info(FileSelector(root, recursive=recursive))
    except OSError as error:
        raise SourceError(
            "The store does not answer.", evidence={"URL": source, "why": error}
        ) from None
    passed_over = Counter[str]()
    for entry in sorted(entries, key=lambda entry: entry.path):
        group, slash, _ = entry.path.removeprefix(root).lstrip("/").partition("/")
        if entry.is_file and entry.path != root and not entry.path.lower().endswith(_EVERY):
            passed_over[PurePosixPath(entry.path).suffix.lower()] += 1
        elif entry.path == root or entry.is_file:
            inside = entry.path.removeprefix(bucket)
            yield Found(f"{place}{inside}{question}{query}", group if slash else None)
    if passed_over:
        warn(f"{without_secrets(source)}: {not_read(passed_over)}")
