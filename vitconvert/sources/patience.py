"""How long a server may take: a deadline for the head of an answer, a least rate for the rest.

An HTTP client's own timeout is for each read, and one byte in time renews it without end; so do
interim answers (103 Early Hints). So what reads from the connection is watched: every byte passes
there, also of heads, of interim answers and of the lengths of chunks.
"""

import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

HEAD_SECONDS = 30
RATE_SECONDS, LEAST_RATE = 20, 1000  # seconds of waiting, and bytes a second: a modem's are more

_thread = threading.local()  # an exchange is one thread's


class _Stream(Protocol):
    """A connection of the HTTP client."""

    read: Callable[..., bytes]


class Patience:
    """What is waited for in one exchange; its `trace` is an extension of the request.

    Args:
        head_seconds: Until the head of the answer is there, from when all of the request is sent.
    """

    def __init__(self, head_seconds: float | None = None) -> None:
        self._head_seconds = HEAD_SECONDS if head_seconds is None else head_seconds
        self._deadline: float | None = None  # of the head
        self._waited, self._received = 0.0, 0

    @property
    def extension(self) -> dict[str, Any]:
        """For `extensions` of a request: https://www.encode.io/httpcore/extensions/#trace."""
        return {"trace": self.trace}

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """What the client is about to do, or has done."""
        step = event.partition(".")[2]
        if step in ("connect_tcp.complete", "start_tls.complete"):
            _watch(info["return_value"])
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
        if self._deadline is None:
            data = plain(most, timeout=timeout)
            self._check_rate(time.monotonic() - begun, len(data))
            return data
        if (left := self._deadline - begun) <= 0:
            raise _timeout(f"no answer within {self._head_seconds} seconds")
        return plain(most, timeout=left if timeout is None else min(left, timeout))

    def _check_rate(self, waited: float, received: int) -> None:
        self._waited += waited
        self._received += received
        if self._waited < RATE_SECONDS:
            return
        if self._received < RATE_SECONDS * LEAST_RATE:
            raise _timeout(f"{self._received} bytes in {self._waited:.0f} seconds")
        self._waited, self._received = 0.0, 0


def _watch(stream: _Stream) -> None:
    """Have the exchange that a connection is used for see what is read from it."""
    plain = stream.read

    def read(most: int, timeout: float | None = None) -> bytes:
        patience: Patience | None = getattr(_thread, "patience", None)
        if patience is None:
            return plain(most, timeout=timeout)
        return patience.read(plain, most, timeout)

    stream.read = read


def http_package() -> ModuleType:
    """The package httpx or httpx2, whichever the Hub client is built on."""
    from huggingface_hub import errors

    return import_module(errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def _timeout(why: str) -> Exception:
    error: Exception = http_package().ReadTimeout(f"the server is too slow: {why}")
    return error
