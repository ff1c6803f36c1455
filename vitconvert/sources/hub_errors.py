"""The Hub's refusals, and its client's exceptions, in our words."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import SourceError, UploadError, VitConvertError
from vitconvert.sources.answers import shown
from vitconvert.sources.transfer import BrokenOff
from vitconvert.sources.transport import describe, is_unreachable, offline_error, transport_errors

if TYPE_CHECKING:
    from httpx2 import Response


@contextmanager
def explained(repo: str, *, cache: Path) -> Iterator[None]:
    """Turn what the client raises within the block into a `SourceError` or `OfflineError`."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise SourceError(
            f"{repo} cannot be the name of a Hub repository.",
            hint="letters, digits, '-', '_' and '.', as in hf:ORG/REPO",
        ) from error
    except transport_errors() as error:
        if is_unreachable(error):
            raise offline_error(repo, asked=False, cache=cache, cause=_name(error)) from error
        raise SourceError(
            "The Hub does not answer as it should.",
            evidence={"repository": repo, "cause": shown(str(error))},
            hint="HF_ENDPOINT or a proxy may lead to a server that is no Hub.",
        ) from error


def broken(repo: str, file: str, error: BrokenOff) -> SourceError:
    """For a file of which not all arrives."""
    return SourceError(
        f"The download of {file} broke off.",
        evidence={
            "repository": repo,
            "received": f"{error.received} bytes",
            "cause": error,
        },
        hint="run again: it goes on where it stopped.",
    )


@contextmanager
def explained_upload(repo: str, revision: str | None, *, proposed: bool = False) -> Iterator[None]:
    """Turn what the client raises within the block into an `UploadError`."""
    from huggingface_hub import errors

    broken_off: tuple[type[Exception], ...] = (*transport_errors(), ConnectionError)
    try:
        with _unwrapped():
            yield
    except errors.HFValidationError as error:
        raise UploadError(
            f"{repo} cannot be the name of a Hub repository.",
            hint="letters, digits, '-', '_' and '.', as in ORG/REPO",
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused_upload(repo, revision, error) from error
    except broken_off as error:
        raise UploadError(
            f"The upload to {repo} broke off.",
            evidence={"cause": _name(error)},
            hint="look whether the pull request is there: a second run opens another."
            if proposed
            else "run again: what has arrived is not sent twice.",
        ) from error
    except (VitConvertError, OSError):
        raise
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise _strange_answer(repo, error) from error
    except ValueError as error:
        # The client's own checks, such as of the card's metadata, which the Hub validates.
        raise UploadError(
            f"The Hub does not take this as a commit to {repo}.",
            details=[line for line in str(error).splitlines() if line.strip()],
        ) from error
    except Exception as error:
        # The client takes what it needs out of an answer without a look at what that is, so it
        # may stumble in any way: over types, keys, depth, and variables of its own.
        raise _strange_answer(repo, error) from error


def _strange_answer(repo: str, error: Exception) -> UploadError:
    return UploadError(
        "The Hub does not answer as it should.",
        evidence={"repository": repo, "cause": shown(_name(error))},
        hint="look at the repository's page for what has arrived.",
    )


@contextmanager
def _unwrapped() -> Iterator[None]:
    """What stopped a file, which the client hides in a RuntimeError (2.4, _commit_api.py)."""
    try:
        yield
    except RuntimeError as error:
        raise error.__cause__ or error from None


def _refused_upload(repo: str, revision: str | None, error: Exception) -> UploadError:
    from huggingface_hub import errors

    response = getattr(error, "response", None)
    code = getattr(response, "status_code", None)
    evidence = {"answer": f"{code} {getattr(response, 'reason_phrase', '')}"}
    if said := getattr(error, "server_message", None):
        evidence["reason"] = said
    if isinstance(error, errors.RevisionNotFoundError):
        return UploadError(f"{repo} has no revision {revision}.", evidence=evidence)
    if isinstance(error, errors.RepositoryNotFoundError):
        return UploadError(
            f"The Hub has no model repository {repo} that this token may write to.",
            evidence=evidence,
            hint="a data set or space of the same name is another repository.",
        )
    match code:
        case HTTPStatus.UNAUTHORIZED:
            return UploadError(
                "The Hub does not know this token.",
                evidence=evidence,
                hint="https://huggingface.co/settings/tokens lists yours.",
            )
        case HTTPStatus.FORBIDDEN:
            return UploadError(
                f"This token may not write to {repo}.",
                evidence=evidence,
                hint="it needs the right to write; --create-pr proposes the files instead.",
            )
    return UploadError(
        f"The Hub refuses the upload to {repo}.",
        evidence=evidence,
        hint="run again later: what has arrived is not sent twice.",
    )


def answered(repo: str, revision: str | None, file: str | None, answer: "Response") -> SourceError:
    """For a refusal that the server spelled out."""
    page = f"https://huggingface.co/{repo}"
    match answer.headers.get("X-Error-Code"):
        case "GatedRepo":
            return SourceError(
                f"{repo} is gated: its owners want their terms accepted first.",
                evidence={"page": page},
                hint="accept the licence on that page, then pass --token or run `hf auth login`.",
            )
        case "RepoNotFound":
            return SourceError(
                f"The Hub has no repository {repo}, or it is private.",
                evidence={"page": page},
                hint="check the spelling; for a private one pass --token or run `hf auth login`.",
            )
        case "RevisionNotFound":
            return SourceError(
                f"{repo} has no revision {revision}.",
                hint=f"branches, tags and commits are listed at {page}/commits",
            )
        case "EntryNotFound":
            return SourceError(
                f"{repo} holds no file {file}.", hint=f"the files are listed at {page}/tree/main"
            )
    return _status(repo, answer)


def _status(repo: str, answer: "Response") -> SourceError:
    evidence = {"repository": repo, **describe(answer)}
    match answer.status_code:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return SourceError(
                "The Hub refuses the token, or wants one.",
                evidence=evidence,
                hint="pass --token, or run `hf auth login`.",
            )
        case HTTPStatus.TOO_MANY_REQUESTS:
            return SourceError(
                "The Hub takes no more requests from here for now.",
                evidence=evidence,
                hint="try again later; it takes more with a token (--token).",
            )
    return SourceError(
        "The Hub does not answer as it should.",
        evidence=evidence,
        hint="try again later; what has arrived is kept.",
    )


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
