"""A file, and perhaps others beside it, that appear together or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitconvert.formats.unfinished import Check, put, remove_remains
from vitconvert.formats.whole_file import begun, require_file, sync_names


@contextmanager
def whole_files(path: Path, check: Check) -> Iterator[Path]:
    """Give a path of the same name in a hidden folder; what is there moves when the block ends.

    Whoever reads `path` finds what was there before, or nothing for a moment, or all of what is
    new: it is the last file to be moved, and is taken away before others are. If the block raises,
    nothing is left. What killed processes left there is removed.

    Args:
        path: The file.
        check: Raises where something that is at `path` or beside it by now may not be replaced.

    Raises:
        UsageError: No file can be there.
    """
    require_file(path)
    remove_remains(path.parent)
    folder, descriptor = begun(path, path.parent, folder=True)
    try:
        yield folder / path.name
        made = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in made:
            _sync(file)
        check(path)
        if len(made) > 1:
            for file in reversed(made):
                (path.parent / file.name).unlink(missing_ok=True)
        for file in made:
            put(file, path.parent / file.name, lambda _: check(path))
        sync_names(path.parent)
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
