"""Find the image files that a user means."""

import glob
import os
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

from PIL import Image

ImageSource = str | PathLike[str] | Image.Image

# What counts as an image in a folder; a file that the user names may have any suffix.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".tga"),
)


def find_images(
    sources: ImageSource | Iterable[ImageSource], *, recursive: bool = False
) -> Iterator[Path | Image.Image]:
    """Files and open images as they are, the images in folders, and the matches of patterns.

    Folders and patterns give their images sorted by name, without hidden files. `**` in a pattern
    matches any number of folders; `recursive` looks into subfolders. A source without any image is
    kept as it is, so that reading it later tells the user why.
    """
    if isinstance(sources, str | PathLike | Image.Image):
        sources = [sources]
    for source in sources:
        if isinstance(source, Image.Image):
            yield source
        else:
            yield from _images_at(os.fspath(source), recursive=recursive)


def _images_at(source: str, *, recursive: bool) -> Iterator[Path]:
    path = Path(source)
    if path.is_dir():
        yield from _or(_images_in(path, recursive=recursive), path)
    elif glob.has_magic(source) and not path.exists():
        yield from _or(_matches(source, recursive=recursive), path)
    else:
        yield path


def _matches(pattern: str, *, recursive: bool) -> Iterator[Path]:
    # Path.glob refuses patterns that begin at the root.
    for match in map(Path, sorted(glob.glob(pattern, recursive=True))):  # noqa: PTH207
        if match.is_dir():
            yield from _images_in(match, recursive=recursive) if recursive else ()
        else:
            yield match


def _images_in(folder: Path, *, recursive: bool) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _images_in(path, recursive=recursive) if recursive else ()
        elif path.suffix.lower() in SUFFIXES:
            yield path


def _or(paths: Iterator[Path], otherwise: Path) -> Iterator[Path]:
    first = next(paths, None)
    yield otherwise if first is None else first
    yield from paths
