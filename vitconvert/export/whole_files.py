"""A file, and perhaps others beside it, that appear together or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitconvert.containers.whole_file import require_file, sync_names
from vitconvert.errors import UsageError


@contextmanager
def whole_files(path: Path) -> Iterator[Path]:
    """Give a path of the same name in a hidden folder; what is there moves when the block ends.

    Whoever reads `path` finds what was there before, or nothing for a moment, or all of what is
    new: it is the last file to be moved, and is taken away before others are. If the block raises,
    nothing is left.

    Raises:
        UsageError: No file can be there.
    """
    require_file(path)
    folder = path.parent / f".vitconvert-{secrets.token_hex(8)}.part"
    try:
        folder.mkdir()
    except OSError as error:
        raise UsageError(
            "The output cannot be written.", evidence={"output": path, "reason": error.strerror}
        ) from error
    try:
        yield folder / path.name
        made = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in made:
            _sync(file)
        if len(made) > 1:
            path.unlink(missing_ok=True)
        for file in made:
            file.replace(path.parent / file.name)
        sync_names(path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
