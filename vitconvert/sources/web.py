"""Files behind an https address: downloaded once, hashed, remembered.

A file has a folder of its own, with `download.json` that holds its address, size and sha256.
"""

import base64
import hashlib
import http.client
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

from tqdm import tqdm

from vitconvert.atomic_write import portable_name
from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, SourceError, without_secrets
from vitconvert.formats.hashing import hash_file
from vitconvert.sources.hub_errors import hash_mismatch, offline_error
from vitconvert.sources.located import DownloadOptions, Located, files_beside
from vitconvert.sources.references import publishes_sha256_in_name
from vitconvert.version import LIBRARY, VERSION

# torch.hub's convention (torch/hub.py, HASH_REGEX): first digits of the sha256 before the suffix.
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[^.]+")
# https://cloud.google.com/storage/docs/xml-api/reference-headers#xgooghash
_GOOGLE_MD5 = re.compile(r"md5=([A-Za-z0-9+/]{22}==)")
_RECORD = "download.json"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TIMEOUT_SECONDS = 30  # without a byte
_CHUNK = 1 << 20


def locate_address(
    reference: str, url: str, name: str | None, fetching: DownloadOptions
) -> Located:
    """Download an https address, or take it from the cache."""
    from huggingface_hub import constants

    require_https(url)
    cache = fetching.cache_dir or default_cache()
    folder = cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
    target, record = folder / file_name(url), folder / _RECORD
    if not record.is_file():
        if fetching.offline or constants.HF_HUB_OFFLINE:
            raise offline_error(without_secrets(url), asked=True, cache=cache)
        folder.mkdir(parents=True, exist_ok=True)
        _download(url, target, cache=cache, quiet=fetching.quiet)
    match read_object(record):
        case {"sha256": str(sha256), "verified": bool(verified)}:
            if (found := hash_file(target)) != sha256:
                raise hash_mismatch(
                    target.name, "sha256", sha256, found, f"remove {folder} and run again."
                )
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
    """The last part of an address, as a file name.

    Raises:
        SourceError: The address ends in no name.
    """
    path = unquote(urlsplit(url).path)
    name = PurePosixPath(path).name
    if not name.isprintable() or "\\" in name or name in ("", "..") or path.endswith("/"):
        raise SourceError(
            f"{without_secrets(url)} names no file.", hint="give the address of a file of weights."
        )
    return portable_name(name)


def require_https(url: str) -> None:
    """Refuse what is not encrypted; plain http only ever to this machine itself.

    Raises:
        SourceError: Another scheme, or no address at all.
    """
    try:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname or ""
    except ValueError:
        scheme, host = "", ""
    if not host or not (scheme == "https" or (scheme == "http" and host in _LOOPBACK)):
        raise SourceError(
            f"{without_secrets(url)} is not an https address.",
            hint="download the file yourself and give its path.",
        )


def _download(url: str, target: Path, *, cache: Path, quiet: bool) -> None:
    """Get a file, and note what it is; its name may hold the first digits of its sha256."""
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        sha256, md5, headers = _receive(url, part, cache=cache, quiet=quiet)
        again = "run again; if it repeats, the server or a proxy alters the file."
        digits = _HASH_IN_NAME.search(target.name) if publishes_sha256_in_name(url) else None
        if digits and not sha256.startswith(digits[1]):
            found = sha256[: len(digits[1])]
            raise hash_mismatch(target.name, "sha256", digits[1], found, again)
        google = _GOOGLE_MD5.search(headers.get("x-goog-hash", ""))
        if google and md5 != google[1]:
            raise hash_mismatch(target.name, "md5", google[1], md5, again)
        record = {
            "url": without_secrets(url),
            "size": part.stat().st_size,
            "sha256": sha256,
            "verified": google is not None or digits is not None,
        }
        part.replace(target)
        # Written last: the folder counts as complete once this file is there.
        part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8", newline="\n")
        part.replace(target.with_name(_RECORD))
    finally:
        part.unlink(missing_ok=True)


def _receive(
    url: str, part: Path, *, cache: Path, quiet: bool
) -> tuple[str, str, Mapping[str, str]]:
    """Write what an address sends; its sha256 and md5, and the headers of the answer."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    shown = without_secrets(url)
    try:
        request = Request(url, headers={"User-Agent": f"{LIBRARY}/{VERSION}"})  # noqa: S310
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer, part.open("wb") as file:  # noqa: S310
            require_https(answer.url)  # where redirects have led
            length, received = answer.headers.get("Content-Length"), 0
            # None: tqdm shows nothing by itself where stderr is no terminal.
            with tqdm(
                desc=file_name(url),
                total=length and int(length),
                unit="B",
                unit_scale=True,
                disable=True if quiet else None,
                file=sys.stderr,
            ) as bar:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    sha256.update(chunk)
                    md5.update(chunk)
                    received += len(chunk)
                    bar.update(len(chunk))
            if length and received != int(length):  # http.client does not say so
                raise ConnectionError(f"{received} of {length} bytes arrived")
    except HTTPError as error:
        error.close()
        raise _refused(shown, error) from error
    except URLError as error:
        raise offline_error(shown, asked=False, cache=cache, cause=error.reason) from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise SourceError(
            f"The download of {file_name(url)} was interrupted.",
            evidence={"address": shown, "cause": f"{type(error).__name__}: {error}"},
            hint="run again.",
        ) from error
    return sha256.hexdigest(), base64.b64encode(md5.digest()).decode(), answer.headers


def _refused(url: str, error: HTTPError) -> SourceError:
    evidence = {"address": url, "answer": f"{error.code} {error.reason}"}
    if error.code in (403, 404, 410):
        return SourceError(
            "There is no file at this address, or it is not public.",
            evidence=evidence,
            hint="name the path of a file that you have (of `vitconvert timm`: --checkpoint).",
        )
    return SourceError(
        "The server does not send the file now.", evidence=evidence, hint="try again later."
    )
