"""Content hashes: sha256 for weights, git's blob hash for the small files of a Hub repository."""

import hashlib
from pathlib import Path

# Large, because after each chunk a thread may wait 5 ms for another that computes in Python.
_CHUNK = 8 * 2**20


def hash_file(path: Path) -> str:
    """The sha256 of a file's content, as 64 lowercase hexadecimal digits."""
    return _digest(path, hashlib.sha256())


def git_blob_hash(path: Path) -> str:
    """The hash that git, and the Hub for files outside LFS, gives to a file's content."""
    return _digest(path, git_blob_state(path.stat().st_size))


def git_blob_state(size: int) -> "hashlib._Hash":
    """What git's hash of a file of so many bytes begins with.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects, "Object Storage".
    """
    return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


def _digest(path: Path, state: "hashlib._Hash") -> str:
    buffer = memoryview(bytearray(_CHUNK))  # one for all: fresh memory costs more than reading
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(buffer):
            state.update(buffer[:read])
    return state.hexdigest()
