"""Does a file hold what was published under its name?"""

import re
from pathlib import Path

from vitconvert.containers.hashing import git_blob_hash
from vitconvert.errors import IntegrityError

# The Hub publishes sha256 for files in LFS and git's own hash for the rest; the names of the
# blobs in its cache are the same hashes (huggingface_hub 2.4, file_download.py).
_SHA256 = re.compile("[0-9a-f]{64}")
_GIT = re.compile("[0-9a-f]{40}")


def check_published(path: Path, *, name: str, sha256: str, published: str) -> bool:
    """Whether a published hash of a known kind vouches for a file.

    Raises:
        IntegrityError: It contradicts the file.
    """
    if _SHA256.fullmatch(published):
        kind, found = "sha256", sha256
    elif _GIT.fullmatch(published):
        kind, found = "git blob", git_blob_hash(path)
    else:
        return False
    if found != published:
        raise mismatch(path, name=name, kind=kind, published=published, found=found)
    return True


def mismatch(path: Path, *, name: str, kind: str, published: str, found: str) -> IntegrityError:
    """The error for a file that is not what was published; says which file to remove."""
    return IntegrityError(
        f"{name} is not the file that was published.",
        evidence={"published": f"{kind} {published}", "found": f"{kind} {found}"},
        meaning="It was damaged on the way or on this disk, or changed by someone.",
        hint=f"remove {path.resolve()} and run again",
    )
