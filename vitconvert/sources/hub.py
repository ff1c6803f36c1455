"""Files of a Hugging Face Hub repository, all of one commit, each compared with its published hash.

The client (huggingface_hub) downloads, resumes and caches; it does not look at what it received
(its issues 2364 and 3643), so that is done here.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vitconvert.containers.hashing import hash_file
from vitconvert.errors import OfflineError, SourceError, UsageError
from vitconvert.formats import INDEX
from vitconvert.sources.choosing import choose_weights, companions, require
from vitconvert.sources.hub_errors import explained
from vitconvert.sources.integrity import check_published
from vitconvert.sources.located import Located, beside
from vitconvert.sources.offline import offline_error
from vitconvert.sources.progress import progress
from vitconvert.sources.references import HubRepo
from vitconvert.version import LIBRARY, VERSION

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Client:
    """One repository and how to reach it; the token stays out of every printed form."""

    repo: str
    revision: str | None
    token: str | None = field(repr=False)
    cache_dir: Path
    quiet: bool


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """One commit of a repository: the published hash of each file, empty where unknown."""

    commit: str
    hashes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Files:
    """Local files of a snapshot, and which of them is the one to read."""

    snapshot: _Snapshot
    weights: str
    paths: Mapping[str, Path]


def locate_repo(
    reference: str,
    hub: HubRepo,
    *,
    name: str | None,
    revision: str | None,
    token: str | None,
    cache_dir: Path | None,
    offline: bool,
    quiet: bool,
) -> Located:
    """Download what a conversion reads of a repository, or take it from the cache."""
    from huggingface_hub import constants

    client = _Client(
        repo=hub.repo,
        revision=_one_revision(hub.revision, revision),
        token=token,
        cache_dir=cache_dir or Path(constants.HF_HUB_CACHE),
        quiet=quiet,
    )
    if offline or constants.HF_HUB_OFFLINE:
        files = _from_cache(client, hub.file, _offline(client, asked=True))
    else:
        files = _from_hub(client, hub.file)
    return _located(reference, name, client, files)


def _offline(client: _Client, *, asked: bool, cause: object = None) -> OfflineError:
    what = client.repo + (f"@{client.revision}" if client.revision else "")
    return offline_error(what, asked=asked, cache=client.cache_dir, cause=cause)


def _one_revision(written: str | None, option: str | None) -> str | None:
    if written and option and written != option:
        raise UsageError(
            "Two revisions are asked for.",
            evidence={"reference": written, "revision": option},
            hint="leave one of them out.",
        )
    return written or option


def _from_hub(client: _Client, file: str | None) -> _Files:
    try:
        with explained(client.repo, client.revision, cache=client.cache_dir):
            snapshot = _listing(client)
    except OfflineError as error:
        # A network that fails is no reason to fail where the cache can answer; it is said.
        found = _from_cache(client, file, error)
        logger.warning("no network answers; %s is taken from the cache", client.repo)
        return found
    names = _wanted(client.repo, file, snapshot.hashes)
    files = _download(client, snapshot, names)
    if names[0].endswith(INDEX):
        shards = _shards(client.repo, names[0], files[names[0]], snapshot.hashes)
        files |= _download(client, snapshot, shards)
    return _Files(snapshot=snapshot, weights=names[0], paths=files)


def _listing(client: _Client) -> _Snapshot:
    """Names and hashes of one commit, in one answer, so that they agree."""
    from huggingface_hub import HfApi

    api = HfApi(library_name=LIBRARY, library_version=VERSION, token=client.token)
    info = api.model_info(client.repo, revision=client.revision, files_metadata=True)
    hashes = {
        sibling.rfilename: (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or ""
        for sibling in info.siblings or ()
    }
    return _Snapshot(commit=info.sha or "", hashes=hashes)


def _wanted(repo: str, file: str | None, names: Mapping[str, str]) -> list[str]:
    weights = require(repo, file, names) if file else choose_weights(repo, names)
    return [weights, *companions(weights, names)]


def _shards(repo: str, index: str, path: Path, names: Mapping[str, str]) -> list[str]:
    try:
        listed = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
        folder = PurePosixPath(index).parent
        # A name that leads out of the repository is none of its files.
        return [require(repo, str(folder / shard), names) for shard in listed]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{index} of {repo} is no index of shards.",
            evidence={"file": path},
            hint="an index is JSON with weight_map: tensor name to file name.",
        ) from error


def _download(client: _Client, snapshot: _Snapshot, names: list[str]) -> dict[str, Path]:
    from huggingface_hub import hf_hub_download

    files = {}
    with progress(quiet=client.quiet):
        # Small files first: what is wrong with a repository shows before gigabytes arrive.
        for position, name in enumerate(reversed(names)):
            # The first goes by the name of the branch, so that the cache learns where the branch
            # points and can be used offline; the rest by commit, so that all are of one commit.
            revision = snapshot.commit if position else client.revision
            with explained(client.repo, client.revision, cache=client.cache_dir, file=name):
                path = hf_hub_download(
                    client.repo,
                    name,
                    revision=revision,
                    token=client.token,
                    cache_dir=client.cache_dir,
                    library_name=LIBRARY,
                    library_version=VERSION,
                )
            files[name] = Path(path)
            _same_commit(client.repo, _folder(files[name], name).name, snapshot.commit)
    return files


def _same_commit(repo: str, found: str, listed: str) -> None:
    if found != listed:
        raise SourceError(
            f"{repo} changed while it was read.",
            evidence={"listed": listed, "received": found},
            hint=f"run again, or hold on to one commit: --revision {found}",
        )


def _folder(path: Path, name: str) -> Path:
    return path.parents[len(PurePosixPath(name).parts) - 1]


def _from_cache(client: _Client, file: str | None, missing: OfflineError) -> _Files:
    """The files of the cached commit.

    Raises:
        OfflineError: `missing`, when the cache lacks the repository, the weights or a shard.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # No pattern: the folder of the commit, with whatever part of it is there.
        folder = snapshot_download(
            client.repo,
            revision=client.revision,
            cache_dir=client.cache_dir,
            local_files_only=True,
            allow_patterns=[],
        )
    except LocalEntryNotFoundError as error:
        raise missing from error
    cached = {str(p.relative_to(folder).as_posix()): p for p in Path(folder).rglob("*")}
    files = {name: path for name, path in cached.items() if path.is_file()}
    # In the cache a file is a link to a blob that is named by its published hash.
    hashes = {name: path.resolve().name for name, path in files.items()}
    try:
        names = _wanted(client.repo, file, hashes)
        if names[0].endswith(INDEX):
            names += _shards(client.repo, names[0], files[names[0]], hashes)
    except SourceError as error:
        raise missing from error
    snapshot = _Snapshot(commit=Path(folder).name, hashes=hashes)
    paths = {name: files[name] for name in names}
    return _Files(snapshot=snapshot, weights=names[0], paths=paths)


def _located(reference: str, name: str | None, client: _Client, files: _Files) -> Located:
    paths = dict(sorted(files.paths.items()))
    sha256 = {file: hash_file(path) for file, path in paths.items()}
    hashes = files.snapshot.hashes
    verified = [
        file
        for file, path in paths.items()
        if check_published(path, name=file, sha256=sha256[file], published=hashes.get(file, ""))
    ]
    weights = paths[files.weights]
    return Located(
        reference=reference,
        weights=weights,
        **beside(weights.parent),
        name=name,
        repo=client.repo,
        revision=files.snapshot.commit,
        url=None,
        sha256=sha256,
        verified=tuple(verified),
    )
