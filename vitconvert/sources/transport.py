"""One request to a server: redirects, tokens, waiting.

The Hub client's own HTTP client sends it, so that proxies and certificates that were set for the
one hold for the other. What that client would do by itself is done here instead, within bounds:

- A redirect leads from https to https only (or to this machine), and a token is sent to no other
  origin than the one it was meant for.
- A server that is busy is asked again a few times, after the seconds it names if they are few.
- The head of an answer has a deadline, and the rest a least rate. An HTTP client's own timeout is
  for each read, and one byte in time renews it without end; so do interim answers (103 Early
  Hints). So every read from the connection is watched: all bytes pass there, also those of heads,
  of interim answers and of the lengths of chunks.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urljoin, urlsplit

from vitconvert.errors import OfflineError, SourceError
from vitconvert.sources.answers import read_number, shown

if TYPE_CHECKING:
    from httpx2 import Response

_TIMEOUT_SECONDS = 30
HEAD_SECONDS = 30
RATE_SECONDS, LEAST_RATE = 20, 1000  # seconds of waiting, and bytes a second: a modem's are more
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

_thread = threading.local()  # an exchange is one thread's


@contextmanager
def get(url: str, headers: Mapping[str, str]) -> Iterator["Response"]:
    """The answer to a GET, its body not yet read, whatever its status."""
    for wait in (*_WAITS_SECONDS, None):
        with _followed(url, headers) as response:
            asked = read_number(response.headers.get("Retry-After"))
            seconds = wait if asked is None else asked
            busy = response.status_code in BUSY
            if wait is None or seconds is None or not busy or seconds > LONGEST_WAIT_SECONDS:
                yield response
                return
        time.sleep(seconds)


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
            extensions={"trace": Patience(HEAD_SECONDS).trace},
        ) as response:
            if not response.has_redirect_location:
                yield response
                return
            target, same = redirected(url, response.headers["Location"])
        if not same:
            secrets = ("authorization", "cookie")
            headers = {key: value for key, value in headers.items() if key.lower() not in secrets}
        url = target
    raise SourceError(
        "The server redirects without end.",
        evidence={"address": shown(url), "redirects": _MAX_REDIRECTS},
        hint="try again later.",
    )


def redirected(url: str, location: str) -> tuple[str, bool]:
    """The address that a redirect leads to, and whether it is of the same origin.

    Raises:
        SourceError: It is no address, or one of another origin that is not encrypted.
    """
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
    return target, same


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


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


class _Stream(Protocol):
    """A connection of the HTTP client."""

    read: Callable[..., bytes]


class Patience:
    """The bounds of one exchange; its `trace` is an extension of the request.

    Source: https://www.encode.io/httpcore/extensions/#trace

    Args:
        head_seconds: Until the head of the answer is there, from when all of the request is sent.
    """

    def __init__(self, head_seconds: float) -> None:
        self._head_seconds = head_seconds
        self._deadline: float | None = None  # of the head
        self._waited, self._received = 0.0, 0

    def trace(self, event: str, info: Mapping[str, object]) -> None:
        """Called before and after each step of the client."""
        step = event.partition(".")[2]
        if step in ("connect_tcp.complete", "start_tls.complete"):
            _watch(cast("_Stream", info["return_value"]))
        elif step == "send_request_headers.started":
            _thread.patience = self
        elif step == "receive_response_headers.started":
            self._deadline = time.monotonic() + self._head_seconds
        elif step == "receive_response_headers.complete":
            self._deadline = None

    def read(self, plain: Callable[..., bytes], most: int, timeout: float | None) -> bytes:
        """Read from the connection, which must go on fast enough.

        Raises:
            ReadTimeout: It does not.
        """
        begun = time.monotonic()
        if self._deadline is not None:
            if (left := self._deadline - begun) <= 0:
                raise _timeout(f"no answer within {self._head_seconds} seconds")
            return plain(most, timeout=left if timeout is None else min(left, timeout))
        data = plain(most, timeout=timeout)
        # Only what is waited counts, not the time in which the reader does something else.
        self._waited += time.monotonic() - begun
        self._received += len(data)
        if self._waited >= RATE_SECONDS:
            if self._received < RATE_SECONDS * LEAST_RATE:
                raise _timeout(f"{self._received} bytes in {self._waited:.0f} seconds")
            self._waited, self._received = 0.0, 0
        return data


def _watch(stream: _Stream) -> None:
    """Have each exchange that uses a connection see what is read from it."""
    plain = stream.read

    def read(most: int, timeout: float | None = None) -> bytes:
        patience: Patience | None = getattr(_thread, "patience", None)
        if patience is None:
            return plain(most, timeout=timeout)
        return patience.read(plain, most, timeout)

    stream.read = read


def _timeout(why: str) -> Exception:
    error: Exception = http_package().ReadTimeout(f"the server is too slow: {why}")
    return error


def http_package() -> ModuleType:
    """The package httpx or httpx2, whichever the Hub client is built on."""
    from huggingface_hub import errors

    return import_module(errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def transport_errors() -> tuple[type[Exception], ...]:
    """Everything that the HTTP client raises when an exchange fails."""
    http = http_package()
    return http.HTTPError, http.InvalidURL


def is_unreachable(error: Exception) -> bool:
    """Whether no server answered, rather than one that answered badly."""
    http = http_package()
    return isinstance(error, (http.NetworkError, http.TimeoutException, http.ProxyError))


def describe(answer: "Response") -> dict[str, object]:
    """A refusal, as evidence of an error."""
    evidence: dict[str, object] = {"answer": f"{answer.status_code} {answer.reason_phrase}"}
    if seconds := read_number(answer.headers.get("Retry-After")):
        evidence["wait"] = f"{seconds} seconds"
    return evidence


def offline_error(what: str, *, asked: bool, cache: Path, cause: object = None) -> OfflineError:
    """The error for `what`, which is not in the cache.

    Args:
        what: The repository or the address.
        asked: Whether the user asked to stay offline; otherwise no network answered.
        cache: Where it was looked for.
        cause: The network's error.
    """
    reason = "offline was asked for" if asked else "no network answers"
    return OfflineError(
        f"{what} is not in the cache, and {reason}.",
        evidence={"cache": cache} | ({} if cause is None else {"cause": cause}),
        hint="name the path of a file that you have; `vitconvert timm NAME --no-pretrained` "
        "builds a timm model without its weights.",
    )
