"""A file as it arrives: resumed, measured, hashed; or a range of it.

While it arrives it is called `.part`, and `.part.json` keeps the ETag and the size that decide
whether a later run may go on where this one stopped (RFC 9110, sections 13.1.5 and 14.2). An answer
that goes on must repeat both, begin where it was asked to, and the whole must have the published
hash; where one of these fails, the file is begun again. It is whole when it has the announced size:
an answer that announces none, and marks no end either, is refused.

The Hub's client (huggingface_hub 2.4) does not do this: `_download_to_tmp_and_move` removes what
arrived when a download breaks off, so a later run begins again; `http_get` adds any answer 206 to
what is there, whatever its Content-Range and ETag, and asks without end if each brings a byte; and
`HfFileSystemFile._fetch_range` takes a whole file into memory where a server ignores Range.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from vitconvert.documents import parse_object
from vitconvert.errors import IntegrityError, SourceError
from vitconvert.formats.hashing import git_blob_state
from vitconvert.sources.answers import (
    SHA256,
    kind_of,
    read_number,
    read_range,
    read_strong_etag,
    shown,
)
from vitconvert.sources.transport import get, is_unreachable, offline_error, transport_errors

if TYPE_CHECKING:
    from httpx2 import Response

_CHUNK = 1 << 20
_ATTEMPTS = 3
_ALTERED = "run again; if it repeats, the server or a proxy alters the file."


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to get.

    Attributes:
        url: Where it is.
        headers: To send with the request.
        name: What to call it in messages.
        refuse: Turns an answer whose status is an error into ours.
        hash: First digits of the published hash, all of them, or none if nothing is published.
        size: In bytes, where it is published.
        etags: Those that ranges of it came with: of one file it is one.
    """

    url: str
    headers: Mapping[str, str]
    name: str
    refuse: Callable[["Response"], SourceError]
    hash: str = ""
    size: int | None = None
    etags: set[str] = field(default_factory=set, compare=False)

    @property
    def kind(self) -> str:
        """The kind of its hash."""
        return kind_of(self.hash) or SHA256

    def contradicted(self, field: str, expected: object, found: object) -> SourceError:
        """The error for an answer that is not about this file."""
        return SourceError(
            f"What the server sends of {self.name} is not what it announced.",
            evidence={
                "address": self.url,
                "field": field,
                "expected": expected,
                "found": shown(found),
            },
            hint=_ALTERED,
        )


@dataclass(frozen=True, kw_only=True)
class Received:
    """A whole file at its `.part`, its hash of the wanted kind, and the last headers."""

    hash: str
    headers: Mapping[str, str]


class NoRanges(Exception):
    """The server sends whole files only."""


class _Incomplete(Exception):
    """An answer that is right so far, and ends too early or cannot be gone on with."""


class _Begun(NamedTuple):
    """How much of a file is there, of how much, and the ETag that it was sent with."""

    size: int
    total: int
    etag: str


def receive(wanted: Wanted, part: Path, *, cache: Path, quiet: bool) -> Received:
    """Get the whole file to `part` in a cache, and compare it with what is published of it.

    Raises:
        SourceError: The server refuses, or contradicts itself or what is published, or the
            connection does not hold; what has arrived is kept.
        OfflineError: There was none.
        IntegrityError: The file is not the one that was published; it is not kept.
    """
    failures: tuple[type[Exception], ...] = (_Incomplete, *transport_errors())
    note = _note(part)
    for _ in range(_ATTEMPTS):
        begun = _begun(part, wanted)
        try:
            received = _receive(wanted, part, begun, quiet=quiet)
        except failures as error:
            cause: Exception = error
            continue
        if received is not None and received.hash.startswith(wanted.hash):
            note.unlink(missing_ok=True)
            return received
        part.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        if received is not None and begun is None:
            found = received.hash[: len(wanted.hash)]
            raise mismatch(None, wanted.name, wanted.kind, published=wanted.hash, found=found)
        cause = _Incomplete("the server goes on with another file than the one that it began")
    size = part.stat().st_size if part.is_file() else 0
    why = str(cause) or type(cause).__name__
    if not size and is_unreachable(cause):
        raise offline_error(wanted.url, asked=False, cache=cache, cause=why) from cause
    raise SourceError(
        f"The download of {wanted.name} broke off.",
        evidence={"address": wanted.url, "received": f"{size} bytes", "cause": why},
        hint="run again: it goes on where it stopped.",
    ) from cause


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _begun(part: Path, wanted: Wanted) -> _Begun | None:
    """The beginning of the file that is there, if a server can be asked for the rest."""
    try:
        fields = parse_object(_note(part).read_bytes())
        etag, total = read_strong_etag(fields["etag"]), int(fields["total"])
        size = part.stat().st_size
    except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if etag is None or not 0 < size < total or wanted.size not in (None, total):
        return None
    return _Begun(size, total, etag)


def _receive(wanted: Wanted, part: Path, begun: _Begun | None, *, quiet: bool) -> Received | None:
    """The file, or None where the answer does not go on from what is there."""
    headers = dict(wanted.headers)
    if begun is not None:
        headers |= {"Range": f"bytes={begun.size}-", "If-Range": begun.etag}
    with get(wanted.url, headers) as answer:
        if begun is not None and answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        if (span := _span(wanted, answer, begun)) is None:
            return None
        start, end, total = span
        if wanted.kind == SHA256:
            digest = hashlib.sha256()
        elif (size := total if wanted.size is None else wanted.size) is not None:
            digest = git_blob_state(size)
        else:
            raise wanted.contradicted("Content-Length", "a number of bytes", "none")
        with part.open("r+b" if start else "wb") as file:
            if start:
                while chunk := file.read(min(_CHUNK, start - file.tell())):
                    digest.update(chunk)
            else:
                # Only now: the ETag of one version must never vouch for the bytes of another.
                etag = read_strong_etag(answer.headers.get("ETag"))
                if etag is None or total is None:
                    _note(part).unlink(missing_ok=True)
                else:
                    note = json.dumps({"etag": etag, "total": total})
                    _note(part).write_text(note, encoding="utf-8")
            limit = wanted.size if end is None else end
            size = _stream(wanted, answer, file, digest, (start, limit, total), quiet=quiet)
    if total is not None and size < total:
        raise _Incomplete(f"{total - size} bytes were missing")
    if wanted.size not in (None, size):
        raise wanted.contradicted("size", wanted.size, size)
    return Received(hash=digest.hexdigest(), headers=answer.headers)


def _span(
    wanted: Wanted, answer: "Response", begun: _Begun | None
) -> tuple[int, int | None, int | None] | None:
    """Start, end and total of the bytes of an answer; None: they do not go on from those here."""
    _check_answer(wanted, answer)
    headers = answer.headers
    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
        if begun is None:
            raise wanted.contradicted("status", HTTPStatus.OK.value, answer.status_code)
        span = read_range(headers.get("Content-Range", ""))
        if span is None or (span[0], span[2]) != (begun.size, begun.total):
            return None
        return span if headers.get("ETag") == begun.etag else None
    length = read_number(headers.get("Content-Length"))
    if length is None:
        # Otherwise the end of the connection is that of the file, or of the line (RFC 9112, 6.3).
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        if answer.http_version != "HTTP/2" and (not chunked or "Content-Length" in headers):
            found = headers.get("Content-Length", "none")
            raise wanted.contradicted("Content-Length", "a number of bytes", found)
    elif wanted.size not in (None, length):
        raise wanted.contradicted("Content-Length", wanted.size, length)
    return 0, length, length


def _check_answer(wanted: Wanted, answer: "Response") -> None:
    if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        raise wanted.refuse(answer)
    if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise wanted.contradicted("Content-Encoding", "identity", encoding)


def _stream(
    wanted: Wanted,
    answer: "Response",
    file: IO[bytes],
    digest: "hashlib._Hash",
    span: tuple[int, int | None, int | None],
    *,
    quiet: bool,
) -> int:
    """Write what arrives, and return the size of the file so far."""
    from huggingface_hub.utils import are_progress_bars_disabled  # type: ignore[attr-defined]

    size, limit, total = span
    with tqdm(
        desc=wanted.name,
        initial=size,
        total=total,
        unit="B",
        unit_scale=True,
        # None: tqdm shows nothing by itself where stderr is no terminal.
        disable=True if quiet or are_progress_bars_disabled() else None,
        file=sys.stderr,
    ) as bar:
        # As it arrives: gathered into larger chunks, the last would be lost with the connection.
        for chunk in answer.iter_raw():
            size += len(chunk)
            if limit is not None and size > limit:
                raise wanted.contradicted("size", limit, f"{size} and more")
            file.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))
    return size


def receive_range(wanted: Wanted, file: IO[bytes], start: int, end: int) -> None:
    """Write a range of a published file to the same place of a file here.

    Raises:
        NoRanges: The server sends whole files only, and the range is not the beginning of one.
        SourceError: The server refuses, or sends something else than was asked for.
    """
    for _ in range(_ATTEMPTS):
        with suppress(*transport_errors()):
            file.seek(start)
            headers = {**wanted.headers, "Range": f"bytes={start}-{end - 1}"}
            with get(wanted.url, headers) as answer:
                _check_range(wanted, answer, start, end)
                received = 0
                for chunk in answer.iter_raw():
                    file.write(chunk[: max(0, end - start - received)])
                    received += len(chunk)
                    if received > end - start:  # the rest of a whole file is not waited for
                        break
                whole = answer.status_code == HTTPStatus.OK
                if received == end - start or (received > end - start and whole):
                    return
    raise SourceError(
        f"A part of {wanted.name} does not arrive.",
        evidence={"address": wanted.url, "bytes": f"{start}-{end - 1}", "attempts": _ATTEMPTS},
        hint="run again.",
    )


def _check_range(wanted: Wanted, answer: "Response", start: int, end: int) -> None:
    """Make sure that an answer is this range of the published file, and of no other."""
    _check_answer(wanted, answer)
    headers = answer.headers
    if answer.status_code == HTTPStatus.OK:
        if start:
            raise NoRanges
        if (length := headers.get("Content-Length", str(wanted.size))) != str(wanted.size):
            raise wanted.contradicted("Content-Length", wanted.size, length)
    elif read_range(found := headers.get("Content-Range", "none")) != (start, end, wanted.size):
        raise wanted.contradicted("Content-Range", f"{start}-{end - 1}/{wanted.size}", found)
    etag = headers.get("ETag", "").removeprefix("W/").strip('"')
    if len(etag) == len(wanted.hash) and etag != wanted.hash:  # the Hub's ETags are these hashes
        raise wanted.contradicted("ETag", wanted.hash, etag)
    wanted.etags.update({etag} - {""})
    if len(wanted.etags) > 1:  # of one file, and of another that came in its place
        raise wanted.contradicted("ETag", " and ".join(sorted(wanted.etags - {etag})), etag)


def mismatch(
    path: Path | None, name: str, kind: str, *, published: str, found: str
) -> IntegrityError:
    """The error for a file that is not what was published.

    Args:
        path: What to remove; None for a file that was not kept when it arrived.
        name: Of the file.
        kind: Of hash.
        published: The hash that it should have, or the first digits of it.
        found: The hash that it has.
    """
    return IntegrityError(
        f"{name} is not the file that was published.",
        evidence={"published": f"{kind} {published}", "found": f"{kind} {found}"},
        meaning="It was damaged on the way or on this disk, or changed by someone.",
        hint=f"remove {path.resolve()} and run again" if path else _ALTERED,
    )
