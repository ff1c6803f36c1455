"""How what is not here is fetched."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Fetching:
    """What `locate` is asked for besides the reference; the token stays out of printed forms.

    Attributes:
        revision, token, offline, quiet, tower, headers_only: As for `locate`.
        cache_dir: Where downloads are kept; None: the usual place of each source.
    """

    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: Path | None = None
    offline: bool = False
    quiet: bool = False
    tower: str | None = None
    headers_only: bool = False
