"""One request to a server: redirects, tokens, waiting.

The Hub client's own HTTP client sends it, so that proxies and certificates that were set for the
one hold for the other. What that client would do by itself is done here instead, within bounds:

- A redirect leads from https to https only (or to this machine), and a token is sent to no other
  origin than the one it was meant for.
- A server that is busy is asked again a few times, after the seconds it names if they are few.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from vitconvert.errors import OfflineError, SourceError
from vitconvert.sources.answers import read_number, shown
from vitconvert.sources.patience import Patience, http_package

if TYPE_CHECKING:
    from httpx2 import Response

_TIMEOUT_SECONDS = 30
_MAX_REDIRECTS = 10
BUSY = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_WAITS_SECONDS = (1, 2, 4)
LONGEST_WAIT_SECONDS = 60
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@contextmanager
def get(url: str, headers: Mapping[str, str]) -> Iterator["Response"]:
    """The answer to a GET, its body not yet read, whatever its status."""
    for wait in _WAITS_SECONDS:
        with _followed(url, headers) as response:
            asked = read_number(response.headers.get("Retry-After"))
            seconds = wait if asked is None else asked
            if response.status_code not in BUSY or seconds > LONGEST_WAIT_SECONDS:
                yield response
                return
        time.sleep(seconds)
    with _followed(url, headers) as response:
        yield response


@contextmanager
def _followed(url: str, headers: Mapping[str, str]) -> Iterator["Response"]:
    from huggingface_hub import get_session

    headers = {**headers, "Accept-Encoding": "identity"}  # ranges and lengths are of the file
    for _ in range(_MAX_REDIRECTS):
        with get_session().stream(
            "GET",
            url,
            headers=headers,
            timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,
            extensions=Patience().extension,
        ) as response:
            if not response.has_redirect_location:
                yield response
                return
            target = _target(url, response.headers["Location"])
        if _origin(target) != _origin(url):
            headers = {key: value for key, value in headers.items() if not _is_secret(key)}
        url = target
    raise SourceError(
        "The server redirects without end.",
        evidence={"address": shown(url), "redirects": _MAX_REDIRECTS},
        hint="try again later.",
    )


def _target(url: str, location: str) -> str:
    try:
        target = urljoin(url, location)
        same = _origin(target) == _origin(url)
    except ValueError as error:
        raise SourceError(
            "The server redirects to what is no address.",
            evidence={"address": shown(url), "redirect": shown(location)},
            hint="try again later.",
        ) from error
    if not same:
        require_https(target)
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _is_secret(header: str) -> bool:
    return header.lower() in ("authorization", "cookie")


def describe(answer: "Response") -> dict[str, object]:
    """A refusal, as evidence of an error."""
    evidence: dict[str, object] = {"answer": f"{answer.status_code} {answer.reason_phrase}"}
    if seconds := read_number(answer.headers.get("Retry-After")):
        evidence["wait"] = f"{seconds} seconds"
    return evidence


def require_https(url: str) -> None:
    """Refuse what is not encrypted; plain http only ever to this machine itself.

    Raises:
        SourceError: Another scheme, or no address at all.
    """
    if not is_encrypted(url):
        raise SourceError(
            f"{url} is not an https address.",
            hint="download the file yourself and give its path.",
        )


def is_encrypted(url: str) -> bool:
    """Whether an address is of https, or of this machine itself."""
    try:
        scheme, host, _ = _origin(url)
    except ValueError:
        return False
    return bool(host) and (scheme == "https" or (scheme == "http" and host in _LOOPBACK))


def transport_errors() -> tuple[type[Exception], ...]:
    """Everything that the HTTP client raises when an exchange fails."""
    http = http_package()
    return http.HTTPError, http.InvalidURL


def is_unreachable(error: Exception) -> bool:
    """Whether no server answered, rather than one that answered badly."""
    http = http_package()
    return isinstance(error, (http.NetworkError, http.TimeoutException, http.ProxyError))


def offline_error(what: str, *, asked: bool, cache: Path, cause: object = None) -> OfflineError:
    """The error for `what`, which is not in the cache.

    Args:
        what: The repository or the address.
        asked: Whether the user asked to stay offline; otherwise no network answered.
        cache: Where it was looked for.
        cause: What the network said.
    """
    reason = "offline was asked for" if asked else "no network answers"
    evidence = {"cache": cache} | ({} if cause is None else {"cause": cause})
    return OfflineError(
        f"{what} is not in the cache, and {reason}.",
        evidence=evidence,
        hint="name the path of a file that you have; `vitconvert timm NAME --no-pretrained` "
        "builds a timm model without its weights.",
    )
