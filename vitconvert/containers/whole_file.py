"""Files that appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vitconvert.containers.hashing import FollowingHash
from vitconvert.errors import UsageError

_WRITE_BACK = 16 * 2**20  # bytes after which the disk is told to begin


class WholeFile:
    """A file that is being written, and its sha256 once it is.

    Whoever writes from the beginning to the end says `settled` now and then: what was written so
    far is hashed on another core, and the disk may begin to take it.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.sha256 = ""
        self._following = FollowingHash(path)
        self._begun = 0

    def settled(self) -> None:
        """Nothing that was written will change."""
        self.file.flush()
        position = self.file.tell()
        self._following.advance(position)
        if position - self._begun >= _WRITE_BACK and hasattr(os, "posix_fadvise"):
            # Linux begins to write dirty pages of the range out (mm/fadvise.c), so that fsync
            # has little left to wait for; where it does not, nothing is lost.
            length, advice = position - self._begun, os.POSIX_FADV_DONTNEED
            os.posix_fadvise(self.file.fileno(), self._begun, length, advice)
            self._begun = position

    def finish(self) -> None:
        """Hash the rest while the disk takes what it has not yet."""
        self.file.flush()
        self._following.advance(os.fstat(self.file.fileno()).st_size)
        os.fsync(self.file.fileno())
        self.sha256 = self._following.hexdigest()

    def close(self) -> None:
        """Hash no more."""
        self._following.close()


@contextmanager
def whole_file(path: Path) -> Iterator[WholeFile]:
    """Write to a temporary file that takes the place of `path` when the block ends well.

    Whatever interrupts the block, `path` keeps what it had and nothing is left beside it. The
    file gets the permissions that the umask grants, like any other new file. `sha256` is known
    when the block has ended.

    Raises:
        UsageError: `path` is a directory, or no file can be made in its directory.
    """
    if path.is_dir():
        raise UsageError("The output is a directory, not a file.", evidence={"output": path})
    if not path.parent.is_dir():
        raise UsageError(
            "The directory of the output does not exist.", evidence={"directory": path.parent}
        )
    temporary = path.parent / f".vitconvert-{secrets.token_hex(8)}.part"
    try:
        # Not tempfile, whose files no one else may read.
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    except OSError as error:
        raise UsageError(
            "The output cannot be written.", evidence={"output": path, "reason": error.strerror}
        ) from error
    try:
        with os.fdopen(descriptor, "w+b") as file:
            whole = WholeFile(file, temporary)
            try:
                yield whole
                whole.finish()
            finally:
                whole.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_names(path.parent)


_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows alone tells text from bytes


def sync_names(directory: Path) -> None:
    """Make the names in a directory survive a power cut, where directories can be opened."""
    if os.name == "nt":  # they cannot
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
