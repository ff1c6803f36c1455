"""Directories that appear whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitconvert.errors import OutputExists, UsageError


def check_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a directory may be written here.

    Raises:
        OutputExists: Something is there, and nobody said that it may be replaced.
        UsageError: There can be no directory here.
    """
    if path.exists() and not path.is_dir():
        raise UsageError("The output must be a directory.", evidence={"output": path})
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise OutputExists(
            f"{path} is there already, and not empty.",
            hint="--force (in Python, overwrite=True) replaces it; -o names another directory.",
        )


@contextmanager
def whole_directory(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary directory that takes the place of `path` when the block ends well.

    Whatever interrupts the block, `path` keeps what it had.

    Raises:
        OutputExists: `path` is there and not empty, and `overwrite` is false.
        UsageError: No directory can be made beside `path`.
    """
    check_output(path, overwrite=overwrite)
    path = path.absolute()
    mark = secrets.token_hex(8)
    temporary = path.parent / f".vitconvert-{mark}.part"
    replaced = path.parent / f".vitconvert-{mark}.old"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except OSError as error:
        raise UsageError(
            "The output cannot be written.", evidence={"output": path, "reason": error.strerror}
        ) from None
    try:
        yield temporary
        _sync(temporary)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        _sync(path.parent)
    except BaseException:
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Make a directory's names survive a power cut, where directories can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
