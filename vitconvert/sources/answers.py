"""Answers of servers, checked in this one place before anything is done with them.

A name, a commit and a hash become parts of paths, so they are what they should be or the answer is
refused as a whole: a server does not choose where on this disk something is written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import NoReturn, TypeGuard

from vitconvert.documents import parse_object
from vitconvert.errors import UNPRINTABLE, SourceError

NO_HUB = "HF_ENDPOINT or a proxy may lead to a server that is no Hub."
_UNUSABLE = re.compile(f"[{UNPRINTABLE}]")
_COMMIT = re.compile("[0-9a-f]{40}")
# Eighteen digits are more bytes than any disk has, and fewer than int() refuses to read.
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
# Bytes. File systems take 255, and a download is called ".part.json" behind its own name.
_LONGEST_PART = 240
# RFC 9110, section 8.8.3. A weak one, W/"...", does not promise the same bytes.
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')

# The Hub publishes sha256 for files in LFS and git's own hash for the rest; the names of the
# blobs in its cache are the same hashes (huggingface_hub 2.4, file_download.py).
SHA256 = "sha256"
GIT_BLOB = "git blob"
_DIGITS = {SHA256: re.compile("[0-9a-f]{64}"), GIT_BLOB: re.compile("[0-9a-f]{40}")}


@dataclass(frozen=True, kw_only=True)
class Published:
    """The published hash of a file, and its size where that is published too."""

    hash: str
    size: int | None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One commit of a repository: its files, those without a published hash as None."""

    commit: str
    files: Mapping[str, Published | None]


def read_listing(body: bytes, *, repo: str) -> Listing:
    """The Hub's description of a repository.

    Raises:
        SourceError: It is none, or states what cannot be.
    """

    def refuse(field: str, expected: str, found: object) -> NoReturn:
        raise SourceError(
            f"What the server says of {repo} is not what a Hub says.",
            evidence={"field": field, "expected": expected, "found": shown(found)},
            hint=NO_HUB,
        )

    try:
        answer = parse_object(body)
    except ValueError:
        refuse("the answer", "an object as JSON", body[:60])
    commit, siblings = answer.get("sha"), answer.get("siblings")
    if not is_commit(commit):
        refuse("sha", "40 hexadecimal digits", commit)
    if not isinstance(siblings, list):
        refuse("siblings", "a list of files", siblings)
    files: dict[str, Published | None] = {}
    for sibling in siblings:
        if not isinstance(sibling, dict):
            refuse("a file", "an object", sibling)
        name, lfs = sibling.get("rfilename"), sibling.get("lfs")
        if not isinstance(name, str) or not is_relative_name(name):
            refuse("rfilename", "a path inside the repository", name)
        if lfs is None:
            kind, field, digest, size = (
                GIT_BLOB,
                "blobId",
                sibling.get("blobId"),
                sibling.get("size"),
            )
        elif isinstance(lfs, dict):
            kind, field, digest, size = SHA256, "lfs.sha256", lfs.get("sha256"), lfs.get("size")
        else:
            refuse("lfs", "an object", lfs)
        if size is not None and (type(size) is not int or not 0 <= size < 10**18):
            refuse("size", "a number of bytes", size)
        if digest is not None and (not isinstance(digest, str) or kind_of(digest) != kind):
            refuse(field, f"the digits of a {kind} hash", digest)
        files[name] = None if digest is None else Published(hash=digest, size=size)
    if len(files) != len(siblings):
        refuse("siblings", "each file once", f"{len(siblings) - len(files)} again")
    return Listing(commit=commit, files=files)


def kind_of(published: str) -> str | None:
    """Which of the two hashes has these digits, None for neither."""
    return next((kind for kind, digits in _DIGITS.items() if digits.fullmatch(published)), None)


def is_commit(value: object) -> TypeGuard[str]:
    """Whether this is a commit's whole name."""
    return isinstance(value, str) and _COMMIT.fullmatch(value) is not None


def is_relative_name(name: str) -> bool:
    """Whether a name stays in the folder that it is joined to, on any system."""
    parts = name.split("/")
    return (
        not _UNUSABLE.search(name)
        and "\\" not in name
        and not PureWindowsPath(name).drive
        and not any(part in ("", ".", "..") for part in parts)
        and all(len(part.encode()) <= _LONGEST_PART for part in parts)
    )


def read_range(header: str) -> tuple[int, int, int] | None:
    """A Content-Range (RFC 9110, section 14.4) as start, end and total, or None if it is none."""
    if (match := _RANGE.fullmatch(header)) is None:
        return None
    first, last, total = map(int, match.groups())
    return (first, last + 1, total) if first <= last < total else None


def read_number(header: str | None) -> int | None:
    """A Content-Length or a Retry-After in seconds, or None for what is no number."""
    return int(header) if header is not None and _NUMBER.fullmatch(header) else None


def read_strong_etag(header: str | None) -> str | None:
    """An ETag that promises the same bytes, or None for any other."""
    return header if header is not None and _STRONG_ETAG.fullmatch(header) else None


def shown(value: object) -> str:
    """A server's words, short and without the characters that would steer a terminal."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
