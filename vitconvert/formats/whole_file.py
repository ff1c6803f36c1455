"""Writing files that appear whole or not at all, at the speed of the disk.

What is written is gathered in a ring of buffers. While the caller makes more, one thread gives
full buffers to the disk and another hashes them: nothing is read again for its sha256. Blocks
that another file has already are shared with it where the file system can do that.
"""

import errno
import hashlib
import io
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import UsageError
from vitconvert.formats.unfinished import Check, begin, put, remove_remains

if TYPE_CHECKING:
    from concurrent.futures import Future

BLOCK = 4096  # places and lengths are multiples of it, or the kernel refuses
_FICLONERANGE = 0x4020940D
# Another file system, another kind of file, an older kernel, a sandbox.
_REFUSALS = {
    *(errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV),
    *(errno.EINVAL, errno.ENOSYS, errno.EPERM),
}
_BUFFERS, _BUFFER = 4, 2 * 2**20  # one is filled while others are written and hashed
_WRITE_BACK = 16 * 2**20  # bytes after which the disk is told to begin


def share(source: Path, offset: int, length: int, target: int, begin: int) -> bool:
    """Have a range of a file appear in another, too, until one of them changes.

    Nothing is copied, and nothing takes more room. XFS, btrfs and bcachefs can do that.
    Source: ioctl_ficlonerange(2).

    Args:
        source: The file that has it.
        offset: Where it begins there.
        length: Of the range.
        target: Descriptor of the file that gets it.
        begin: Where it begins there.

    Returns:
        Whether that was done. If not, the other file is as it was.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    with source.open("rb", buffering=0) as file:
        numbers = struct.pack("=q3Q", file.fileno(), offset, length, begin)
        try:
            fcntl.ioctl(target, _FICLONERANGE, numbers)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            return False
    os.lseek(target, begin + length, os.SEEK_SET)
    return True


class SequentialWriter(io.RawIOBase):
    """Adds to an empty file, and knows the sha256 of the file once it is finished.

    An error on one of the other threads is raised by a later call here.

    Args:
        descriptor: The file.
        read_soon: Whether somebody reads the file as soon as it is written. If not, it is written
            past the page cache where the system can (O_DIRECT): 330 MiB then cost the system
            0.02 s of work instead of 0.1 to 0.8 s, and no other file is pushed out of memory.
            But the next reader reads from the disk.
    """

    def __init__(self, descriptor: int, *, read_soon: bool) -> None:
        # Late, with what only writing needs: readers import this module too.
        from concurrent.futures import ThreadPoolExecutor

        super().__init__()
        self.sha256 = ""
        self._file = _File(descriptor, direct=not read_soon)
        self._hash = hashlib.sha256()
        self._threads = ThreadPoolExecutor(1), ThreadPoolExecutor(1)  # disk, hash
        self._position = 0
        self._source: tuple[Path, int] | None = None  # of the buffer that is being filled
        # Mapped memory begins at a block, as direct writes must.
        self._ring = [memoryview(mmap.mmap(-1, _BUFFER)) for _ in range(_BUFFERS)]
        self._in_use: list[list[Future[None]]] = [[] for _ in range(_BUFFERS)]

    def room(self, path: Path, offset: int) -> memoryview:
        """Memory to read a file into. To write what was read there saves a copy, or two.

        Args:
            path: The file.
            offset: Where it will be read.
        """
        begin = self._position % _BUFFER
        source = path, offset - begin  # where the whole buffer would be from
        self._source = source if not begin or self._source == source else None
        return self._free()

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Add bytes to the end; `data` may change as soon as this returns."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            free = self._free()
            part = rest[: len(free)]
            if part.obj is not free.obj:  # else it was read to where it belongs
                free[: len(part)] = part
                self._source = None
            self._position += len(part)
            if len(part) == len(free):
                self._hand_over((self._position - 1) // _BUFFER, _BUFFER)
            rest = rest[len(part) :]
        return size

    def writable(self) -> bool:
        """It is, as programs that write to files of Python ask."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._position

    def finish(self) -> None:
        """Wait until the disk has all, and the hash is known."""
        number, filled = divmod(self._position, _BUFFER)
        if filled:
            self._hand_over(number, filled)
        last = self._threads[0].submit(self._file.sync)
        for slot in range(_BUFFERS):
            self._wait(slot)
        last.result()
        self.sha256 = self._hash.hexdigest()

    def close(self) -> None:
        """Write no more, and wait for what is being written."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        super().close()

    def _free(self) -> memoryview:
        number, begin = divmod(self._position, _BUFFER)
        if not begin:
            self._wait(number % _BUFFERS)
        return self._ring[number % _BUFFERS][begin:]

    def _hand_over(self, number: int, size: int) -> None:
        data = self._ring[number % _BUFFERS][:size]
        disk, hasher = self._threads
        self._in_use[number % _BUFFERS] = [
            disk.submit(self._file.add, data, self._source),
            hasher.submit(self._hash.update, data),
        ]

    def _wait(self, slot: int) -> None:
        for use in self._in_use[slot]:
            use.result()


class _File:
    """A file that grows by buffers that begin at blocks."""

    def __init__(self, descriptor: int, *, direct: bool) -> None:
        self._descriptor = descriptor
        self._direct = direct and _set_direct(descriptor, True)
        self._shares = True  # until that is refused
        self._end = self._begun = 0

    def add(self, data: memoryview, source: tuple[Path, int] | None) -> None:
        """Add all of a buffer; only the last of a file may be no multiple of a block.

        Args:
            data: The buffer.
            source: A file that has the same bytes, and where.
        """
        if len(data) % BLOCK:
            self._use_page_cache()
        elif source and not source[1] % BLOCK and self._shares:
            self._shares = share(*source, len(data), self._descriptor, self._end)
            if self._shares:
                self._end = self._begun = self._end + len(data)
                return
        while data:
            written = self._write(data)
            data = data[written:]
            self._end += written
        if not self._direct and self._end - self._begun >= _WRITE_BACK:
            self._begin_to_write_back()

    def sync(self) -> None:
        """Wait until the disk has what was added."""
        os.fsync(self._descriptor)

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            # A disk with larger blocks, or a file system that cannot after all.
            if not self._direct or error.errno != errno.EINVAL:
                raise
        self._use_page_cache()
        return os.write(self._descriptor, data)

    def _use_page_cache(self) -> None:
        self._direct = self._direct and _set_direct(self._descriptor, False)

    def _begin_to_write_back(self) -> None:
        """Have the disk begin, so that fsync has little left to wait for."""
        if hasattr(os, "posix_fadvise"):
            # Linux begins to write dirty pages of the range out (mm/fadvise.c), and lets go of
            # clean ones; where it does not, nothing is lost.
            length, advice = self._end - self._begun, os.POSIX_FADV_DONTNEED
            os.posix_fadvise(self._descriptor, self._begun, length, advice)
        self._begun = self._end


def _set_direct(descriptor: int, wanted: bool) -> bool:
    """Have a file written past the page cache, or through it; says whether it is past it now."""
    if not hasattr(os, "O_DIRECT"):  # of Linux and FreeBSD
        return False
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return wanted


def require_possible(path: Path) -> None:
    """Refuse a path where nothing can be: longer than names are, with NUL, beyond what we may see.

    Raises:
        UsageError: So it is.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # whoever makes it finds out what is missing
    except (OSError, ValueError) as error:
        raise UsageError(
            "The output cannot be written.",
            evidence={"output": path, "reason": getattr(error, "strerror", None) or error},
            hint="-o names another.",
        ) from None


def require_place(path: Path) -> None:
    """Refuse a path in a directory that does not exist, or with an impossible name.

    Raises:
        UsageError: So it is.
    """
    require_possible(path)
    if not path.parent.is_dir():
        raise UsageError(
            "The directory of the output does not exist.", evidence={"directory": path.parent}
        )


def require_file(path: Path) -> None:
    """Refuse a path where no file can be.

    Raises:
        UsageError: It is a directory, its own directory does not exist, or its name is impossible.
    """
    require_place(path)
    if path.is_dir():
        raise UsageError("The output is a directory, not a file.", evidence={"output": path})


def begun(path: Path, directory: Path, *, folder: bool = False) -> tuple[Path, int]:
    """A new file or folder that becomes the output at `path`, as `begin` gives it.

    Raises:
        UsageError: None can be made there.
    """
    try:
        return begin(directory, folder=folder)
    except OSError as error:
        raise UsageError(
            "The output cannot be written.", evidence={"output": path, "reason": error.strerror}
        ) from error


@contextmanager
def whole_file(
    path: Path,
    *,
    read_soon: bool = True,
    scratch: Path | None = None,
    check: Check | None = None,
) -> Iterator[SequentialWriter]:
    """Write to a temporary file that replaces `path` when the block ends without an error.

    Whatever interrupts the block, `path` keeps what it had and nothing is left beside it. The
    file gets the permissions that the umask grants, like any other new file. After
    the block it is on disk, and `sha256` is known.

    Args:
        path: The file.
        read_soon: As for SequentialWriter.
        scratch: Where the temporary file lies, on the same file system; by default, beside it.
        check: Of an output that a user names: raises where something that appeared at `path`
            meanwhile may not be replaced. What killed processes left beside it is removed.

    Raises:
        UsageError: `path` is a directory, or no file can be made in its directory.
    """
    require_file(path)
    if check is not None:
        remove_remains(path.parent)
    temporary, descriptor = begun(path, scratch or path.parent)
    try:
        with (
            os.fdopen(descriptor, "wb", buffering=0) as file,
            SequentialWriter(file.fileno(), read_soon=read_soon) as writer,
        ):
            yield writer
            writer.finish()
            put(temporary, path, check)
    finally:
        temporary.unlink(missing_ok=True)
    sync_names(path.parent)


def sync_names(directory: Path) -> None:
    """Make the names in a directory survive a power cut, where the system can."""
    if os.name == "nt":  # they cannot
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
