"""Find the image files that a user means."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from os import PathLike
from pathlib import Path

from PIL import Image

from vitconvert.errors import UsageError, is_address, some, warn

ImageSource = str | PathLike[str] | Image.Image

# What counts as an image in a folder; a file that the user names may have any suffix.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".tga"),
)
SOUND = ".wav"  # in a folder too, whatever the model reads: another tells why it does not
# Photographs that Pillow does not read; a folder of them is no mistake of the user's.
_PHOTOS = (".heic", ".heif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf")
_KINDS_NAMED = 5

_ANY_FOLDERS = re.compile(r"(?:(?<=/)|^)\*\*(?:/|$)")


def find_images(
    sources: ImageSource | Iterable[ImageSource],
    *,
    recursive: bool = False,
    suffixes: tuple[str, ...] = (*SUFFIXES, SOUND),
) -> Iterator[Path | Image.Image]:
    """Files and open images as they are, what folders have, and the matches of patterns.

    Folders and patterns give their images sorted by name, without hidden files. `**` in a pattern
    matches any number of folders; `recursive` looks into subfolders. A source without any image is
    kept as it is, so that reading it later tells the user why. In folders, `suffixes` tell what is
    an image, or a recording; in the end, a warning tells how many files there are none.

    Raises:
        UsageError: One is nothing of that kind.
    """
    if isinstance(sources, str | PathLike | Image.Image):
        sources = [sources]
    images, passed_over, unsearched = 0, Counter[str](), list[Path]()
    for source in sources:
        images += 1
        if isinstance(source, Image.Image):
            yield source
        elif isinstance(source, str | PathLike):
            text = os.fspath(source)
            if is_address(text) and not os.path.lexists(text):
                raise UsageError(
                    "Images are read from files here, and not from an address.",
                    evidence={"address": text},
                    hint="download them first; `vitconvert embed MODEL ADDRESS -o DIRECTORY` "
                    "reads object stores (s3, gs, abfs).",
                )
            found: Iterable[Path] = ()
            # os.path, because Path raises for names that are too long.
            if os.path.isdir(text):  # noqa: PTH112
                into = None if recursive else unsearched
                found = _images_in(Path(text), suffixes, passed_over, into)
            elif glob.has_magic(text) and not os.path.lexists(text):
                found = _matches(text, suffixes, passed_over, recursive=recursive)
            before = images
            for path in found:
                images += 1
                yield path
            if images == before:
                yield Path(text)
            images -= 1  # a source that has images is none itself
        else:
            raise UsageError(
                f"images has a {type(source).__name__}, which is not an image.",
                hint="name files, folders or patterns, or give images that Pillow opened.",
            )
    if passed_over and images:  # of none, the error tells it
        warn(f"{images} image{'s' * (images != 1)}; {not_read(passed_over)}")
    if unsearched and images:
        many = "subfolder was" if len(unsearched) == 1 else "subfolders were"
        how = "--recursive (in Python, recursive=True) searches them too"
        names = some(sorted(path.name for path in unsearched))
        warn(f"{len(unsearched)} {many} not searched: {names}; {how}")


def not_read(passed_over: Counter[str]) -> str:
    """Files of folders that are no images, in words: "3 files not read: 2 .heic, 1 .txt"."""
    count, named = passed_over.total(), passed_over.most_common(_KINDS_NAMED)
    kinds = [f"{number} {suffix or 'without a suffix'}" for suffix, number in named]
    if rest := count - sum(number for _, number in named):
        kinds.append(f"{rest} others")
    photos = [suffix for suffix, _ in named if suffix in _PHOTOS]
    hint = f"; save {' and '.join(photos)} as .jpg or .png" if photos else ""
    return f"{count} file{'s' * (count != 1)} not read: {', '.join(kinds)}{hint}"


def not_images(folder: str | PathLike[str], suffixes: tuple[str, ...] = (*SUFFIXES, SOUND)) -> str:
    """The same of a folder alone; "" if it has no such files."""
    passed_over = Counter[str]()
    for _ in _images_in(Path(folder), suffixes, passed_over, []):
        pass
    return not_read(passed_over) if passed_over else ""


def _matches(
    pattern: str, suffixes: tuple[str, ...], passed_over: Counter[str], *, recursive: bool
) -> Iterator[Path]:
    for match in map(Path, sorted(_glob(pattern))):
        if match.is_dir():
            if recursive:
                yield from _images_in(match, suffixes, passed_over, None)
        else:
            yield match


def _glob(pattern: str) -> set[str]:
    """As `glob.glob`, but for `**` each folder is looked into once, also where links make loops."""
    before, *after = _ANY_FOLDERS.split(pattern, maxsplit=1)
    if not after:
        # Path.glob refuses patterns that begin at the root.
        return set(glob.glob(pattern))  # noqa: PTH207
    rest, matches = after[0] or "*", set[str]()
    for place in map(Path, _glob(before) if before else [""]):
        if place.is_dir():
            for path, is_folder in _walk(place, None):
                if is_folder:
                    matches |= _glob(str(Path(glob.escape(str(path)), rest)))
    return matches


def _images_in(
    folder: Path,
    suffixes: tuple[str, ...],
    passed_over: Counter[str],
    unsearched: list[Path] | None,
) -> Iterator[Path]:
    """The images of a folder; other files of it are counted by their suffixes.

    Its subfolders are searched too if `unsearched` is None; else that is where they are noted.
    """
    for path, is_folder in _walk(folder, unsearched):
        if is_folder is None or (not is_folder and path.name.lower().endswith(suffixes)):
            yield path
        elif not is_folder:
            passed_over[path.suffix.lower()] += 1


def _walk(folder: Path, unsearched: list[Path] | None) -> Iterator[tuple[Path, bool | None]]:
    """A folder and what is in it, sorted by name, without what is hidden; and whether it is a
    folder, each of which comes once, whatever links lead to it. None is for one that cannot be
    looked into: reading it raises the reason.
    """
    seen: set[tuple[int, int]] = set()
    waiting: list[tuple[Path, bool | None]] = [(folder, True)]
    while waiting:
        path, is_folder = waiting.pop()
        if is_folder:
            try:
                status = path.stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(path) as entries:  # which knows folders without asking for each
                    visible = [entry for entry in entries if not entry.name.startswith(".")]
            except OSError:
                is_folder = None
            else:
                for entry in sorted(visible, key=attrgetter("name"), reverse=True):
                    try:
                        inside = entry.is_dir()
                    except OSError:  # a link that leads to itself
                        inside = False
                    if unsearched is None or not inside:
                        waiting.append((Path(entry.path), inside))
                    else:
                        unsearched.append(Path(entry.path))
        yield path, is_folder
