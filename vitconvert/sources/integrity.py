"""Does a file hold what was published under its name?"""

import re
from pathlib import Path

from vitconvert.errors import IntegrityError
from vitconvert.formats.hashing import git_blob_hash

# The Hub publishes sha256 for files in LFS and git's own hash for the rest; the names of the
# blobs in its cache are the same hashes (huggingface_hub 2.4, file_download.py).
SHA256 = "sha256"
GIT_BLOB = "git blob"
_DIGITS = {SHA256: re.compile("[0-9a-f]{64}"), GIT_BLOB: re.compile("[0-9a-f]{40}")}


def kind_of(published: str) -> str | None:
    """Which of the two hashes has these digits, None for neither."""
    return next((kind for kind, digits in _DIGITS.items() if digits.fullmatch(published)), None)


def check_published(path: Path, *, name: str, sha256: str, published: str) -> bool:
    """Whether a published hash of a known kind vouches for a file.

    Raises:
        IntegrityError: It contradicts the file.
    """
    if (kind := kind_of(published)) is None:
        return False
    found = sha256 if kind == SHA256 else git_blob_hash(path)
    if found != published:
        raise mismatch(path, name=name, kind=kind, published=published, found=found)
    return True


def mismatch(
    path: Path | None, *, name: str, kind: str, published: str, found: str
) -> IntegrityError:
    """The error for a file that is not what was published.

    Args:
        path: What to remove; None for a file that was not kept when it arrived.
        name: Of the file.
        kind: Of hash.
        published: The hash that it should have, or the first digits of it.
        found: The hash that it has.
    """
    again = "run again; if it repeats, the server or a proxy alters the file."
    return IntegrityError(
        f"{name} is not the file that was published.",
        evidence={"published": f"{kind} {published}", "found": f"{kind} {found}"},
        meaning="It was damaged on the way or on this disk, or changed by someone.",
        hint=f"remove {path.resolve()} and run again" if path else again,
    )
