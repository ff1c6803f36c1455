"""Directories that appear whole or not at all, whatever happens meanwhile.

A directory is written beside its place, under a name that says so and a lock that the operating
system lets go of when the process ends. So a later run knows which remains nobody works on.
"""

import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitconvert.containers import sync_names
from vitconvert.errors import OutputExists, UsageError

_PART, _OLD = ".vitconvert-part", ".vitconvert-old"


def check_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a directory may be written here.

    Raises:
        OutputExists: Something is there, and nobody said that it may be replaced.
        UsageError: There can be no directory here, or it would take the place of one that nobody
            can mean.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home fails for a user without one)
    for needed in (Path.cwd(), home):
        if needed.resolve().is_relative_to(path.resolve()):
            raise UsageError(
                "The output would take the place of the current directory, or of your home.",
                evidence={"output": path.resolve(), "in it": needed},
                hint="-o names a new directory.",
            )
    if path.exists() and not path.is_dir():
        raise UsageError("The output must be a directory.", evidence={"output": path})
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise _exists(path)


def check_source(path: Path, source: Path | None) -> None:
    """Make sure that a source outlives its output.

    Raises:
        UsageError: The source lies in the directory whose place the output would take.
    """
    if source is not None and source.resolve().is_relative_to(path.resolve()):
        raise UsageError(
            "The output would take the place of its own source.",
            evidence={"source": source, "output": path},
            hint="-o names another directory.",
        )


def _exists(path: Path) -> OutputExists:
    return OutputExists(
        f"{path} is there already, and not empty.",
        hint="--force (in Python, overwrite=True) replaces it; -o names another directory.",
    )


@contextmanager
def whole_directory(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary directory that takes the place of `path` when the block ends well.

    Whatever interrupts the block, also the end of the process, `path` keeps
    what it had. What a killed process left beside it is cleaned by the next that writes there.

    Raises:
        OutputExists: `path` is there and not empty, and `overwrite` is false; or another process
            finished writing there first.
        UsageError: No directory can be made beside `path`.
    """
    check_output(path, overwrite=overwrite)
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean(path)
        temporary, lock = _new_part(path)
    except OSError as error:
        raise UsageError(
            "The output cannot be written.", evidence={"output": path, "reason": error.strerror}
        ) from None
    try:
        with lock:
            yield temporary
            _sync(temporary)
            _put(temporary, path, overwrite=overwrite)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _new_part(path: Path) -> tuple[Path, ExitStack]:
    """A directory beside `path`, and the lock on it."""
    while True:
        part = path.parent / f".{path.name}-{secrets.token_hex(8)}{_PART}"
        part.mkdir()
        lock = ExitStack()
        # Before it is locked, another process may take it for remains; then there is a next.
        with suppress(BlockingIOError, FileNotFoundError):
            lock.enter_context(_locked(part))
            part.stat()
            return part, lock
        lock.close()


def is_unfinished(path: Path) -> bool:
    """Whether a directory is one of those that `whole_directory` works with."""
    return path.absolute().name.endswith((_PART, _OLD))


def _put(temporary: Path, path: Path, *, overwrite: bool) -> None:
    try:
        temporary.rename(path)  # onto nothing, or onto an empty directory
    except OSError:
        if not path.is_dir():
            raise
        if not overwrite:
            raise _exists(path) from None
        if not _exchange(temporary, path):
            replaced = temporary.with_suffix(_OLD)
            path.rename(replaced)
            try:
                temporary.rename(path)
            except BaseException:
                replaced.rename(path)
                raise
            shutil.rmtree(replaced, ignore_errors=True)
    sync_names(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step, where the system can; else nothing is done."""
    import ctypes

    library = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    match sys.platform:
        case "linux" if hasattr(library, "renameat2"):  # glibc 2.28; linux/fs.h
            at_cwd, exchange = -100, 2
            done = library.renameat2(at_cwd, names[0], at_cwd, names[1], exchange)
        case "darwin":
            swap = 2  # sys/stdio.h, RENAME_SWAP
            done = library.renamex_np(*names, swap)
        case _:
            return False
    return int(done) == 0


def _clean(path: Path) -> None:
    """Remove what processes left that were killed while they wrote to `path`."""
    name = glob.escape(path.name)
    for remains in path.parent.glob(f".{name}-*{_OLD}"):
        if not path.exists():  # killed between two renames
            remains.rename(path)
        else:
            shutil.rmtree(remains, ignore_errors=True)
    for remains in path.parent.glob(f".{name}-*{_PART}"):
        with suppress(BlockingIOError, FileNotFoundError), _locked(remains):
            shutil.rmtree(remains, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a directory against `_clean`; raises BlockingIOError where another process does."""
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    """Make the files of a directory survive a power cut."""
    for file in directory.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_names(directory)
