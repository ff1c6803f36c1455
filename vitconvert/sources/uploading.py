"""Bounds on what the Hub's client does by itself while an output is published, and its errors.

Publishing takes a dozen kinds of requests, which are left to the client (huggingface_hub 2.4). It
trusts the server: it waits as long as it is asked to, follows pages and conflicts without end,
reads answers of any size, sets no timeout, and goes from https to http. Hooks of its HTTP client
see every request and every answer, and put an end to that; they are gone only after a connection
that could not be made, for which the client takes another HTTP client.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from json import JSONDecodeError
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vitconvert.errors import UploadError, VitConvertError
from vitconvert.sources.answers import NO_HUB, read_number, shown
from vitconvert.sources.transport import (
    BUSY,
    LONGEST_WAIT_SECONDS,
    Patience,
    describe,
    http_package,
    is_encrypted,
    transport_errors,
)

if TYPE_CHECKING:
    from httpx2 import Request, Response, SyncByteStream
    from huggingface_hub.errors import HfHubHTTPError

_TIMEOUT_SECONDS = 300  # without a byte: a storage takes its time over gigabytes
_MOST_ALIKE = 100  # requests to one address: a page of a listing has a thousand files
MOST_BYTES = 64 * 2**20  # of an answer
# https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers, as the client reads it.
_RATE_LIMIT = re.compile(r";\s*t\s*=\s*(\d+)")


@contextmanager
def uploading(repo: str, revision: str | None, *, proposed: bool) -> Iterator[None]:
    """Within the block, the Hub's client neither waits nor reads nor asks without end.

    Raises:
        UploadError: It would have done so, or it raised something.
    """
    from huggingface_hub import constants, errors, get_session

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {
        "request": [*before["request"], _Requests(constants.ENDPOINT).check],
        "response": [_check_answer, *before["response"]],
    }
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # what stopped a file (huggingface_hub 2.4, _commit_api.py)
        if isinstance(error, VitConvertError):
            raise error from error.__cause__
        if isinstance(error, errors.HfHubHTTPError):
            raise _refused(repo, revision, error) from error
        if isinstance(error, (*transport_errors(), ConnectionError)):
            raise UploadError(
                f"The upload to {repo} broke off.",
                evidence={"cause": f"{type(error).__name__}: {error}"},
                hint="look whether the pull request is there: a second run opens another."
                if proposed
                else "run again: what has arrived is not sent twice.",
            ) from error
        if isinstance(error, OSError):
            raise error from error.__cause__
        raise _misunderstood(repo, error) from error
    finally:
        client.event_hooks = before


def _misunderstood(repo: str, error: Exception) -> UploadError:
    from huggingface_hub.errors import HFValidationError

    if isinstance(error, HFValidationError):
        return UploadError(
            f"{repo} cannot be the name of a Hub repository.",
            hint="letters, digits, '-', '_' and '.', as in ORG/REPO",
        )
    undecodable = isinstance(error, (JSONDecodeError, UnicodeDecodeError))
    if isinstance(error, ValueError) and not undecodable:
        # The client's own checks, such as of the card's metadata, which the Hub validates.
        return UploadError(
            f"The Hub does not take this as a commit to {repo}.",
            details=[line for line in str(error).splitlines() if line.strip()],
        )
    # The client takes what it needs out of an answer without a look at what that is, so it
    # may stumble in any way: over types, keys, depth, and variables of its own.
    return UploadError(
        "The Hub does not answer as it should.",
        evidence={"repository": repo, "cause": shown(f"{type(error).__name__}: {error}")},
        hint="look at the repository's page for what has arrived.",
    )


def _refused(repo: str, revision: str | None, error: "HfHubHTTPError") -> UploadError:
    from huggingface_hub import errors

    code, evidence = error.response.status_code, describe(error.response)
    if error.server_message:
        evidence["reason"] = error.server_message
    hint: str | None
    if isinstance(error, errors.RevisionNotFoundError):
        fact, hint = f"{repo} has no revision {revision}.", None
    elif isinstance(error, errors.RepositoryNotFoundError):
        fact = f"The Hub has no model repository {repo} that this token may write to."
        hint = "a data set or space of the same name is another repository."
    elif code == HTTPStatus.UNAUTHORIZED:
        fact = "The Hub does not know this token."
        hint = "https://huggingface.co/settings/tokens lists yours."
    elif code == HTTPStatus.FORBIDDEN:
        fact = f"This token may not write to {repo}."
        hint = "it needs the right to write; --create-pr proposes the files instead."
    else:
        fact = f"The Hub refuses the upload to {repo}."
        hint = "run again later: what has arrived is not sent twice."
    return UploadError(fact, evidence=evidence, hint=hint)


class _Requests:
    """The requests of one upload; the client may ask in several threads."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.asked: Counter[tuple[str, str]] = Counter()

    def check(self, request: "Request") -> None:
        """A hook for each request, also for those that follow a redirect."""
        url = str(request.url)
        if not url.startswith(f"{self.endpoint}/"):
            fact = None
            if not is_encrypted(url):
                fact = "The Hub sends the upload to an address that is not encrypted."
            elif "Authorization" in request.headers:
                fact = "The Hub asks for the token at another address."
            if fact is not None:
                raise UploadError(fact, evidence={"address": shown(url)}, hint=NO_HUB)
        if request.method != "PUT":  # parts of a file are put to one address
            place = urlsplit(url)._replace(query="").geturl()
            self.asked[request.method, place] += 1
            if self.asked[request.method, place] > _MOST_ALIKE:
                raise UploadError(
                    "The Hub has the same asked again and again.",
                    evidence={"asked": f"{request.method} {shown(place)}", "times": _MOST_ALIKE},
                    hint=NO_HUB,
                )
        # The client's own timeout is none, and its pages are asked for without the session's.
        waits = dict.fromkeys(("connect", "read", "write", "pool"), _TIMEOUT_SECONDS)
        request.extensions |= {"timeout": waits, "trace": Patience(_TIMEOUT_SECONDS).trace}
        request.headers["Accept-Encoding"] = "identity"  # a size is then that of what is read


def _check_answer(response: "Response") -> None:
    """A hook for each answer, before its body is read."""
    if response.status_code in BUSY:
        # The client waits as long as it is asked to, which may be longer than anybody watches.
        asked = [response.headers.get("Retry-After", "").strip()]
        asked += _RATE_LIMIT.findall(response.headers.get("RateLimit", ""))
        waits = (read_number(text) for text in asked if text.isdigit())
        if any(wait is None or wait > LONGEST_WAIT_SECONDS for wait in waits):
            raise UploadError(
                "The Hub takes no more requests from here for now.",
                evidence=describe(response),
                hint="run again later: what has arrived is not sent twice.",
            )
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise UploadError(
            "The Hub does not answer as it should.",
            evidence={
                "field": "Content-Encoding",
                "expected": "identity",
                "found": shown(encoding),
            },
        )
    stream_type: type[SyncByteStream] = http_package().SyncByteStream
    assert isinstance(response.stream, stream_type)
    stream: SyncByteStream = response.stream

    class Bounded(stream_type):  # type: ignore[misc,valid-type]
        """The body, which ends in an error if it does not end before."""

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in stream:
                size += len(part)
                if size > MOST_BYTES:
                    raise UploadError(
                        "An answer of the Hub does not end.",
                        evidence={"address": shown(str(response.url)), "received": f"{size} bytes"},
                        hint=NO_HUB,
                    )
                yield part

        def close(self) -> None:
            stream.close()

    response.stream = Bounded()
