"""Find the image files that a user means."""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from os import PathLike
from pathlib import Path

from PIL import Image

from vitconvert.errors import UsageError

ImageSource = str | PathLike[str] | Image.Image

# What counts as an image in a folder; a file that the user names may have any suffix.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".tga"),
)

_ANY_FOLDERS = re.compile(r"(?:(?<=/)|^)\*\*(?:/|$)")

_Seen = set[tuple[int, int]]  # what tells folders apart, whatever leads to them


def find_images(
    sources: ImageSource | Iterable[ImageSource],
    *,
    recursive: bool = False,
    suffixes: tuple[str, ...] = SUFFIXES,
) -> Iterator[Path | Image.Image]:
    """Files and open images as they are, the images in folders, and the matches of patterns.

    Folders and patterns give their images sorted by name, without hidden files. `**` in a pattern
    matches any number of folders; `recursive` looks into subfolders. A source without any image is
    kept as it is, so that reading it later tells the user why. In folders, `suffixes` tell what is
    an image.

    Raises:
        UsageError: One is nothing of that kind.
    """
    if isinstance(sources, str | PathLike | Image.Image):
        sources = [sources]
    for source in sources:
        if isinstance(source, Image.Image):
            yield source
        elif isinstance(source, str | PathLike):
            yield from _images_at(os.fspath(source), suffixes, recursive=recursive)
        else:
            raise UsageError(
                f"images has a {type(source).__name__}, which is no image.",
                hint="name files, folders or patterns, or give images that Pillow opened.",
            )


def _images_at(source: str, suffixes: tuple[str, ...], *, recursive: bool) -> Iterator[Path]:
    # os.path, because Path raises for names that are too long.
    if os.path.isdir(source):  # noqa: PTH112
        yield from _or(_images_in(Path(source), suffixes, recursive=recursive), Path(source))
    elif glob.has_magic(source) and not os.path.lexists(source):
        yield from _or(_matches(source, suffixes, recursive=recursive), Path(source))
    else:
        yield Path(source)


def _matches(pattern: str, suffixes: tuple[str, ...], *, recursive: bool) -> Iterator[Path]:
    for match in map(Path, sorted(_glob(pattern))):
        if match.is_dir():
            yield from _images_in(match, suffixes, recursive=recursive) if recursive else ()
        else:
            yield match


def _glob(pattern: str) -> set[str]:
    """As `glob.glob`, but for `**` each folder is looked into once, also where links make loops."""
    before, *after = _ANY_FOLDERS.split(pattern, maxsplit=1)
    if not after:
        # Path.glob refuses patterns that begin at the root.
        return set(glob.glob(pattern))  # noqa: PTH207
    places = map(Path, _glob(before) if before else [""])
    folders = (folder for place in places if place.is_dir() for folder in _folders(place, set()))
    rest = after[0] or "*"
    return {match for f in folders for match in _glob(str(Path(glob.escape(str(f)), rest)))}


def _folders(folder: Path, seen: _Seen) -> Iterator[Path]:
    """A folder and those in it that are not hidden, each once."""
    return (path for path, is_folder in _walk(folder, seen, recursive=True) if is_folder)


def _images_in(folder: Path, suffixes: tuple[str, ...], *, recursive: bool) -> Iterator[Path]:
    for path, is_folder in _walk(folder, set(), recursive=recursive):
        if is_folder is None or (not is_folder and path.name.lower().endswith(suffixes)):
            yield path


def _walk(folder: Path, seen: _Seen, *, recursive: bool) -> Iterator[tuple[Path, bool | None]]:
    """A folder and what is in it, sorted by name; and whether it is a folder, each of which comes
    once. None is for one that cannot be looked into, which whoever reads it is told.
    """
    waiting: list[tuple[Path, bool | None]] = [(folder, True)]
    while waiting:
        path, is_folder = waiting.pop()
        if is_folder:
            try:
                if not _is_new(path, seen):
                    continue
                inside = _visible(path)
            except OSError:
                is_folder = None
            else:
                waiting += [entry for entry in reversed(inside) if recursive or not entry[1]]
        yield path, is_folder


def _visible(folder: Path) -> list[tuple[Path, bool]]:
    with os.scandir(folder) as entries:  # which knows folders from files without asking for each
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    visible.sort(key=attrgetter("name"))
    return [(Path(entry.path), _is_folder(entry)) for entry in visible]


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_new(folder: Path, seen: _Seen) -> bool:
    """Whether a folder was not seen before, by this or another name; now it is."""
    status = folder.stat()
    place = status.st_dev, status.st_ino
    new = place not in seen
    seen.add(place)
    return new


def _or(paths: Iterator[Path], otherwise: Path) -> Iterator[Path]:
    first = next(paths, None)
    yield otherwise if first is None else first
    yield from paths
