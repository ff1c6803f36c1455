"""Bounds on what the Hub's client does by itself while an output is published.

Publishing takes a dozen kinds of requests, which are left to the client (huggingface_hub 2.4). It
trusts the server: it waits as long as it is told to, follows pages and conflicts without end, reads
answers of any size, sets no timeout, and goes from https to http. Hooks of its HTTP client see
every request and every answer, and put an end to that; they are gone only after a connection that
could not be made, for which the client takes another HTTP client.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vitconvert.errors import UploadError
from vitconvert.sources.answers import read_number, shown
from vitconvert.sources.patience import Patience, http_package
from vitconvert.sources.transport import (
    BUSY,
    LONGEST_WAIT_SECONDS,
    describe,
    is_encrypted,
)

if TYPE_CHECKING:
    from httpx2 import Request, Response, SyncByteStream

_TIMEOUT_SECONDS = 300  # without a byte: a storage takes its time over gigabytes
_MOST_ALIKE = 100  # requests to one address: a page of a listing has a thousand files
MOST_BYTES = 64 * 2**20  # of an answer
# https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers, as the client reads it.
_RATE_LIMIT = re.compile(r";\s*t\s*=\s*(\d+)")


@contextmanager
def bounded_client() -> Iterator[None]:
    """Within the block, the Hub's client neither waits nor reads nor asks without end.

    Raises:
        UploadError: It would have done so.
    """
    from huggingface_hub import constants, get_session

    client = get_session()
    bounds = _Bounds(constants.ENDPOINT)
    before = client.event_hooks
    client.event_hooks = {
        "request": [*before["request"], bounds.check_request],
        "response": [bounds.check_answer, *before["response"]],
    }
    try:
        yield
    finally:
        client.event_hooks = before


class _Bounds:
    """What one upload may do; the client may ask in several threads."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.asked: Counter[tuple[str, str]] = Counter()

    def check_request(self, request: "Request") -> None:
        """Of each request, also of those that the client makes of a redirect."""
        url = str(request.url)
        if not url.startswith(f"{self.endpoint}/") and not is_encrypted(url):
            raise UploadError(
                "The Hub sends the upload to an address that is not encrypted.",
                evidence={"address": shown(url)},
                hint="HF_ENDPOINT or a proxy may lead to a server that is no Hub.",
            )
        if "Authorization" in request.headers and not url.startswith(f"{self.endpoint}/"):
            raise UploadError(
                "The Hub asks for the token at another address.",
                evidence={"address": shown(url)},
                hint="HF_ENDPOINT or a proxy may lead to a server that is no Hub.",
            )
        if request.method != "PUT":  # parts of a file are put to one address
            self._count(request.method, url)
        # The client's own timeout is none, and its pages are asked for without the session's.
        request.extensions["timeout"] = dict.fromkeys(
            ("connect", "read", "write", "pool"), _TIMEOUT_SECONDS
        )
        request.extensions |= Patience(_TIMEOUT_SECONDS).extension
        request.headers["Accept-Encoding"] = "identity"  # a size is then that of what is read

    def _count(self, method: str, url: str) -> None:
        place = urlsplit(url)._replace(query="").geturl()
        self.asked[method, place] += 1
        if self.asked[method, place] > _MOST_ALIKE:
            raise UploadError(
                "The Hub has the same asked again and again.",
                evidence={"asked": f"{method} {shown(place)}", "times": _MOST_ALIKE},
                hint="HF_ENDPOINT or a proxy may lead to a server that is no Hub.",
            )

    def check_answer(self, response: "Response") -> None:
        """Of each answer, before its body is read."""
        if response.status_code in BUSY and _asks_for_patience(response):
            raise UploadError(
                "The Hub takes no more requests from here for now.",
                evidence=describe(response),
                hint="run again later: what has arrived is not sent twice.",
            )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise UploadError(
                "The Hub does not answer as it should.",
                evidence={
                    "field": "Content-Encoding",
                    "expected": "identity",
                    "found": shown(response.headers["Content-Encoding"]),
                },
            )
        response.stream = _until_too_long(response)


def _asks_for_patience(response: "Response") -> bool:
    """Whether the client would wait longer than anybody watches."""
    asked = [response.headers.get("Retry-After", "").strip()]
    asked += _RATE_LIMIT.findall(response.headers.get("RateLimit", ""))
    waits = (read_number(text) for text in asked if text.isdigit())
    return any(wait is None or wait > LONGEST_WAIT_SECONDS for wait in waits)


def _until_too_long(response: "Response") -> "SyncByteStream":
    """The body of an answer, which ends in an error if it does not end before."""
    stream_type: type[SyncByteStream] = http_package().SyncByteStream
    assert isinstance(response.stream, stream_type)
    stream: SyncByteStream = response.stream

    class Bounded(stream_type):  # type: ignore[misc,valid-type]
        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in stream:
                size += len(part)
                if size > MOST_BYTES:
                    raise UploadError(
                        "An answer of the Hub does not end.",
                        evidence={"address": shown(str(response.url)), "received": f"{size} bytes"},
                        hint="HF_ENDPOINT or a proxy may lead to a server that is no Hub.",
                    )
                yield part

        def close(self) -> None:
            stream.close()

    return Bounded()
