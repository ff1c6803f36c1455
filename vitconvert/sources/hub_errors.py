"""What the Hub's client raises, in words that say what to do; and errors of every download."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import IntegrityError, OfflineError, SourceError, VitConvertError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


@contextmanager
def hub_errors(
    repo: str, revision: str | None, *, cache: Path, listing: bool = False
) -> Iterator[None]:
    """Turn whatever the client raises inside into an error of ours.

    Args:
        repo: The repository.
        revision: What was asked for of it.
        cache: Where downloads are kept.
        listing: Whether this is the first request: if it fails, no network answers.
    """
    from huggingface_hub import errors

    try:
        yield
    except VitConvertError:
        raise
    except errors.LocalEntryNotFoundError as error:  # whatever kept it from asking the Hub
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refused(repo, revision, error.__cause__) from error
        raise _broke_off(repo, error.__cause__ or error) from error
    except errors.HFValidationError as error:
        raise SourceError(
            f"{repo} cannot be the name of a Hub repository.",
            hint="letters, digits, '-', '_' and '.', as in hf:ORG/REPO",
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused(repo, revision, error) from error
    except OSError as error:
        if error.errno is not None and not isinstance(error, ConnectionError):
            raise  # of this disk
        raise _broke_off(repo, error) from error
    except Exception as error:
        # Errors of the client's own HTTP library, of which it has had three, come through.
        if listing:
            cause = f"{type(error).__name__}: {error}"
            raise offline_error(repo, asked=False, cache=cache, cause=cause) from error
        raise _broke_off(repo, error) from error


def _broke_off(repo: str, cause: BaseException) -> SourceError:
    return SourceError(
        f"The download of {repo} was interrupted.",
        evidence={"cause": f"{type(cause).__name__}: {cause}"},
        hint="run again: files that have arrived are kept.",
    )


def _refused(repo: str, revision: str | None, error: "HfHubHTTPError") -> SourceError:
    """The error for a refusal, by the class that the client gives it, or by its status."""
    from huggingface_hub import errors

    page = f"https://huggingface.co/{repo}"
    match error:
        case errors.GatedRepoError():
            return SourceError(
                f"{repo} is gated: its owners want their terms accepted first.",
                evidence={"page": page},
                hint="accept the licence on that page, then pass --token or run `hf auth login`.",
            )
        case errors.RepositoryNotFoundError():
            return SourceError(
                f"The Hub has no repository {repo}, or it is private.",
                evidence={"page": page},
                hint="check the name; for a private one pass --token or run `hf auth login`.",
            )
        case errors.RevisionNotFoundError():
            return SourceError(
                f"{repo} has no revision {revision}.",
                hint=f"branches, tags and commits are listed at {page}/commits",
            )
    response = error.response
    match response.status_code:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            fact = "The Hub needs a token, or rejected yours."
            hint = "pass --token, or run `hf auth login`."
        case HTTPStatus.TOO_MANY_REQUESTS:
            fact = "The Hub takes no more requests from here for now."
            hint = "try again later; it takes more with a token (--token)."
        case _:
            fact = "The Hub does not answer as it should."
            hint = "try again later; files that have arrived are kept."
    answer = f"{response.status_code} {response.reason_phrase}"
    return SourceError(fact, evidence={"repository": repo, "answer": answer}, hint=hint)


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


def hash_mismatch(name: str, kind: str, published: str, found: str, hint: str) -> IntegrityError:
    """The error for a file whose hash, of some kind, is not the one that was published."""
    return IntegrityError(
        f"{name} is not the file that was published.",
        evidence={"published": f"{kind} {published}", "found": f"{kind} {found}"},
        meaning="It was damaged during download or on this disk, or changed by someone.",
        hint=hint,
    )
