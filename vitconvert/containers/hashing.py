"""Content hashes: sha256 for weights, git's blob hash for the small files of a Hub repository."""

import hashlib
from pathlib import Path

_CHUNK = 4 << 20


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
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
