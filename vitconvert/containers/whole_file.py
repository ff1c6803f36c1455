"""Files that appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitconvert.containers.sequential_writer import SequentialWriter
from vitconvert.errors import UsageError


@contextmanager
def whole_file(path: Path, *, read_soon: bool = True) -> Iterator[SequentialWriter]:
    """Write to a temporary file that takes the place of `path` when the block ends well.

    Whatever interrupts the block, `path` keeps what it had and nothing is left beside it. The
    file gets the permissions that the umask grants, like any other new file. The disk has it, and
    `sha256` is known, when the block has ended.

    Args:
        path: The file.
        read_soon: As for SequentialWriter.

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
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    except OSError as error:
        raise UsageError(
            "The output cannot be written.", evidence={"output": path, "reason": error.strerror}
        ) from error
    try:
        with (
            os.fdopen(descriptor, "wb", buffering=0) as file,
            SequentialWriter(file.fileno(), read_soon=read_soon) as writer,
        ):
            yield writer
            writer.finish()
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
