"""Whether the files of a checkpoint are still those that were opened.

A file is mapped or opened again while it is converted, and hashed on another core. Somebody who
replaces it meanwhile would get the hash of one file with the tensors of another.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from vitconvert.errors import IntegrityError

# Device, inode, bytes and time of the last change, in nanoseconds; None of what is not there.
State = tuple[int, int, int, int] | None


def states_of(paths: Iterable[Path]) -> dict[Path, State]:
    """The state of files, which differs once a file is changed or replaced."""
    return {path: _state_of(path) for path in paths}


def _state_of(path: Path) -> State:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def unchanged(states: Mapping[Path, State]) -> Iterator[None]:
    """Make sure, when the block ends, that files are as they were; whatever it did is void if not.

    Raises:
        IntegrityError: A file was changed, replaced or removed. This is raised in the place of any
            other error, because it explains it.
    """
    try:
        yield
    except Exception as error:
        _check(states, error)
        raise
    _check(states, None)


def _check(states: Mapping[Path, State], cause: Exception | None) -> None:
    now = states_of(states)
    changed = [path for path, state in states.items() if now[path] != state]
    if changed:
        gone = now[changed[0]] is None
        raise IntegrityError(
            f"{changed[0].name} was {'removed' if gone else 'changed'} since it was opened.",
            evidence={"file": changed[0]},
            meaning="What was read of it may be of two files, so nothing was written.",
            hint="run again when nobody writes there.",
        ) from cause
