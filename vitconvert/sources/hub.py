"""Files of a Hugging Face Hub repository, all of one commit, by the Hub's own client.

`HfApi.model_info` lists a commit with the hashes of its files. `snapshot_download` brings what is
wanted of that commit into the cache that every program of this machine shares. What is in the
cache is then hashed and compared with the listing.
"""

import glob
import logging
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from vitconvert.documents import read_object
from vitconvert.errors import OfflineError, SourceError, UsageError
from vitconvert.file_formats import INDEX
from vitconvert.formats.hashing import git_blob_hash, hash_file
from vitconvert.sources.choosing import parts, shards_of, tokenizer, wanted_files
from vitconvert.sources.hub_errors import hash_mismatch, hub_errors, offline_error
from vitconvert.sources.hub_ranges import Remote, fetch_part, kept_part
from vitconvert.sources.located import CONFIGS, DownloadOptions, Fetched, Located, files_beside
from vitconvert.sources.references import HubRepo
from vitconvert.version import LIBRARY, VERSION

logger = logging.getLogger(__name__)
_DEFAULT_REVISION = "main"


@dataclass(frozen=True, kw_only=True)
class _Repository:
    """One repository at one revision, how it is reached, and where it is kept."""

    name: str
    revision: str | None
    fetching: DownloadOptions
    cache: Path

    @property
    def folder(self) -> Path:
        """Of the Hub's own cache (huggingface.co/docs/huggingface_hub/guides/manage-cache)."""
        return self.cache / "--".join(("models", *self.name.split("/")))

    def parts(self, commit: str) -> Path:
        """The place of parts of a commit's large files; no folder of the client's."""
        return self.cache / ".vitconvert-parts" / self.folder.name / commit


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """One commit: the published hash and the size of each of its files, where there are any."""

    commit: str
    hashes: Mapping[str, str]
    sizes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class _File:
    """A whole file of a commit here, and whether its hash is the one that was published."""

    path: Path
    sha256: str
    verified: bool


@dataclass(frozen=True, kw_only=True)
class _Files:
    """What is here of one commit: the file to read, of which a part may be here, and the rest."""

    commit: str
    weights: Path
    whole: Mapping[str, _File]
    fetched: Fetched | None = None


def locate_repo(
    reference: str, hub: HubRepo, name: str | None, fetching: DownloadOptions
) -> Located:
    """Download what a conversion reads of a repository, or take it from the cache."""
    from huggingface_hub import constants

    if hub.revision and fetching.revision and hub.revision != fetching.revision:
        raise UsageError(
            "Two revisions are asked for.",
            evidence={"reference": hub.revision, "revision": fetching.revision},
            hint="leave one of them out.",
        )
    repo = _Repository(
        name=hub.repo,
        revision=hub.revision or fetching.revision,
        fetching=fetching,
        cache=fetching.cache_dir or Path(constants.HF_HUB_CACHE),
    )
    if fetching.offline or constants.HF_HUB_OFFLINE:
        what = hub.repo + (f"@{repo.revision}" if repo.revision else "")
        files = _from_cache(repo, hub.file, offline_error(what, asked=True, cache=repo.cache))
    else:
        try:
            listing = _listing(repo)
        except OfflineError as error:
            # A network that fails is no reason to fail where the cache can answer.
            files = _from_cache(repo, hub.file, error)
            logger.warning("no network answers; %s is taken from the cache", repo.name)
        else:
            files = _from_hub(repo, hub.file, listing)
    beside = [file.path.parent for file in files.whole.values() if file.path != files.weights]
    return Located(
        reference=reference,
        weights=files.weights,
        **files_beside(beside[0] if files.fetched and beside else files.weights.parent),
        name=name,
        repo=hub.repo,
        revision=files.commit,
        sha256={name: file.sha256 for name, file in sorted(files.whole.items())},
        verified=tuple(name for name, file in sorted(files.whole.items()) if file.verified),
        fetched=files.fetched,
    )


def _listing(repo: _Repository) -> _Listing:
    """Names and hashes of one commit, in one answer, so that they agree."""
    from huggingface_hub import HfApi

    client = HfApi(token=repo.fetching.token, library_name=LIBRARY, library_version=VERSION)
    with hub_errors(repo.name, repo.revision, cache=repo.cache, listing=True):
        found = client.model_info(repo.name, revision=repo.revision, files_metadata=True)
    files = found.siblings or []
    hashes = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in files}
    return _Listing(
        commit=str(found.sha),
        hashes={name: digest or "" for name, digest in hashes.items()},
        sizes={file.rfilename: file.size for file in files if file.size is not None},
    )


def _from_hub(repo: _Repository, file: str | None, listing: _Listing) -> _Files:
    weights, *others = wanted_files(repo.name, file, listing.hashes)
    # Small files first: what is wrong with a repository shows before gigabytes arrive.
    index = None
    if weights.endswith(INDEX):
        whole = _download(repo, listing, [weights, *others])
        index = whole[weights].path
        shards = shards_of(repo.name, weights, index, listing.hashes)
    else:
        whole = _download(repo, listing, others)
        shards = [weights, *parts(weights, listing.hashes)]
    config = _config_among(whole)
    if not _cached(repo, listing.commit, shards) and listing.sizes.keys() >= set(shards):
        remote = Remote(
            repo=repo.name,
            commit=listing.commit,
            sizes={name: listing.sizes[name] for name in shards},
            token=repo.fetching.token,
        )
        store = repo.parts(listing.commit)
        with hub_errors(repo.name, repo.revision, cache=repo.cache):
            part = fetch_part(remote, weights, index, config, repo.fetching, store)
        if part is not None:
            path, fetched = part
            beside = {name: file for name, file in whole.items() if name != weights}
            return _Files(commit=listing.commit, weights=path, whole=beside, fetched=fetched)
    tokenizing = tokenizer(weights, listing.hashes, config)
    whole |= _download(repo, listing, [*shards, *tokenizing])
    return _Files(commit=listing.commit, weights=whole[weights].path, whole=whole)


def _download(repo: _Repository, listing: _Listing, names: list[str]) -> dict[str, _File]:
    """Files of the commit, in the client's cache, each with the hash that is published of it."""
    from huggingface_hub import snapshot_download

    if (found := _cached(repo, listing.commit, names)) is None:
        shown = sys.stderr.isatty() and not repo.fetching.quiet
        with hub_errors(repo.name, repo.revision, cache=repo.cache):
            snapshot_download(
                repo.name,
                revision=listing.commit,
                cache_dir=repo.cache,
                token=repo.fetching.token,
                library_name=LIBRARY,
                library_version=VERSION,
                allow_patterns=[glob.escape(name) for name in names],
                tqdm_class=None if shown else _NoBar,
            )
        found = {name: repo.folder / "snapshots" / listing.commit / name for name in names}
    # The client notes where a branch leads only if it is asked for the branch.
    revision = repo.revision or _DEFAULT_REVISION
    if revision != listing.commit:
        ref = repo.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(listing.commit, encoding="utf-8", newline="\n")
    return {name: _hashed(name, path, listing.hashes[name]) for name, path in found.items()}


class _NoBar(tqdm):  # type: ignore[misc]
    """No progress, where `quiet` is asked for, or stderr is no terminal."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{**options, "disable": True})


def _cached(repo: _Repository, commit: str, names: Collection[str]) -> dict[str, Path] | None:
    """Files of a commit that are all in the cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    found = {
        name: try_to_load_from_cache(repo.name, name, cache_dir=repo.cache, revision=commit)
        for name in names
    }
    paths = {name: Path(path) for name, path in found.items() if isinstance(path, str)}
    return paths if len(paths) == len(found) else None


def _config_among(files: Mapping[str, _File]) -> Mapping[str, object]:
    # By its whole name: a preprocessor_config.json ends so too.
    found = (file.path for name, file in files.items() if PurePosixPath(name).name in CONFIGS)
    return next(map(read_object, found), {})


def _from_cache(repo: _Repository, file: str | None, missing: OfflineError) -> _Files:
    """The files of the cached commit, or the part of them that was fetched.

    Raises:
        OfflineError: `missing`, when the cache lacks the repository, the weights or a shard.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # No pattern: the folder of the commit, with whatever part of it is there.
        folder = snapshot_download(
            repo.name,
            revision=repo.revision,
            cache_dir=repo.cache,
            local_files_only=True,
            allow_patterns=[],
        )
    except LocalEntryNotFoundError as error:
        raise missing from error
    commit = Path(folder).name
    files = {p.relative_to(folder).as_posix(): p for p in Path(folder).rglob("*") if p.is_file()}
    store = repo.parts(commit)
    # Parts of a commit are in folders, one for each vision encoder.
    kept = [path.relative_to(store).parts[1:] for path in store.rglob("*") if path.is_file()]
    known = {*files, *(str(PurePosixPath(*names)) for names in kept)}
    try:
        weights, *others = wanted_files(repo.name, file, known)
        needed = [weights, *parts(weights, files)]
        if weights.endswith(INDEX) and weights in files:
            needed += shards_of(repo.name, weights, files[weights], known)
    except SourceError as error:
        raise missing from error
    complete = all(name in files for name in needed)
    # In the cache a file is a link to a blob that is named by its published hash.
    whole = {
        name: _hashed(name, files[name], files[name].resolve().name)
        for name in [*others, *needed * complete]
        if name in files
    }
    if complete:
        return _Files(commit=commit, weights=files[weights], whole=whole)
    if (found := kept_part(weights, _config_among(whole), repo.fetching, store)) is None:
        raise missing
    path, fetched = found
    return _Files(commit=commit, weights=path, whole=whole, fetched=fetched)


def _hashed(name: str, path: Path, published: str) -> _File:
    """A file, compared with the hash that is published of it, if one is.

    Raises:
        IntegrityError: It has another.
    """
    sha256 = hash_file(path)
    # The Hub publishes the sha256 of files in LFS, and git's own hash of the rest.
    match len(published):
        case 64:
            kind, found = "sha256", sha256
        case 40:
            kind, found = "git blob", git_blob_hash(path)
        case _:
            return _File(path=path, sha256=sha256, verified=False)
    if found != published:
        hint = f"remove {path.resolve()} and run again."
        raise hash_mismatch(name, kind, published, found, hint)
    return _File(path=path, sha256=sha256, verified=True)
