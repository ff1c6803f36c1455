"""The folder of an output, here or behind a URL, and files in it that appear whole or not at all.

features/  failed/   what was computed, and what was not
vitconvert.json      what it is of; finished/ says what runs left when they ended
tmp/                 what is being written, and locks
"""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from vitconvert.atomic_write import atomic_file, is_unfinished, require_possible, sync
from vitconvert.embedding.files import asking, filesystem
from vitconvert.errors import CorruptFile, OutputExists, UsageError, without_secrets

SCRATCH = "tmp"
_SHARERS = 1024  # of one output at once, at most
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
                "This URL does not name a path of this machine.",
                evidence={"URL": place},
                hint="write file:/// and a path from the root, or only the path.",
            )
        place = url2pathname(parts.path)
    path = Path(place)
    require_possible(path)
    return LocalFolder(path=path)


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, or one that several share.

    Attributes:
        path: Where it is.
        scratch: Where in it unfinished files lie.
    """

    path: Path
    scratch: str = SCRATCH

    def __str__(self) -> str:
        return str(self.path)

    def names(self, inner: str = "") -> list[str]:
        """Names of what is in it, or in a folder of it, sorted; none if there is no such folder.

        Raises:
            UsageError: It is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(
                "The output is a file, not a directory.", evidence={"output": self.path}
            )
        try:
            return sorted(os.listdir(self.path / inner))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file that appears on disk, whole, when the block ends without an error."""
        target, scratch = self.path / name, self.path / self.scratch
        for directory in (target.parent, scratch):
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                sync(directory.parent)
        with atomic_file(target, scratch=scratch) as file:
            yield file  # type: ignore[misc]  # a RawIOBase is enough for whoever writes

    def open(self, name: str) -> IO[bytes]:
        """A file to read."""
        return (self.path / name).open("rb")

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def held(self, run: str, *, alone: bool) -> Iterator["LocalFolder"]:
        """The folder for one run: no other of its name, or no other at all, writes meanwhile.

        What an earlier run left unfinished is removed. A lock ends with its process, however that
        ends. On shared disks it is as good as their flock(2).

        Raises:
            OutputExists: Another run is on.
            UsageError: Nothing can be written there.
        """
        scratch = self.path / SCRATCH
        try:
            scratch.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                "The output cannot be written.",
                evidence={"output": self.path, "reason": error.strerror},
                hint="-o names another.",
            ) from None
        with (
            _locked(self.path / f"{SCRATCH}/output.lock", shared=not alone),
            _locked(self.path / f"{SCRATCH}/{run}.lock", shared=False),
        ):
            for name in filter(_RUNS.fullmatch, os.listdir(scratch)):  # noqa: PTH208
                if alone or name == run:
                    _sweep(self.path / f"{SCRATCH}/{name}")
            try:
                yield LocalFolder(self.path, f"{SCRATCH}/{run}")
            finally:
                _sweep(scratch / run)  # and what workers that died left in it


def _sweep(scratch: Path) -> None:
    """Remove files of ours that were not finished, and nothing of anybody else's."""
    for path in filter(is_unfinished, scratch.glob(".*.part")):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        scratch.rmdir()


@contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[None]:
    with path.open("ab") as file:
        try:
            _lock(file, shared=shared)
        except (BlockingIOError, PermissionError):
            raise OutputExists(
                "Another run writes into this output.",
                evidence={"output": path.parent.parent},
                hint="wait for it; or share the work, with --only 1/2 here and --only 2/2 there.",
            ) from None
        yield


def _lock(file: IO[bytes], *, shared: bool) -> None:
    """Lock an open file until it is closed.

    Windows locks single bytes, and none for several processes: who shares a file takes the first
    byte that is free, and who has it alone takes all of them.

    Raises:
        BlockingIOError, PermissionError: Somebody else holds it.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return
    import msvcrt

    for first in range(_SHARERS if shared else 1):
        file.seek(first)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1 if shared else _SHARERS)
            return
        except PermissionError:
            if not shared or first == _SHARERS - 1:
                raise


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store, by pyarrow: s3://bucket/folder, gs://bucket/folder.

    An object is put in one call after all of it is made. Nothing locks it: two runs that share the
    work by mistake compute the same shards twice and put the same objects.
    """

    url: str

    def __str__(self) -> str:
        return without_secrets(self.url)

    def names(self, inner: str = "") -> list[str]:
        """Names of what is in it, or in a folder of it, sorted; none if there is no such folder."""
        from pyarrow.fs import FileSelector

        system, path = filesystem(self.url)
        place = f"{path}/{inner}" if inner else path
        with asking(self.url):
            found = system.get_file_info(FileSelector(place, allow_not_found=True))
        return sorted(info.base_name for info in found)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """An object that is put when the block ends without an error."""
        content = io.BytesIO()
        yield content
        system, path = filesystem(self.url)
        # A stream that is closed makes an object of whatever was written: all is there by now.
        with asking(self.url), system.open_output_stream(f"{path}/{name}") as stream:
            stream.write(content.getbuffer())

    def open(self, name: str) -> IO[bytes]:
        """An object to read."""
        system, path = filesystem(self.url)
        with asking(self.url):
            file: IO[bytes] = system.open_input_file(f"{path}/{name}")
        return file

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        system, path = filesystem(self.url)
        with asking(self.url), suppress(FileNotFoundError):
            system.delete_file(f"{path}/{name}")

    @contextmanager
    def held(self, run: str, *, alone: bool) -> Iterator["RemoteFolder"]:  # noqa: ARG002
        """The folder as it is: object stores have no locks."""
        yield self


Folder = LocalFolder | RemoteFolder


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
            "vitconvert did not write this JSON file.",
            evidence={"output": folder, "file": name, "why": error},
        ) from None
    return found


def write_json(folder: Folder, name: str, value: object) -> None:
    """Write a JSON file, whole or not at all."""
    with folder.writing(name) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")
