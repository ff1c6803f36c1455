"""Content hashes: sha256 for weights, git's blob hash for the small files of a Hub repository."""

import hashlib
import threading
from pathlib import Path

_CHUNK = 1 << 20


def hash_file(path: Path) -> str:
    """The sha256 of a file's content, as 64 lowercase hexadecimal digits."""
    return _digest(path, hashlib.sha256())


def git_blob_hash(path: Path) -> str:
    """The hash that git, and the Hub for files outside LFS, gives to a file's content.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects, "Object Storage".
    """
    header = f"blob {path.stat().st_size}\0".encode()
    return _digest(path, hashlib.sha1(header, usedforsecurity=False))


def _digest(path: Path, state: "hashlib._Hash") -> str:
    buffer = memoryview(bytearray(_CHUNK))  # one for all: fresh memory costs more than reading
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(buffer):
            state.update(buffer[:read])
    return state.hexdigest()


class FollowingHash:
    """The sha256 of a file while it is written from its beginning to its end, on another core."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = hashlib.sha256()
        self._hashed = self._final = 0
        self._ended = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def advance(self, position: int) -> None:
        """The bytes before `position` are written for good."""
        with self._news:
            self._final = position
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()

    def hexdigest(self) -> str:
        """Wait for the rest, and give 64 lowercase hexadecimal digits."""
        self.close()
        assert self._hashed == self._final
        return self._state.hexdigest()

    def close(self) -> None:
        """Hash what is written, and no more."""
        with self._news:
            self._ended = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        buffer = memoryview(bytearray(_CHUNK))
        with self._path.open("rb", buffering=0) as file:
            while self._wait():
                read = file.readinto(buffer[: self._final - self._hashed])
                if not read:
                    return
                self._state.update(buffer[:read])
                self._hashed += read

    def _wait(self) -> bool:
        """Whether there is more to hash, once that is known."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self._hashed < self._final)
            return self._hashed < self._final
