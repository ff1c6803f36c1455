"""The folder of an output, here or behind a URL, and files in it that appear whole or not at all.

features/  failed/   what was computed, and what was not
vitconvert.json      what it is of; finished/ says what runs left when they ended
tmp/                 what is being written, and locks
"""

import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from vitconvert.errors import CorruptFile, OutputExists, SourceError, UsageError
from vitconvert.whole import require_possible, sync, whole_file

SCRATCH = "tmp"
_PATIENCE = 10  # seconds for a store to answer for the first time
_NOT_REGULAR = "It is not a regular file"
_AT_ONCE: int = getattr(os, "O_NONBLOCK", 0)  # Windows has no pipes among files
_RUNS = re.compile(r"all|only-\d+-of-\d+")


def folder_at(place: str) -> "Folder":
    """The folder that a path or a URL such as s3://bucket/features names.

    Raises:
        UsageError: There can be no such path.
    """
    if "://" in place and not place.startswith("file://"):
        return RemoteFolder(url=place)
    if place.startswith("file://"):
        parts = urlsplit(place)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise UsageError(
                "This URL names no place of this machine.",
                evidence={"URL": place},
                hint="file:/// and a path from the root, or the path alone.",
            )
        place = unquote(parts.path)
    path = Path(place)
    require_possible(path)
    return LocalFolder(path=path)


def open_regular(path: Path, mode: str = "rb") -> IO[bytes]:
    """Open a regular file, and nothing else: a pipe or a device might let us wait for ever.

    Raises:
        OSError: There is none.
    """

    def opener(name: str, how: int) -> int:
        return os.open(name, how | _AT_ONCE, 0o666)

    file: IO[bytes] = open(path, mode, opener=opener)  # noqa: SIM115 (a Path has no opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
    return file


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, or one that several share. No link in it is followed.

    Attributes:
        path: Where it is.
        scratch: Where in it unfinished files lie.
    """

    path: Path
    scratch: str = SCRATCH

    def __str__(self) -> str:
        return str(self.path)

    def entries(self) -> list[str]:
        """Names of what is in it, sorted; none if it is not there."""
        require_possible(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(
                "The output is a file, not a directory.", evidence={"output": self.path}
            )
        return sorted(os.listdir(self.path)) if self.path.exists() else []  # noqa: PTH208

    def names(self, inner: str) -> list[str]:
        """Names of the files in a folder of it, sorted; none if there is no such folder.

        Raises:
            OutputExists: Something else than files and folders is there.
        """
        place = self._own(inner)
        try:
            with os.scandir(place) as entries:
                found = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in found if self._own(f"{inner}/{name}"))

    def _own(self, name: str) -> Path:
        """Where a name of it lies: in this folder, and not where a link leads.

        Raises:
            OutputExists: Somebody else put a link, a pipe or a device there.
        """
        path = self.path
        for part in Path(name).parts:
            path /= part
            with suppress(FileNotFoundError, NotADirectoryError):
                kind = path.lstat().st_mode
                if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                    raise OutputExists(
                        "Something else than a file or a folder is in the output.",
                        evidence={"output": self.path, "link, pipe or device": path},
                        hint="remove it, or name another output with -o.",
                    )
        return path

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file that appears on disk, whole, when the block ends without an error."""
        target, scratch = self._own(name), self._own(self.scratch)
        for directory in (target.parent, scratch):
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                sync(directory.parent)
        with whole_file(target, scratch=scratch) as file:
            yield file  # type: ignore[misc]  # a RawIOBase is enough for whoever writes

    def open(self, name: str) -> IO[bytes]:
        """A file to read."""
        return open_regular(self._own(name))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._own(name).unlink(missing_ok=True)

    @contextmanager
    def held(self, run: str, *, alone: bool) -> Iterator["LocalFolder"]:
        """The folder for one run: no other of its name, or no other at all, writes meanwhile.

        What an earlier run left unfinished is removed. A lock ends with its process, however that
        ends. On shared disks it is as good as their flock(2).

        Raises:
            OutputExists: Another run is on.
            UsageError: Nothing can be written there.
        """
        scratch = self._own(SCRATCH)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                "The output cannot be written.",
                evidence={"output": self.path, "reason": error.strerror},
                hint="-o names another.",
            ) from None
        with (
            _locked(self._own(f"{SCRATCH}/output.lock"), shared=not alone),
            _locked(self._own(f"{SCRATCH}/{run}.lock"), shared=False),
        ):
            for name in filter(_RUNS.fullmatch, os.listdir(scratch)):  # noqa: PTH208
                if alone or name == run:
                    _sweep(self._own(f"{SCRATCH}/{name}"))
            try:
                yield LocalFolder(self.path, f"{SCRATCH}/{run}")
            finally:
                _sweep(scratch / run)  # and what workers that died left in it


def _sweep(scratch: Path) -> None:
    """Remove files of ours that were not finished, and nothing of anybody else's."""
    for path in scratch.glob(".vitconvert-*.part"):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        scratch.rmdir()


@contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[None]:
    if os.name == "nt":  # without flock
        yield
        return
    import fcntl

    with open_regular(path, "ab") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputExists(
                "Another run writes into this output.",
                evidence={"output": path.parent.parent},
                hint="wait for it; or share the work, with --only 1/2 here and --only 2/2 there.",
            ) from None
        yield


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store, by pyarrow: s3://bucket/folder, gs://bucket/folder.

    An object is put in one call after all of it is made. Nothing locks it: two runs that share the
    work by mistake compute the same shards twice and put the same objects.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def entries(self) -> list[str]:
        """Names of what is in it, sorted; none if it is not there."""
        from pyarrow.fs import FileSelector

        system, path = filesystem(self.url)
        found = system.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def names(self, inner: str) -> list[str]:
        """Names of the files in a folder of it, sorted; none if there is no such folder."""
        from pyarrow.fs import FileSelector, FileType

        system, path = self._at(inner)
        found = system.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == FileType.File)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """An object that is put when the block ends without an error."""
        content = io.BytesIO()
        yield content
        system, path = self._at(name)
        # A stream that is closed makes an object of whatever was written: all is there by now.
        with system.open_output_stream(path) as stream:
            stream.write(content.getbuffer())

    def open(self, name: str) -> IO[bytes]:
        """An object to read."""
        system, path = self._at(name)
        file: IO[bytes] = system.open_input_file(path)
        return file

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        from pyarrow.fs import FileType

        system, path = self._at(name)
        if system.get_file_info(path).type == FileType.File:
            system.delete_file(path)

    @contextmanager
    def held(self, run: str, *, alone: bool) -> Iterator["RemoteFolder"]:  # noqa: ARG002
        """The folder as it is: object stores have no locks."""
        yield self

    def _at(self, inner: str) -> tuple[Any, str]:
        system, path = filesystem(self.url)
        return system, f"{path}/{inner}"


Folder = LocalFolder | RemoteFolder


@lru_cache(maxsize=8)  # each is a connection
def filesystem(url: str) -> tuple[Any, str]:
    """pyarrow's filesystem for a URL, and the path in it.

    Raises:
        UsageError: pyarrow has none for it.
        SourceError: The store cannot be reached.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        system, path = FileSystem.from_uri(url)
        if url.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in url:
            _require_answer(url)
    except pa.ArrowInvalid as error:
        raise UsageError(
            "This is no place that can be read or written.", evidence={"URL": url, "why": error}
        ) from None
    except OSError as error:
        raise SourceError(
            "The store cannot be reached.", evidence={"URL": url, "why": error}
        ) from None
    return system, path.rstrip("/")


def _require_answer(url: str) -> None:
    """Google's client asks for a quarter of an hour, without a word: ask once for a shorter time.

    Raises:
        OSError: There is no answer at all. Whether one is a refusal, later calls tell.
    """
    from pyarrow.fs import FileSystem

    patience = f"{'&' if '?' in url else '?'}retry_limit_seconds={_PATIENCE}"
    system, path = FileSystem.from_uri(url + patience)
    try:
        system.get_file_info(path)
    except OSError as error:
        if "Retry policy exhausted" in str(error):
            raise


def read_json(folder: Folder, name: str) -> dict[str, Any]:
    """The object that a JSON file of ours holds.

    Raises:
        CorruptFile: Somebody changed it to something else.
    """
    try:
        with folder.open(name) as file:
            found = json.loads(file.read())
        if not isinstance(found, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        raise CorruptFile(
            "This is no JSON file of ours.",
            evidence={"output": folder, "file": name, "why": error},
        ) from None
    return found


def write_json(folder: Folder, name: str, value: object) -> None:
    """Write a JSON file, whole or not at all."""
    with folder.writing(name) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")
