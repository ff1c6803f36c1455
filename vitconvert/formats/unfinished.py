"""Files and folders that are still being written, what is left of them, and their last step.

Each is locked as long as its process works on it, and the system releases the lock when the process
ends, however it ends. So whoever writes beside it later knows what may be removed.
"""

import os
import re
import secrets
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"\.vitconvert-[0-9a-f]{16}\.part")
_BINARY: int = getattr(os, "O_BINARY", 0)  # only Windows distinguishes text from bytes

Check = Callable[[Path], None]
"""Raises OutputExists where something lies at a path that may not be replaced."""


def begin(directory: Path, *, folder: bool = False) -> tuple[Path, int]:
    """A new file or folder in a directory, and its descriptor, which holds the lock."""
    while True:
        place = directory / f".vitconvert-{secrets.token_hex(8)}.part"
        # Before it is locked, another process may remove it as remains; then try the next name.
        with suppress(FileNotFoundError):
            descriptor = _made(place, folder=folder)
            if _lock(descriptor) and os.path.samestat(os.fstat(descriptor), place.stat()):
                return place, descriptor
            os.close(descriptor)


def _made(place: Path, *, folder: bool) -> int:
    if folder:
        place.mkdir()
        return os.open(place, os.O_RDONLY)
    # Not tempfile, whose files no one else may read.
    return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)


def _lock(descriptor: int) -> bool:
    """Lock a file or a folder; False where another process has done so."""
    if sys.platform == "win32":  # it removes nothing that is open
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def remove_remains(directory: Path) -> None:
    """Remove what processes left in a directory that were killed while they wrote there."""
    if sys.platform == "win32":
        return
    import fcntl

    for place in directory.glob(".vitconvert-*.part"):
        if not _NAME.fullmatch(place.name):
            continue
        with suppress(OSError):
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(place, os.fstat(descriptor).st_mode)
            finally:
                os.close(descriptor)


def _remove(place: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        place.unlink()
    elif stat.S_ISDIR(mode):
        for file in place.iterdir():
            file.unlink()  # a folder in it is none of ours, and stays with what holds it
        place.rmdir()


def put(finished: Path, path: Path, check: Check | None) -> None:
    """Give a finished file its name.

    Args:
        finished: The file.
        path: Its name to be.
        check: Called where something has that name by now: it is replaced if that raises nothing.
            Without it, whatever is there is replaced.
    """
    if check is not None:
        try:
            os.link(finished, path)  # never replaces anything, as a rename would
        except FileExistsError:
            check(path)
        except OSError:  # a file system without hard links
            check(path)
        else:
            finished.unlink()
            return
    finished.replace(path)
