"""Files behind an https address: streamed, resumed, hashed, remembered.

A file lies in a folder of its own, beside `download.json` with its address, size and sha256. While
it arrives it is called `.part`, and `part.json` keeps the ETag that says whether a later run may
go on where this one stopped (RFC 9110, sections 13.1.5 and 14.2). It gets its name when it is
whole.
"""

import base64
import hashlib
import http
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from vitconvert.containers.hashing import hash_file
from vitconvert.errors import SourceError
from vitconvert.sources.downloads import publishes_sha256_in_name
from vitconvert.sources.integrity import mismatch
from vitconvert.sources.located import Located, beside
from vitconvert.sources.offline import offline_error
from vitconvert.version import LIBRARY, VERSION

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 30
_ATTEMPTS = 3
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# torch.hub's convention (torch/hub.py, HASH_REGEX): first digits of the sha256 before the suffix.
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[^.]+")


def locate_address(
    reference: str,
    url: str,
    *,
    name: str | None,
    cache_dir: Path | None,
    offline: bool,
    quiet: bool,
) -> Located:
    """Download an https address, or take it from the cache."""
    require_https(url)
    cache = cache_dir or default_cache()
    folder = cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
    target = folder / file_name(url)
    if not (folder / "download.json").is_file():
        if offline:
            raise offline_error(url, asked=True, cache=cache)
        folder.mkdir(parents=True, exist_ok=True)
        _download_once(url, target, cache=cache, quiet=quiet)
    record = json.loads((folder / "download.json").read_text(encoding="utf-8"))
    if (found := hash_file(target)) != record["sha256"]:
        raise mismatch(
            folder, name=target.name, kind="sha256", published=record["sha256"], found=found
        )
    return Located(
        reference=reference,
        weights=target,
        **beside(folder),
        name=name,
        repo=None,
        revision=None,
        url=url,
        sha256={target.name: found},
        verified=(target.name,) if record["verified"] else (),
    )


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/vitconvert`, or `~/.cache/vitconvert`, as huggingface_hub does it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / LIBRARY


def file_name(url: str) -> str:
    """The last part of an address, safe as a file name.

    Raises:
        SourceError: The address ends in no name.
    """
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    if not name.strip(".") or "\\" in name or "\0" in name:
        raise SourceError(f"{url} names no file.", hint="give the address of one file of weights.")
    return name


def require_https(url: str) -> None:
    """Refuse what is not encrypted; plain http only ever to this machine itself.

    Raises:
        SourceError: Another scheme.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise SourceError(
        f"{url} is not an https address.",
        hint="download the file yourself and give its path.",
    )


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            require_https(newurl)
        except SourceError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What is there already of a file, and the validator it was sent with."""

    path: Path
    etag: str | None

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0


def _download_once(url: str, target: Path, *, cache: Path, quiet: bool) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    with WeakFileLock(target.parent / "lock"):
        # Another process may have finished while this one waited.
        if not (target.parent / "download.json").is_file():
            _download(url, target, cache=cache, quiet=quiet)


def _download(url: str, target: Path, *, cache: Path, quiet: bool) -> None:
    path = target.with_name(target.name + ".part")
    for attempt in range(_ATTEMPTS):
        try:
            headers = _receive(url, path, quiet=quiet)
            break
        except urllib.error.HTTPError as error:
            error.close()
            raise _refused(url, error) from error
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            ConnectionError,
            TimeoutError,
        ) as e:
            if attempt + 1 == _ATTEMPTS:
                raise _broken(url, path, cache=cache, error=e) from e
    _settle(url, path, target, headers)


def _receive(url: str, path: Path, *, quiet: bool) -> Mapping[str, str]:
    part = _Part(path=path, etag=_remembered_etag(path))
    with _open(url, part) as answer:
        start = _start_of(answer, part)
        total = _total_size(answer, start)
        with path.open("r+b" if start else "wb") as file:
            file.truncate(start)
            # Only now: the ETag of another version must never vouch for the old bytes.
            _remember_etag(path, answer.headers.get("ETag"))
            file.seek(start)
            _stream(answer, file, name=path.stem, start=start, total=total, quiet=quiet)
            size = file.tell()
    if total is not None and size != total:
        raise http.client.IncompleteRead(b"", total - size)
    return dict(answer.headers.items())


def _open(url: str, part: _Part) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"{LIBRARY}/{VERSION}", "Accept-Encoding": "identity"}
    if part.size and part.etag:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.etag}
    opener = urllib.request.build_opener(_SafeRedirects)
    request = urllib.request.Request(url, headers=headers)
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not part.size:
            raise
        # What is there is as long as the file or longer: begin again.
        error.close()
        part.path.unlink()
        return _open(url, part)
    return answer


def _start_of(answer: http.client.HTTPResponse, part: _Part) -> int:
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if begins is None or int(begins[1]) != part.size:
        raise http.client.HTTPException("the server sent another range than the one asked for")
    return part.size


def _total_size(answer: http.client.HTTPResponse, start: int) -> int | None:
    length = answer.headers.get("Content-Length")
    return start + int(length) if length else None


def _stream(
    answer: http.client.HTTPResponse,
    file: IO[bytes],
    *,
    name: str,
    start: int,
    total: int | None,
    quiet: bool,
) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled  # type: ignore[attr-defined]

    # tqdm shows nothing by itself where stderr is no terminal, if disable is None.
    hidden = quiet or are_progress_bars_disabled()
    with tqdm(
        desc=name,
        initial=start,
        total=total,
        unit="B",
        unit_scale=True,
        disable=True if hidden else None,
        file=sys.stderr,
    ) as bar:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            bar.update(len(chunk))


def _etag_path(path: Path) -> Path:
    return path.with_name("part.json")


def _remembered_etag(path: Path) -> str | None:
    memory = _etag_path(path)
    if not memory.is_file():
        return None
    etag = json.loads(memory.read_text(encoding="utf-8"))["etag"]
    return str(etag) if etag else None


def _remember_etag(path: Path, etag: str | None) -> None:
    # A weak validator does not promise the same bytes (RFC 9110, section 8.8.1).
    strong = etag if etag and not etag.startswith("W/") else None
    _etag_path(path).write_text(json.dumps({"etag": strong}), encoding="utf-8")


def _settle(url: str, path: Path, target: Path, headers: Mapping[str, str]) -> None:
    sha256 = hash_file(path)
    verified = _check_name(url, path, target.name, sha256)
    verified |= _check_google(path, target.name, headers)
    record = {
        "url": url,
        "size": path.stat().st_size,
        "sha256": sha256,
        "etag": headers.get("ETag"),
        "verified": verified,
    }
    path.replace(target)
    _etag_path(path).unlink()
    # Written last: the folder counts as complete once this file is there.
    draft = target.with_name("download.json.part")
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(target.with_name("download.json"))


def _check_name(url: str, path: Path, name: str, sha256: str) -> bool:
    digits = _HASH_IN_NAME.search(name)
    if digits is None or not publishes_sha256_in_name(url):
        return False
    if not sha256.startswith(digits[1]):
        found = sha256[: len(digits[1])]
        raise mismatch(path, name=name, kind="sha256", published=digits[1], found=found)
    return True


def _check_google(path: Path, name: str, headers: Mapping[str, str]) -> bool:
    # https://cloud.google.com/storage/docs/xml-api/reference-headers#xgooghash
    fields = {key.lower(): value for key, value in headers.items()}
    published = re.search(r"md5=([A-Za-z0-9+/]{22}==)", fields.get("x-goog-hash", ""))
    if published is None:
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
    if (found := base64.b64encode(digest).decode()) != published[1]:
        raise mismatch(path, name=name, kind="md5", published=published[1], found=found)
    return True


def _refused(url: str, error: urllib.error.HTTPError) -> SourceError:
    status = f"{error.code} {error.reason}"
    if error.code in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.GONE, http.HTTPStatus.FORBIDDEN):
        return SourceError(
            "There is no file at this address, or it is not public.",
            evidence={"address": url, "answer": status},
            hint="--checkpoint PATH reads a file that you have.",
        )
    return SourceError(
        "The server does not send the file now.",
        evidence={"address": url, "answer": status},
        hint="try again later; what has arrived is kept.",
    )


def _broken(url: str, path: Path, *, cache: Path, error: Exception) -> SourceError:
    received = path.stat().st_size if path.is_file() else 0
    if not received:
        return offline_error(url, asked=False, cache=cache, cause=_reason(error))
    return SourceError(
        "The download broke off.",
        evidence={"address": url, "received": f"{received} bytes", "cause": _reason(error)},
        hint="run again: it goes on where it stopped.",
    )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, http.client.IncompleteRead):
        return f"{error.expected} bytes were missing"
    return str(error) or type(error).__name__
