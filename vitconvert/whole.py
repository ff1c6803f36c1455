"""Writing files and folders that appear whole or not at all, whatever happens meanwhile.

Each is written beside its place under a name of its own (`.vitconvert-….part`), flushed, and moved
into its place at once. The process that writes it holds a lock on it, which the system releases
when the process ends, however it ends: so later writers know which remains may be removed.
"""

import errno
import hashlib
import io
import mmap
import os
import re
import secrets
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import OutputExists, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

_NAME = re.compile(r"\.vitconvert-[0-9a-f]{16}\.part")
_BINARY: int = getattr(os, "O_BINARY", 0)  # only Windows distinguishes text from bytes
_BLOCK = 4096  # of a disk: direct writes begin and end at its multiples
_BUFFERS, _BUFFER = 4, 2 * 2**20  # one is filled while others are written and hashed
_WRITE_BACK = 16 * 2**20  # bytes after which the disk is told to begin

Check = Callable[[Path], None]
"""Raises OutputExists where something lies at a path that may not be replaced."""


def require_possible(path: Path) -> None:
    """Refuse a path where nothing can be: longer than names are, with NUL, beyond what we may see.

    Raises:
        UsageError: It is one.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # whoever makes it finds out what is missing
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _impossible(path, reason, hint="-o names another.") from None


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
            hint=f"`mkdir -p {shlex.quote(str(path.parent))}` makes it.",
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
            "The output is there already.",
            evidence={"output": there},
            hint="--force (in Python, overwrite=True) replaces it, if vitconvert wrote it.",
        )
    if not is_ours(path):
        raise OutputExists(
            "vitconvert did not write what lies there, and does not replace it.",
            evidence={"output": there},
            hint="name another file.",
        )


def _impossible(path: Path, reason: object, hint: str | None = None) -> UsageError:
    return UsageError(
        "The output cannot be written.", evidence={"output": path, "reason": reason}, hint=hint
    )


@contextmanager
def whole_file(
    path: Path,
    *,
    read_soon: bool = True,
    scratch: Path | None = None,
    check: Check | None = None,
) -> Iterator["SequentialWriter"]:
    """Write to a temporary file that replaces `path` when the block ends without an error.

    If the block raises, `path` keeps what it had and nothing is left beside it. The file gets the
    permissions that the umask grants, like any other new file. After the block it is on disk, and
    its `sha256` is known.

    Args:
        path: The file.
        read_soon: As for `SequentialWriter`.
        scratch: The folder of the temporary file, on the same file system; by default, beside it.
        check: For an output that a user names: called with `path` before what appeared there
            meanwhile is replaced. What killed processes left beside it is removed. Without it,
            whatever is there is replaced.

    Raises:
        UsageError: `path` is a directory, or no file can be made in its directory.
    """
    require_file(path)
    if check is not None:
        remove_remains(path.parent)
    temporary, descriptor = _begin(path, scratch or path.parent)
    try:
        with (
            os.fdopen(descriptor, "wb", buffering=0) as file,
            SequentialWriter(file.fileno(), read_soon=read_soon) as writer,
        ):
            yield writer
            writer.finish()
            _put(temporary, path, check)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def whole_files(path: Path, check: Check) -> Iterator[Path]:
    """Give a path of the same name in a hidden folder; what is there moves when the block ends.

    A reader of `path` finds the earlier file, or nothing for a moment, or all that is new: `path`
    is removed before its companions change, and moved last. If the block raises, nothing is left.

    Args:
        path: The file; programs may write others beside it.
        check: As for `whole_file`.

    Raises:
        UsageError: No file can be there.
    """
    require_file(path)
    remove_remains(path.parent)
    folder, descriptor = _begin(path, path.parent, folder=True)
    try:
        yield folder / path.name
        made = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in made:
            sync(file)
        check(path)
        if len(made) > 1:
            for file in reversed(made):
                (path.parent / file.name).unlink(missing_ok=True)
        for file in made:
            _put(file, path.parent / file.name, lambda _: check(path))
        sync(path.parent)
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def whole_directory(path: Path, check: Check, discard: Callable[[Path], None]) -> Iterator[Path]:
    """Give a temporary directory that replaces `path` when the block ends without an error.

    If the block raises, or the process is killed, `path` does not change. The temporary directory
    is `new` in a hidden folder. Where the system cannot swap directories in one step, an earlier
    output is moved to `old/NAME` in that folder first; if the process is killed there, the next
    writer moves it back.

    Args:
        path: The directory. A link is followed.
        check: Raises where no directory may be written at a path, or what is there may not be
            replaced. Called before the block, after it, and on what was replaced: a file may have
            been added meanwhile.
        discard: Removes a directory that is replaced or unfinished; it leaves what others added.

    Raises:
        UsageError: No directory can be made beside `path`.
    """
    check(path)
    path = Path(os.path.realpath(path))  # Path.resolve fails for circular links
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _impossible(path, error.strerror) from None
    remove_remains(path.parent, discard)
    folder, descriptor = _begin(path, path.parent, folder=True)
    try:
        new = folder / "new"
        new.mkdir()
        yield new
        for place in new.rglob("*"):
            sync(place)
        sync(new)
        try:
            new.rename(path)  # onto nothing, or onto an empty directory
        except OSError:
            if not path.is_dir():
                raise
            check(path)
            _replace(new, path, check)
        sync(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise
    finally:
        _remove_folder(folder, discard)
        os.close(descriptor)


def is_unfinished(path: Path) -> bool:
    """Whether a path is one of those that outputs are written to before they are whole."""
    return any(map(_NAME.fullmatch, path.absolute().parts))


def _replace(new: Path, path: Path, check: Check) -> None:
    """Replace a directory, unless a file was added to it after the check."""
    if _exchange(new, path):
        try:
            check(new)
        except OutputExists:
            _exchange(new, path)
            check(path)  # the same error, about this path
            raise
        return
    old = new.with_name("old") / path.name
    old.parent.mkdir()
    path.rename(old)
    try:
        check(old)
        new.rename(path)
    except BaseException as error:
        old.rename(path)
        if isinstance(error, OutputExists):
            check(path)
        raise


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


def _begin(path: Path, directory: Path, *, folder: bool = False) -> tuple[Path, int]:
    """A new file or folder that becomes the output at `path`, and the descriptor of its lock."""
    while True:
        place = directory / f".vitconvert-{secrets.token_hex(8)}.part"
        made = False
        try:
            if folder:
                place.mkdir()
                made = True
                descriptor = os.open(place, os.O_RDONLY)
            else:  # not tempfile, whose files no one else may read
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
                descriptor = os.open(place, flags, 0o666)
        except OSError as error:
            if made and isinstance(error, FileNotFoundError):
                continue  # another process removed it before it was open
            raise _impossible(path, error.strerror) from error
        # Before it is locked, another process may remove it as remains; then try the next name.
        with suppress(FileNotFoundError):
            if _lock(descriptor) and os.path.samestat(os.fstat(descriptor), place.stat()):
                return place, descriptor
        os.close(descriptor)


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


def remove_remains(directory: Path, discard: Callable[[Path], None] | None = None) -> None:
    """Remove what processes left in a directory that were killed while they wrote there.

    Args:
        directory: Where.
        discard: As for `whole_directory`; without it, the remains of directories stay.
    """
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
                mode = os.fstat(descriptor).st_mode
                if stat.S_ISREG(mode):
                    place.unlink()
                elif stat.S_ISDIR(mode):
                    _remove_folder(place, discard)
            finally:
                os.close(descriptor)


def _remove_folder(folder: Path, discard: Callable[[Path], None] | None) -> None:
    """Remove a hidden folder, but nothing that was not made by the functions above."""
    with suppress(OSError):
        if discard is not None:
            if (folder / "new").is_dir():
                discard(folder / "new")
            for old in folder.glob("old/*"):
                if (folder.parent / old.name).exists():
                    discard(old)
                else:  # killed between two renames
                    old.rename(folder.parent / old.name)
            if (folder / "old").exists():
                (folder / "old").rmdir()  # fails where `discard` left something
        for file in folder.iterdir():
            file.unlink()  # fails for a folder, which stays with what holds it
        folder.rmdir()


def _put(finished: Path, path: Path, check: Check | None) -> None:
    """Give a finished file its name; `check` as for `whole_file`."""
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


def sync(place: Path) -> None:
    """Make a file, or the names in a directory, survive a power cut, where the system can."""
    is_directory = place.is_dir()
    if is_directory and os.name == "nt":
        return
    descriptor = os.open(place, os.O_RDONLY if is_directory else os.O_RDWR | _BINARY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SequentialWriter(io.RawIOBase):
    """Adds to an empty file, and knows the sha256 of the file once it is finished.

    What is written is gathered in a ring of buffers. While the caller makes more, one thread gives
    full buffers to the disk and another hashes them: nothing is read again for its sha256. An error
    in one of these threads is raised by a later call here.

    Args:
        descriptor: The file.
        read_soon: Whether the file is read as soon as it is written. If not, it is written past the
            page cache where the system can (O_DIRECT): a conversion of a ViT-L (1.2 GB) takes 1.9 s
            rather than 2.6 then, and no other file is pushed out of memory.
    """

    def __init__(self, descriptor: int, *, read_soon: bool = True) -> None:
        # Late, with what only writing needs: readers import this module too.
        from concurrent.futures import ThreadPoolExecutor

        super().__init__()
        self.sha256 = ""
        self._descriptor = descriptor
        self._direct = not read_soon and _set_direct(descriptor, True)
        self._hash = hashlib.sha256()
        self._disk, self._hasher = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._position = 0
        self._written = self._begun = 0  # bytes that the disk has been given, and told to begin
        # Mapped memory begins at a block, as direct writes must, and costs nothing before its use.
        self._ring = [memoryview(mmap.mmap(-1, _BUFFER)) for _ in range(_BUFFERS)]
        self._in_use: list[list[Future[None]]] = [[] for _ in range(_BUFFERS)]

    def room(self) -> memoryview:
        """Memory to read a file into: `write` makes no copy of what was read there."""
        number, begin = divmod(self._position, _BUFFER)
        if not begin:
            self._wait(number % _BUFFERS)
        return self._ring[number % _BUFFERS][begin:]

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Add bytes to the end; `data` may change as soon as this returns."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            free = self.room()
            part = rest[: len(free)]
            if part.obj is not free.obj:  # else it was read to where it belongs
                free[: len(part)] = part
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
        last = self._disk.submit(os.fsync, self._descriptor)
        for slot in range(_BUFFERS):
            self._wait(slot)
        last.result()
        self.sha256 = self._hash.hexdigest()

    def close(self) -> None:
        """Write no more, and wait for what is being written."""
        for thread in (self._disk, self._hasher):
            thread.shutdown(cancel_futures=True)
        super().close()

    def _hand_over(self, number: int, size: int) -> None:
        data = self._ring[number % _BUFFERS][:size]
        self._in_use[number % _BUFFERS] = [
            self._disk.submit(self._give_to_disk, data),
            self._hasher.submit(self._hash.update, data),
        ]

    def _wait(self, slot: int) -> None:
        for use in self._in_use[slot]:
            use.result()

    def _give_to_disk(self, data: memoryview) -> None:
        if len(data) % _BLOCK:
            self._use_page_cache()  # for the last bytes
        while data:
            try:
                written = os.write(self._descriptor, data)
            except OSError as error:
                # A disk with larger blocks, or a file system that cannot after all.
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._use_page_cache()
                continue
            data = data[written:]
            self._written += written
        length = self._written - self._begun
        if length >= _WRITE_BACK and not self._direct:
            # Linux begins to write dirty pages of the range out (mm/fadvise.c), so that fsync has
            # little left to wait for, and lets go of clean ones.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._descriptor, self._begun, length, os.POSIX_FADV_DONTNEED)
            self._begun = self._written

    def _use_page_cache(self) -> None:
        self._direct = self._direct and _set_direct(self._descriptor, False)


def _set_direct(descriptor: int, wanted: bool) -> bool:
    """Have a file written past the page cache, or through it; returns whether it is past it now."""
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
