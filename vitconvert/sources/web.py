"""Files behind an https address: downloaded once, hashed, remembered.

A file lies in a folder of its own, beside `download.json` with its address, size and sha256. How it
arrives is told in `transfer`.
"""

import base64
import hashlib
import http
import json
import os
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, SourceError
from vitconvert.formats.hashing import hash_file
from vitconvert.sources.answers import is_relative_name
from vitconvert.sources.downloads import publishes_sha256_in_name
from vitconvert.sources.located import Fetching, Located, beside
from vitconvert.sources.transfer import BrokenOff, Received, Wanted, mismatch, receive
from vitconvert.sources.transport import describe, is_unreachable, offline_error, require_https
from vitconvert.version import LIBRARY, VERSION

if TYPE_CHECKING:
    from httpx2 import Response

# torch.hub's convention (torch/hub.py, HASH_REGEX): first digits of the sha256 before the suffix.
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[^.]+")


def locate_address(reference: str, url: str, name: str | None, fetching: Fetching) -> Located:
    """Download an https address, or take it from the cache."""
    from huggingface_hub import constants

    require_https(url)
    cache = fetching.cache_dir or default_cache()
    folder = cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
    target = folder / file_name(url)
    if not (folder / "download.json").is_file():
        if fetching.offline or constants.HF_HUB_OFFLINE:
            raise offline_error(url, asked=True, cache=cache)
        folder.mkdir(parents=True, exist_ok=True)
        _download_once(url, target, cache=cache, quiet=fetching.quiet)
    sha256, verified = _remembered(folder)
    if (found := hash_file(target)) != sha256:
        raise mismatch(folder, name=target.name, kind="sha256", published=sha256, found=found)
    return Located(
        reference=reference,
        weights=target,
        **beside(folder),
        random=False,
        name=name,
        repo=None,
        revision=None,
        url=url,
        sha256={target.name: found},
        verified=(target.name,) if verified else (),
    )


def _remembered(folder: Path) -> tuple[str, bool]:
    """The hash of what was downloaded, and whether it was published."""
    match read_object(folder / "download.json"):
        case {"sha256": str(sha256), "verified": bool(verified)}:
            return sha256, verified
    raise CorruptFile(
        "The note on a download tells no hash.",
        evidence={"file": folder / "download.json"},
        hint=f"remove {folder} and run again.",
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
    if not is_relative_name(name):
        raise SourceError(f"{url} names no file.", hint="give the address of one file of weights.")
    return name


def _download_once(url: str, target: Path, *, cache: Path, quiet: bool) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    with WeakFileLock(target.parent / "lock"):
        # Another process may have finished while this one waited.
        if not (target.parent / "download.json").is_file():
            _download(url, target, cache=cache, quiet=quiet)


def _download(url: str, target: Path, *, cache: Path, quiet: bool) -> None:
    digits = _HASH_IN_NAME.search(target.name) if publishes_sha256_in_name(url) else None
    wanted = Wanted(
        url=url,
        headers={"User-Agent": f"{LIBRARY}/{VERSION}"},
        name=target.name,
        refuse=lambda answer: _refused(url, answer),
        hash=digits[1] if digits else "",
    )
    part = target.with_name(f"{target.name}.part")
    try:
        received = receive(wanted, part, quiet=quiet)
    except BrokenOff as error:
        raise _broken(url, error, cache=cache) from error
    verified = _check_google(part, target.name, received.headers) or digits is not None
    _settle(url, part, target, received, verified=verified)


def _settle(url: str, part: Path, target: Path, received: Received, *, verified: bool) -> None:
    record = {
        "url": url,
        "size": part.stat().st_size,
        "sha256": received.hash,
        "etag": received.headers.get("ETag"),
        "verified": verified,
    }
    part.replace(target)
    # Written last: the folder counts as complete once this file is there.
    draft = target.with_name("download.json.part")
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(target.with_name("download.json"))


def _check_google(path: Path, name: str, headers: Mapping[str, str]) -> bool:
    # https://cloud.google.com/storage/docs/xml-api/reference-headers#xgooghash
    published = re.search(r"md5=([A-Za-z0-9+/]{22}==)", headers.get("x-goog-hash", ""))
    if published is None:
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
    if (found := base64.b64encode(digest).decode()) != published[1]:
        path.unlink()
        raise mismatch(None, name=name, kind="md5", published=published[1], found=found)
    return True


def _refused(url: str, answer: "Response") -> SourceError:
    evidence = {"address": url, **describe(answer)}
    match answer.status_code:
        case http.HTTPStatus.NOT_FOUND | http.HTTPStatus.GONE | http.HTTPStatus.FORBIDDEN:
            return SourceError(
                "There is no file at this address, or it is not public.",
                evidence=evidence,
                hint="--checkpoint PATH reads a file that you have.",
            )
    return SourceError(
        "The server does not send the file now.",
        evidence=evidence,
        hint="try again later; what has arrived is kept.",
    )


def _broken(url: str, error: BrokenOff, *, cache: Path) -> SourceError:
    if not error.received and is_unreachable(error.cause):
        return offline_error(url, asked=False, cache=cache, cause=error)
    return SourceError(
        "The download broke off.",
        evidence={"address": url, "received": f"{error.received} bytes", "cause": error},
        hint="run again: it goes on where it stopped.",
    )
