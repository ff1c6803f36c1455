"""The folder of an output, here or behind a URL, and files in it that appear whole or not at all.

features/  failed/   what was computed, and what was not
plan/                what there is to compute
tmp/                 what is being written, and locks
"""

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from vitconvert.containers.whole_file import sync_names, whole_file
from vitconvert.errors import OutputExists, SourceError, UsageError

SCRATCH = "tmp"


class Folder(Protocol):
    """Files by names such as "plan/plan.json"."""

    def names(self, inner: str) -> list[str]:
        """Names of the files in a folder of it, sorted; none if there is no such folder."""

    def writing(self, name: str) -> Any:
        """A context with a binary file, that appears when the block ends without an error."""

    def open(self, name: str) -> IO[bytes]:
        """A file to read, in any order."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def held(self, run: str, *, alone: bool) -> Any:
        """A context in which no other run of this name, or no other at all, writes here."""


def folder_at(place: str) -> Folder:
    """The folder that a path or a URL such as s3://bucket/features names."""
    return RemoteFolder(url=place) if "://" in place else LocalFolder(path=Path(place))


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

    def names(self, inner: str) -> list[str]:
        """Names of the files in a folder of it, sorted; none if there is no such folder."""
        try:
            with os.scandir(self.path / inner) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file that appears on disk, whole, when the block ends without an error."""
        target, scratch = self.path / name, self.path / self.scratch
        for directory in (target.parent, scratch):
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                sync_names(directory.parent)
        with whole_file(target, scratch=scratch) as file:
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
        """
        scratch = self.path / SCRATCH
        scratch.mkdir(parents=True, exist_ok=True)
        with (
            _locked(scratch / "output.lock", shared=not alone),
            _locked(scratch / f"{run}.lock", shared=False),
        ):
            for path in scratch.iterdir() if alone else [scratch / run]:
                if path.is_dir():
                    shutil.rmtree(path)
            yield LocalFolder(self.path, f"{SCRATCH}/{run}")
            shutil.rmtree(scratch / run, ignore_errors=True)  # what workers that died left


@contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[None]:
    if os.name == "nt":  # without flock
        yield
        return
    import fcntl

    with path.open("a") as file:
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
    except pa.ArrowInvalid as error:
        raise UsageError(
            "This is no place that can be read or written.", evidence={"URL": url, "why": error}
        ) from None
    except OSError as error:
        raise SourceError(
            "The store cannot be reached.", evidence={"URL": url, "why": error}
        ) from None
    return system, path.rstrip("/")


def read_json(folder: Folder, name: str) -> dict[str, Any]:
    """The object that a JSON file of ours holds."""
    with folder.open(name) as file:
        found: dict[str, Any] = json.loads(file.read())
    return found


def write_json(folder: Folder, name: str, value: object) -> None:
    """Write a JSON file, whole or not at all."""
    with folder.writing(name) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")
