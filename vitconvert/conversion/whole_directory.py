"""Directories that appear complete or not at all, whatever happens meanwhile.

A directory is written beside its place, under a temporary name and with a lock that the operating
system releases when the process ends. So a later run knows which leftovers are no longer in use.
"""

import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitconvert.conversion.written import RECORD, somebodys, written_in
from vitconvert.errors import OutputExists, UsageError
from vitconvert.formats.whole_file import require_possible, sync_names

_PART, _OLD = ".vitconvert-part", ".vitconvert-old"
_MANY = 10  # at most so many names are listed


def check_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a directory may be written here.

    A link is followed: its target is written, or replaced.

    Raises:
        OutputExists: Something is there that vitconvert did not write, or an earlier output is,
            and `overwrite` is false.
        UsageError: No directory can be here, or it would replace the current or the home
            directory.
    """
    require_possible(path)
    if not _is_text(_real(path)):
        raise UsageError(
            "The path of the output is no valid UTF-8, and programs that load it would refuse it.",
            evidence={"output": _real(path)},
            hint="-o names another.",
        )
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home fails for a user without one)
    for needed in (Path.cwd(), home):
        if needed.resolve().is_relative_to(_real(path)):
            raise UsageError(
                "The output would replace the current directory or your home directory.",
                evidence={"output": _real(path), "in it": needed},
                hint="-o names a new directory.",
            )
    if path.is_symlink() and not path.exists():
        raise UsageError(
            "The output is a link to something that does not exist.",
            evidence={"output": path, "leads to": path.readlink()},
            hint="create the directory that it leads to, or name another with -o.",
        )
    if path.exists() and not path.is_dir():
        raise UsageError("The output must be a directory.", evidence={"output": path})
    if path.is_dir():
        _check_replaceable(path, overwrite=overwrite)


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    if names := somebodys(path):
        raise _not_ours(path, names)
    if any(path.iterdir()) and not overwrite:
        raise OutputExists(
            f"{path} already exists, and is not empty.",
            hint="--force (in Python, overwrite=True) replaces it; -o names another directory.",
        )


def _not_ours(path: Path, names: list[str]) -> OutputExists:
    more = [f"and {len(names) - _MANY} more"] if len(names) > _MANY else []
    return OutputExists(
        f"{path} contains what vitconvert did not write, or not so; it is not replaced.",
        details=[*names[:_MANY], *more],
        hint="move it elsewhere, or name another directory with -o.",
    )


def check_source(path: Path, sources: Iterable[Path]) -> None:
    """Make sure that an output does not replace its own source.

    Args:
        path: The output.
        sources: Every file that is read, and the path where they were searched.

    Raises:
        UsageError: A source is in the directory that the output would replace, or is the same file
            as one in it: through a link, a hard link or another name of a directory.
    """
    if not path.is_dir():
        return
    taken = _identities([path, *path.iterdir()])
    for source in sources:
        places = (source, *source.absolute().parents, *source.resolve().parents)
        if taken & _identities(places):
            raise UsageError(
                "The output would replace its own source.",
                evidence={"source": source, "output": path},
                hint="-o names another directory.",
            )


def _identities(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """Device and inode of each path, which are the same under every name and through links."""
    found = (path.stat() for path in paths if path.exists())
    return {(status.st_dev, status.st_ino) for status in found}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve fails for circular links


@contextmanager
def whole_directory(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary directory that replaces `path` if the block succeeds.

    If anything interrupts the block, even the end of the process, `path` is not changed. What a
    killed process left beside it is removed by the next one that writes there. Only what vitconvert
    wrote is ever replaced or removed, even if other files are added meanwhile.

    Raises:
        OutputExists: `path` exists and is not empty, and `overwrite` is false; or it contains what
            somebody else wrote, before or meanwhile.
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
        # Before it is locked, another process may remove it as leftovers; then try the next name.
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
    """Replace an output, unless a file was added to it after the check."""
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
    """What somebody else put into a directory, which another process may be removing."""
    try:
        return somebodys(aside)
    except FileNotFoundError:
        return []


def _remove(directory: Path) -> None:
    """Remove a directory that is not needed, unless somebody added files to it as an output."""
    if not written_in(directory):  # unfinished: everything in it was written here
        shutil.rmtree(directory, ignore_errors=True)
        return
    with suppress(OSError):
        if not somebodys(directory):
            record = directory / RECORD  # the last, as it lists the others
            for place in sorted(directory.rglob("*"), reverse=True):  # before its folder
                if place != record:
                    place.rmdir() if place.is_dir() else place.unlink()
            record.unlink()
            directory.rmdir()


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step, and return True; False if the system cannot do so."""
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
    """Remove what processes left behind that were killed while writing to `path`."""
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
    """Lock a directory against `_clean`; raises BlockingIOError if another process has done so."""
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    """Make the files of a directory survive a power cut."""
    for place in directory.rglob("*"):
        if place.is_dir():
            sync_names(place)
            continue
        with place.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_names(directory)
