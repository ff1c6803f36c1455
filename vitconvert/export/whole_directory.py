"""Directories that appear whole or not at all, whatever happens meanwhile.

A directory is written beside its place, under a name that says so and a lock that the operating
system lets go of when the process ends. So a later run knows which remains nobody works on.
"""

import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitconvert.containers import sync_names
from vitconvert.errors import OutputExists, UsageError
from vitconvert.export.written import RECORD, somebodys, written_in

_PART, _OLD = ".vitconvert-part", ".vitconvert-old"
_MANY = 10  # names that are told one by one


def check_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a directory may be written here.

    A link is followed: what it leads to is written, or replaced.

    Raises:
        OutputExists: Something is there that vitconvert did not write, or nobody said that an
            earlier output may be replaced.
        UsageError: There can be no directory here, or it would take the place of one that nobody
            can mean.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home fails for a user without one)
    for needed in (Path.cwd(), home):
        if needed.resolve().is_relative_to(_real(path)):
            raise UsageError(
                "The output would take the place of the current directory, or of your home.",
                evidence={"output": _real(path), "in it": needed},
                hint="-o names a new directory.",
            )
    if path.is_symlink() and not path.exists():
        raise UsageError(
            "The output is a link to what is not there.",
            evidence={"output": path, "leads to": path.readlink()},
            hint="make the directory that it leads to, or name another with -o.",
        )
    if path.exists() and not path.is_dir():
        raise UsageError("The output must be a directory.", evidence={"output": path})
    if path.is_dir():
        _check_replaceable(path, overwrite=overwrite)


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    if names := somebodys(path):
        raise _not_ours(path, names)
    if any(path.iterdir()) and not overwrite:
        raise OutputExists(
            f"{path} is there already, and not empty.",
            hint="--force (in Python, overwrite=True) replaces it; -o names another directory.",
        )


def _not_ours(path: Path, names: list[str]) -> OutputExists:
    more = [f"and {len(names) - _MANY} more"] if len(names) > _MANY else []
    return OutputExists(
        f"{path} holds what vitconvert did not write, so it is not replaced.",
        details=[*names[:_MANY], *more],
        hint="move it elsewhere, or name another directory with -o.",
    )


def check_source(path: Path, sources: Iterable[Path]) -> None:
    """Make sure that a source outlives its output.

    Args:
        path: The output.
        sources: Every file that is read, and the directory where they were looked for.

    Raises:
        UsageError: A source lies in the directory whose place the output would take, or is the
            same file as one in it: by a link, a hard link or another name of a directory.
    """
    if not path.is_dir():
        return
    taken = _identities([path, *path.iterdir()])
    for source in sources:
        places = (source, *source.absolute().parents, *source.resolve().parents)
        if taken & _identities(places):
            raise UsageError(
                "The output would take the place of its own source.",
                evidence={"source": source, "output": path},
                hint="-o names another directory.",
            )


def _identities(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """What tells files and directories apart, whatever they are called and whoever links there."""
    found = (path.stat() for path in paths if path.exists())
    return {(status.st_dev, status.st_ino) for status in found}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve fails at links that lead in a circle


@contextmanager
def whole_directory(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary directory that takes the place of `path` when the block ends well.

    Whatever interrupts the block, also the end of the process, `path` keeps
    what it had. What a killed process left beside it is cleaned by the next that writes there.
    Only what vitconvert wrote is ever replaced or removed, also if other files come meanwhile.

    Raises:
        OutputExists: `path` is there and not empty, and `overwrite` is false; or somebody else
            wrote there, before or meanwhile.
        UsageError: No directory can be made beside `path`.
    """
    check_output(path, overwrite=overwrite)
    path = _real(path)
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
        _remove(temporary)


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
        _check_replaceable(path, overwrite=overwrite)
        _replace(temporary, path)
    sync_names(path.parent)


def _replace(temporary: Path, path: Path) -> None:
    """Take the place of an output, unless a file came into it since it was looked at."""
    if _exchange(temporary, path):
        if names := _still_there(temporary):
            _exchange(temporary, path)
            raise _not_ours(path, names)
        return
    replaced = temporary.with_suffix(_OLD)
    path.rename(replaced)
    try:
        if names := _still_there(replaced):
            raise _not_ours(path, names)
        temporary.rename(path)
    except BaseException:
        replaced.rename(path)
        raise
    _remove(replaced)


def _still_there(aside: Path) -> list[str]:
    """What somebody else put into a directory; another process may be cleaning it away."""
    try:
        return somebodys(aside)
    except FileNotFoundError:
        return []


def _remove(directory: Path) -> None:
    """Remove a directory that is not needed, but no output into which somebody put more files."""
    if not written_in(directory):  # cut short: all in it was written here
        shutil.rmtree(directory, ignore_errors=True)
        return
    with suppress(OSError):
        if not somebodys(directory):
            for file in sorted(directory.iterdir(), key=_is_record):  # it tells of the others
                file.unlink()
            directory.rmdir()


def _is_record(file: Path) -> bool:
    return file.name == RECORD


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
            _remove(remains)
    for remains in path.parent.glob(f".{name}-*{_PART}"):
        with suppress(BlockingIOError, FileNotFoundError), _locked(remains):
            _remove(remains)


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
