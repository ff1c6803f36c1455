"""A file as it arrives: resumed, measured, hashed.

While it arrives it is called `.part`, and `.part.json` keeps the ETag and the size that say whether
a later run may go on where this one stopped (RFC 9110, sections 13.1.5 and 14.2). An answer that
goes on must repeat both, begin where it was asked to, and the whole must have the published hash;
where one of these fails, the file is begun again. It is whole when it has the announced size: an
answer that announces none, and marks no end either, is refused.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from vitconvert.documents import parse_object
from vitconvert.errors import IntegrityError, SourceError
from vitconvert.formats.hashing import git_blob_hash, git_blob_state
from vitconvert.sources.answers import (
    SHA256,
    kind_of,
    read_number,
    read_range,
    read_strong_etag,
    shown,
)
from vitconvert.sources.transport import get, transport_errors

if TYPE_CHECKING:
    from httpx2 import Response

_CHUNK = 1 << 20
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to get.

    Attributes:
        url: Where it is.
        headers: To send with the request.
        name: What to call it in messages.
        refuse: Turns an answer whose status is an error into ours.
        kind: Of the published hash.
        hash: Its first digits, all of them, or none where nothing is published.
        size: In bytes, where it is published.
        etags: What ranges of it came with: of one file it is one.
    """

    url: str
    headers: Mapping[str, str]
    name: str
    refuse: Callable[["Response"], SourceError]
    kind: str = SHA256
    hash: str = ""
    size: int | None = None
    etags: set[str] = field(default_factory=set, compare=False)


@dataclass(frozen=True, kw_only=True)
class Received:
    """A whole file at its `.part`, the hash of the kind that was wanted, and the last headers."""

    hash: str
    headers: Mapping[str, str]


class BrokenOff(Exception):
    """The connection ended before the file did, in every attempt.

    Attributes:
        cause: What the last attempt met.
        received: Bytes that are there, and kept.
    """

    def __init__(self, cause: Exception, received: int) -> None:
        self.cause = cause
        self.received = received
        super().__init__(str(cause) or type(cause).__name__)


class _Incomplete(Exception):
    """An answer that is right so far, and ends too early or cannot be gone on with."""


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """How much of a file is there, of how much, and the ETag that it was sent with."""

    etag: str
    size: int
    total: int


@dataclass(frozen=True, kw_only=True)
class _Body:
    """The bytes that an answer brings: from where, until where, of how many."""

    start: int
    end: int | None
    total: int | None


def receive(wanted: Wanted, part: Path, *, quiet: bool) -> Received:
    """Get the whole file to `part`, and compare it with what is published of it.

    Raises:
        SourceError: The server refuses, or contradicts itself or what is published.
        IntegrityError: The file is not the one that was published; it is not kept.
        BrokenOff: The connection does not hold; what has arrived is kept.
    """
    failures: tuple[type[Exception], ...] = (_Incomplete, *transport_errors())
    for _ in range(_ATTEMPTS):
        memory = _remembered(part, wanted)
        try:
            received = _receive(wanted, part, memory, quiet=quiet)
        except failures as error:
            cause: Exception = error
            continue
        if received is not None and received.hash.startswith(wanted.hash):
            _memory_path(part).unlink(missing_ok=True)
            return received
        _forget(part)
        if received is not None and memory is None:
            raise _mismatch(wanted, received)
        cause = _Incomplete("the server goes on with another file than the one that it began")
    raise BrokenOff(cause, part.stat().st_size if part.is_file() else 0) from cause


def _receive(wanted: Wanted, part: Path, memory: _Memory | None, *, quiet: bool) -> Received | None:
    """The file, or None where the answer does not go on from what is there."""
    headers = dict(wanted.headers)
    if memory is not None:
        headers |= {"Range": f"bytes={memory.size}-", "If-Range": memory.etag}
    with get(wanted.url, headers) as answer:
        if memory is not None and answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise wanted.refuse(answer)
        if (body := _body(wanted, answer, memory)) is None:
            return None
        digest = _digest(wanted, part, body)
        with part.open("r+b" if body.start else "wb") as file:
            if not body.start:
                # Only now: the ETag of one version must never vouch for the bytes of another.
                _remember(part, answer, body)
            file.seek(body.start)
            size = _stream(wanted, answer, body, file, digest, quiet=quiet)
    if (missing := (body.total or size) - size) > 0:
        raise _Incomplete(f"{missing} bytes were missing")
    if wanted.size not in (None, size):
        raise _contradiction(wanted, "size", wanted.size, size)
    return Received(hash=digest.hexdigest(), headers=answer.headers)


def _body(wanted: Wanted, answer: "Response", memory: _Memory | None) -> _Body | None:
    """What an answer brings, or None where it does not go on from what is there."""
    headers = answer.headers
    if (encoding := headers.get("Content-Encoding", "identity")) != "identity":
        raise _contradiction(wanted, "Content-Encoding", "identity", encoding)
    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
        if memory is None:
            raise _contradiction(wanted, "status", HTTPStatus.OK.value, answer.status_code)
        found = read_range(headers.get("Content-Range", ""))
        if found is None or (found.start, found.total) != (memory.size, memory.total):
            return None
        if headers.get("ETag") != memory.etag:
            return None
        return _Body(start=found.start, end=found.end, total=found.total)
    length = read_number(headers.get("Content-Length"))
    if length is None and not _marks_its_end(answer):
        found_length = headers.get("Content-Length", "none")
        raise _contradiction(wanted, "Content-Length", "a number of bytes", found_length)
    if length is not None and wanted.size not in (None, length):
        raise _contradiction(wanted, "Content-Length", wanted.size, length)
    return _Body(start=0, end=length, total=length)


def _marks_its_end(answer: "Response") -> bool:
    # Elsewhere the end of the connection is the end of the file, or of the line (RFC 9112, 6.3).
    chunked = answer.headers.get("Transfer-Encoding", "").lower() == "chunked"
    return answer.http_version == "HTTP/2" or (chunked and "Content-Length" not in answer.headers)


def _digest(wanted: Wanted, part: Path, body: _Body) -> "hashlib._Hash":
    """The hash so far."""
    if wanted.kind == SHA256:
        digest = hashlib.sha256()
    elif (total := body.total if wanted.size is None else wanted.size) is not None:
        digest = git_blob_state(total)
    else:
        raise _contradiction(wanted, "Content-Length", "a number of bytes", "none")
    if body.start:
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest


def _stream(
    wanted: Wanted,
    answer: "Response",
    body: _Body,
    file: IO[bytes],
    digest: "hashlib._Hash",
    *,
    quiet: bool,
) -> int:
    """Write what arrives, and return the size of the file so far."""
    from huggingface_hub.utils import are_progress_bars_disabled  # type: ignore[attr-defined]

    # tqdm shows nothing by itself where stderr is no terminal, if disable is None.
    hidden = quiet or are_progress_bars_disabled()
    limit = wanted.size if body.end is None else body.end
    size = body.start
    with tqdm(
        desc=wanted.name,
        initial=size,
        total=body.total,
        unit="B",
        unit_scale=True,
        disable=True if hidden else None,
        file=sys.stderr,
    ) as bar:
        # As it arrives: gathered into larger chunks, the last would be lost with the connection.
        for chunk in answer.iter_raw():
            size += len(chunk)
            if limit is not None and size > limit:
                raise _contradiction(wanted, "size", limit, f"{size} and more")
            file.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))
    return size


def _memory_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remembered(part: Path, wanted: Wanted) -> _Memory | None:
    """What is there of a file, if it can be gone on with."""
    try:
        fields = parse_object(_memory_path(part).read_bytes())
        etag, total = read_strong_etag(fields["etag"]), int(fields["total"])
        size = part.stat().st_size
    except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if etag is None or not 0 < size < total or wanted.size not in (None, total):
        return None
    return _Memory(etag=etag, size=size, total=total)


def _remember(part: Path, answer: "Response", body: _Body) -> None:
    etag = read_strong_etag(answer.headers.get("ETag"))
    memory = _memory_path(part)
    if etag is None or body.total is None:
        memory.unlink(missing_ok=True)
    else:
        memory.write_text(json.dumps({"etag": etag, "total": body.total}), encoding="utf-8")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _memory_path(part).unlink(missing_ok=True)


def _mismatch(wanted: Wanted, received: Received) -> IntegrityError:
    return mismatch(
        None,
        name=wanted.name,
        kind=wanted.kind,
        published=wanted.hash,
        found=received.hash[: len(wanted.hash)],
    )


def _contradiction(wanted: Wanted, field: str, expected: object, found: object) -> SourceError:
    return SourceError(
        f"What the server sends of {wanted.name} is not what it announced.",
        evidence={
            "address": wanted.url,
            "field": field,
            "expected": expected,
            "found": shown(found),
        },
        hint="run again; if it repeats, the server or a proxy alters the file.",
    )


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
