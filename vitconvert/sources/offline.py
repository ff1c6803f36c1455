"""The one message for everything that needs a network and has none."""

from pathlib import Path

from vitconvert.errors import OfflineError


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
