"""Files that appear whole or not at all."""

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitconvert.containers.hashing import hash_file
from vitconvert.errors import UsageError


@dataclass
class WholeFile:
    """A file that is being written, and its hash once it is."""

    file: BinaryIO
    sha256: str = ""


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
            whole = WholeFile(file)
            yield whole
            file.flush()
            _finish(whole, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _finish(whole: WholeFile, path: Path) -> None:
    """Hash what was written while the disk takes it."""

    def digest() -> None:
        whole.sha256 = hash_file(path)

    thread = threading.Thread(target=digest)
    thread.start()
    try:
        os.fsync(whole.file.fileno())
    finally:
        thread.join()


_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows alone tells text from bytes


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power cut, where directories can be opened (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
