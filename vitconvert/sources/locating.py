"""The one door: a reference, whatever its kind, to local files."""

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from vitconvert.errors import SourceError, UsageError
from vitconvert.sources.located import DownloadOptions, Located, locate_path
from vitconvert.sources.references import (
    HubRepo,
    LocalPath,
    NamedDownload,
    TimmName,
    WebAddress,
    address,
    parse_reference,
)
from vitconvert.sources.timm_names import resolve_timm


def locate(
    reference: str | PathLike[str] | Located,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    offline: bool = False,
    quiet: bool = False,
    tower: str | None = None,
    headers_only: bool = False,
) -> Located:
    """Turn a reference into local files, and check their hashes where any are published.

    Args:
        reference: A path, `local-dir:PATH`, `timm:NAME[.TAG]`, `hf-hub:ORG/REPO[@REV][/FILE]`
            (also `hf:`, `hf://` or nothing before it; FILE may be a folder), `google:NAME`,
            `torchvision:NAME`, `dino:NAME` or an https address. What exists on disk is a path
            before all else. Files that have been located stay as they are.
        revision: Branch, tag or commit of a Hub repository.
        token: For private and gated repositories; by default the one of `hf auth login`.
        cache_dir: Where downloads are kept; by default the Hub's own cache, and
            `$XDG_CACHE_HOME/vitconvert` for what is not on the Hub.
        offline: Use the cache and ask no server.
        quiet: Show no progress. It is shown on stderr, and only on a terminal.
        tower: Of a large repository, the vision encoder to fetch, as for `load_checkpoint`.
        headers_only: Fetch no tensors of a Hub repository whose files are safetensors.

    Raises:
        SourceError: The reference leads nowhere. Names the nearest that does.
        OfflineError: It would lead somewhere, with a network.
        IntegrityError: A file is not the one that was published.
        UsageError: Two revisions, or a revision of something that has none.
    """
    if isinstance(reference, Located):
        return reference
    text, name = fspath(reference), None
    place = parse_reference(text)
    match place:
        case TimmName():
            name, place = resolve_timm(place.name)
        case NamedDownload():
            name, place = place.name, WebAddress(url=address(place.collection, place.name))
    if revision and not isinstance(place, HubRepo):
        raise UsageError(
            f"{text} has no revisions.",
            hint="leave out --revision, which is for repositories of the Hub.",
        )
    fetching = DownloadOptions(
        revision=revision,
        token=token,
        cache_dir=Path(cache_dir).expanduser() if cache_dir else None,
        offline=offline,
        quiet=quiet,
        tower=tower,
        headers_only=headers_only,
    )
    # The HTTP client and what it needs are imported for what is not here.
    try:
        match place:
            case LocalPath(path=path):
                found = locate_path(text, path)
            case WebAddress(url=url):
                from vitconvert.sources.web import locate_address

                found = locate_address(text, url, name, fetching)
            case HubRepo():
                from vitconvert.sources.hub import locate_repo

                found = locate_repo(text, place, name, fetching)
    except OSError as error:
        raise SourceError(
            f"{text} cannot be kept or read on this disk.",
            evidence={"path": error.filename or "unknown", "cause": error.strerror or error},
            hint="--cache-dir DIR keeps downloads elsewhere.",
        ) from error
    return replace(found, fetching=fetching)
