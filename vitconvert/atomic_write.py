"""Outputs that are whole or not there: each is written under a hidden name, then renamed.

The hidden name is `.NAME-XXXXXXXX.part`. It goes when writing fails. If the process is killed, it
stays, and may be removed.
"""

import gc
import hashlib
import io
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vitconvert.errors import OutputExists, UsageError, as_typed, is_address

_HIDDEN = re.compile(r"\..+-[0-9a-f]{8}\.part")
_MKDIR = ("mkdir",) if sys.platform == "win32" else ("mkdir", "-p")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_LARGE = 2**16  # bytes that take longer to hash than to hand to another thread

Check = Callable[[Path], None]
"""Raises OutputExists where something lies at a path that may not be replaced."""


def require_possible(path: Path) -> None:
    """Refuse a path where nothing can be: longer than names are, with NUL, beyond what we may see.

    So is an address: as a path it would become a folder `s3:` of this machine.

    Raises:
        UsageError: It is one.
    """
    if is_address(str(path)):
        raise UsageError(
            "This is an address, and the output is written to this machine.",
            evidence={"output": path},
            hint="name a local path, and copy the output. Only `vitconvert embed -o DIRECTORY` "
            "writes to addresses, and `vitconvert push` to the Hub.",
        )
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # whoever makes it finds out what is missing
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _impossible(path, reason, hint="-o names another.") from None


def portable_name(text: str) -> str:
    """The name of a file that every system can have, made of a text that may be any.

    Windows has no such letters, no name that ends in a dot, and devices in every folder (Microsoft,
    "Naming Files, Paths, and Namespaces"); a colon would name a stream within another file.
    """
    name = re.sub(r'[<>:"/\\|?*\0-\x1f]', "_", text).rstrip(". ")
    return f"_{name}" if _DEVICE.match(name) else name


def require_place(path: Path) -> None:
    """Refuse a path in a directory that does not exist, or with an impossible name.

    Raises:
        UsageError: It is one.
    """
    require_possible(path)
    if not path.parent.is_dir():
        raise UsageError(
            "The directory of the output does not exist.",
            evidence={"directory": path.parent},
            hint=f"`{as_typed(*_MKDIR, str(path.parent))}` makes it.",
        )


def require_file(path: Path) -> None:
    """Refuse a path where no file can be.

    Raises:
        UsageError: It is a directory, its own directory does not exist, or its name is impossible.
    """
    require_place(path)
    if path.is_dir():
        raise UsageError("The output is a directory, not a file.", evidence={"output": path})


def require_replaceable(
    path: Path, is_ours: Callable[[Path], bool], *, overwrite: bool, lies_at: Path | None = None
) -> None:
    """Refuse an output whose place is taken, but for what vitconvert wrote and may replace.

    Args:
        path: The output.
        is_ours: Whether vitconvert wrote what lies at the output's path.
        overwrite: Replace it then.
        lies_at: What is there already, if that is a file beside the output.

    Raises:
        OutputExists: Something is there, and `overwrite` is false or it is not vitconvert's.
    """
    there = lies_at or path
    if not os.path.lexists(there):  # a link that leads nowhere is something, too
        return
    if not overwrite:
        raise OutputExists(
            "The output exists already.",
            evidence={"output": there},
            hint="--force (in Python, overwrite=True) replaces it, if vitconvert wrote it.",
        )
    if not is_ours(path):
        raise OutputExists(
            "vitconvert did not write this file, so it is not replaced.",
            evidence={"output": there},
            hint="name another file.",
        )


def _impossible(path: Path, reason: object, hint: str | None = None) -> UsageError:
    return UsageError(
        "The output cannot be written.", evidence={"output": path, "reason": reason}, hint=hint
    )


@contextmanager
def atomic_file(
    path: Path, *, scratch: Path | None = None, check: Check | None = None
) -> Iterator["HashingWriter"]:
    """Write to a temporary file that replaces `path` when the block ends without an error.

    If the block raises, `path` keeps what it had and nothing is left beside it. After the block the
    file is on disk, and the writer's `sha256` is known.

    Args:
        path: The file.
        scratch: The folder of the temporary file, on the same file system; by default, beside it.
        check: Called with `path` before it is replaced, as something may have appeared there
            meanwhile.

    Raises:
        UsageError: `path` is a directory, or no file can be made in its directory.
    """
    require_file(path)
    temporary = _hidden(path, scratch)
    try:
        file = temporary.open("xb")
    except OSError as error:
        raise _impossible(path, error.strerror) from error
    try:
        with file, HashingWriter(file) as writer:
            yield writer
            writer.finish()
        if check is not None:
            check(path)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def atomic_files(path: Path, check: Check) -> Iterator[Path]:
    """Give a path of the same name in a hidden folder; what is there moves when the block ends.

    `path` moves last: a reader who finds it finds the files that programs wrote beside it.

    Args:
        path: The file; programs may write others beside it.
        check: As for `atomic_file`.

    Raises:
        UsageError: No file can be there.
    """
    require_file(path)
    folder = _hidden(path)
    try:
        folder.mkdir()
    except OSError as error:
        raise _impossible(path, error.strerror) from error
    try:
        yield folder / path.name
        check(path)
        for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
            sync(file)
            file.replace(path.parent / file.name)
        sync(path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_directory(path: Path, check: Check) -> Iterator[Path]:
    """Give a temporary directory that replaces `path` when the block ends without an error.

    If the block raises, `path` does not change. A directory that is replaced is renamed away
    first, and removed afterwards.

    Args:
        path: The directory. A link is followed.
        check: Raises where no directory may be written at a path, or what is there may not be
            replaced. Called before the block and after it.

    Raises:
        UsageError: No directory can be made beside `path`.
    """
    check(path)
    path = Path(os.path.realpath(path))  # Path.resolve fails for circular links
    new, old = _hidden(path), _hidden(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.mkdir()
        except OSError as error:
            raise _impossible(path, error.strerror) from error
        yield new
        for place in (*new.rglob("*"), new):
            sync(place)
        check(path)
        if path.is_dir():
            gc.collect()  # Windows renames no file that is mapped, as by readers that nobody holds
            path.rename(old)
        try:
            new.rename(path)
        except OSError:
            if old.is_dir():
                old.rename(path)
            raise
        sync(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def is_unfinished(path: Path) -> bool:
    """Whether a path is one of those that outputs are written to before they are whole."""
    return any(map(_HIDDEN.fullmatch, path.absolute().parts))


def sync(place: Path) -> None:
    """Make a file, or the names in a directory, survive a power cut, where the system can."""
    is_directory = place.is_dir()
    if is_directory and os.name == "nt":
        return
    descriptor = os.open(place, os.O_RDONLY if is_directory else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(path: Path, folder: Path | None = None) -> Path:
    # Cut, because names have at most 255 bytes, and four for each letter.
    return (folder or path.parent) / f".{path.name[:50]}-{secrets.token_hex(4)}.part"


class HashingWriter(io.RawIOBase):
    """Adds to a new file; a thread hashes what is written, so that nothing is read again for it."""

    def __init__(self, file: BinaryIO) -> None:
        # Late, as readers import this module too.
        from concurrent.futures import ThreadPoolExecutor

        super().__init__()
        self.sha256 = ""
        self._file, self._hash, self._hasher = file, hashlib.sha256(), ThreadPoolExecutor(1)

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Add bytes to the end; `data` may change as soon as this returns."""
        data = memoryview(data).cast("B")
        if len(data) < _LARGE:
            self._hash.update(data)
            self._file.write(data)
        else:
            hashed = self._hasher.submit(self._hash.update, data)
            self._file.write(data)
            hashed.result()
        return len(data)

    def writable(self) -> bool:
        """It is, as programs that write to files of Python ask."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._file.tell()

    def finish(self) -> None:
        """Put all on the disk; then `sha256` is known."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.sha256 = self._hash.hexdigest()

    def close(self) -> None:
        """Write no more."""
        self._hasher.shutdown()
        super().close()
