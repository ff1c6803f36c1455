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
SOUND = ".wav"  # in a folder too, whatever the model reads: another tells why it does not

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
    an image, or a recording.

    Raises:
        UsageError: One is nothing of that kind.
    """
    if isinstance(sources, str | PathLike | Image.Image):
        sources = [sources]
    for source in sources:
        if isinstance(source, Image.Image):
            yield source
        elif isinstance(source, str | PathLike):
            text = os.fspath(source)
            found: Iterable[Path] = ()
            # os.path, because Path raises for names that are too long.
            if os.path.isdir(text):  # noqa: PTH112
                found = _images_in(Path(text), suffixes, recursive=recursive)
            elif glob.has_magic(text) and not os.path.lexists(text):
                found = _matches(text, suffixes, recursive=recursive)
            empty = True
            for path in found:
                empty = False
                yield path
            if empty:
                yield Path(text)
        else:
            raise UsageError(
                f"images has a {type(source).__name__}, which is no image.",
                hint="name files, folders or patterns, or give images that Pillow opened.",
            )


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
    rest, matches = after[0] or "*", set[str]()
    for place in map(Path, _glob(before) if before else [""]):
        if place.is_dir():
            for path, is_folder in _walk(place, recursive=True):
                if is_folder:
                    matches |= _glob(str(Path(glob.escape(str(path)), rest)))
    return matches


def _images_in(folder: Path, suffixes: tuple[str, ...], *, recursive: bool) -> Iterator[Path]:
    for path, is_folder in _walk(folder, recursive=recursive):
        if is_folder is None or (not is_folder and path.name.lower().endswith(suffixes)):
            yield path


def _walk(folder: Path, *, recursive: bool) -> Iterator[tuple[Path, bool | None]]:
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
                    if recursive or not inside:
                        waiting.append((Path(entry.path), inside))
        yield path, is_folder
