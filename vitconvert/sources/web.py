"""Files behind an https address: downloaded once, hashed, remembered.

A file has a folder of its own, with `download.json` that holds its address, size and sha256;
`transfer` gets it.
"""

import base64
import hashlib
import json
import os
import re
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, SourceError, without_secrets
from vitconvert.formats.hashing import hash_file
from vitconvert.sources.answers import is_relative_name
from vitconvert.sources.located import Fetching, Located, files_beside
from vitconvert.sources.references import publishes_sha256_in_name
from vitconvert.sources.transfer import Wanted, mismatch, receive
from vitconvert.sources.transport import describe, offline_error, require_https
from vitconvert.version import LIBRARY, VERSION

if TYPE_CHECKING:
    from httpx2 import Response

# torch.hub's convention (torch/hub.py, HASH_REGEX): first digits of the sha256 before the suffix.
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[^.]+")
# https://cloud.google.com/storage/docs/xml-api/reference-headers#xgooghash
_GOOGLE_MD5 = re.compile(r"md5=([A-Za-z0-9+/]{22}==)")
_RECORD = "download.json"


def locate_address(reference: str, url: str, name: str | None, fetching: Fetching) -> Located:
    """Download an https address, or take it from the cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    require_https(url)
    cache = fetching.cache_dir or default_cache()
    folder = cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
    target, record = folder / file_name(url), folder / _RECORD
    if not record.is_file():
        if fetching.offline or constants.HF_HUB_OFFLINE:
            raise offline_error(url, asked=True, cache=cache)
        folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder / "lock"):
            # Another process may have finished while this one waited.
            if not record.is_file():
                _download(url, target, cache=cache, quiet=fetching.quiet)
    match read_object(record):
        case {"sha256": str(sha256), "verified": bool(verified)}:
            if (found := hash_file(target)) != sha256:
                raise mismatch(folder, target.name, "sha256", published=sha256, found=found)
        case _:
            raise CorruptFile(
                "The note on a download holds no hash.",
                evidence={"file": record},
                hint=f"remove {folder} and run again.",
            )
    return Located(
        reference=without_secrets(reference),
        weights=target,
        **files_beside(folder),
        name=name,
        url=without_secrets(url),
        sha256={target.name: found},
        verified=(target.name,) if verified else (),
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
    received = receive(wanted, part, cache=cache, quiet=quiet)
    md5 = _GOOGLE_MD5.search(received.headers.get("x-goog-hash", ""))
    if md5 is not None:
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
        if (found := base64.b64encode(digest).decode()) != md5[1]:
            part.unlink()
            raise mismatch(None, target.name, "md5", published=md5[1], found=found)
    record = {
        "url": without_secrets(url),
        "size": part.stat().st_size,
        "sha256": received.hash,
        "etag": received.headers.get("ETag"),
        "verified": md5 is not None or digits is not None,
    }
    part.replace(target)
    # Written last: the folder counts as complete once this file is there.
    draft = target.with_name(f"{_RECORD}.part")
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(target.with_name(_RECORD))


def _refused(url: str, answer: "Response") -> SourceError:
    evidence = {"address": url, **describe(answer)}
    if answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.FORBIDDEN):
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
