"""Files of a Hugging Face Hub repository, all of one commit, each compared with its published hash.

One answer lists the files of a commit with their hashes; each is then asked for by that commit and
kept by that hash. Why the Hub's client does not do it: see `hub_cache`.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from vitconvert.documents import MOST_BYTES, read_object
from vitconvert.errors import CorruptFile, OfflineError, SourceError, UsageError
from vitconvert.file_formats import INDEX
from vitconvert.formats.hashing import hash_file
from vitconvert.sources.answers import Listing, Published, kind_of, read_listing
from vitconvert.sources.choosing import choose_weights, companions, parts, require, tokenizer
from vitconvert.sources.hub_cache import RepoCache, require_revision
from vitconvert.sources.hub_errors import answered, broken, explained
from vitconvert.sources.hub_ranges import WORTHWHILE, Asked, NoRanges, fetch_part, kept_part
from vitconvert.sources.located import CONFIGS, Fetched, Fetching, Located, beside
from vitconvert.sources.references import HubRepo
from vitconvert.sources.transfer import BrokenOff, Wanted, check_published, receive
from vitconvert.sources.transport import get, offline_error
from vitconvert.version import LIBRARY, VERSION

if TYPE_CHECKING:
    from httpx2 import Response

logger = logging.getLogger(__name__)
_DEFAULT_REVISION = "main"


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
    fetched: Fetched | None = None


def locate_repo(reference: str, hub: HubRepo, name: str | None, fetching: Fetching) -> Located:
    """Download what a conversion reads of a repository, or take it from the cache."""
    from huggingface_hub import constants

    revision = _one_revision(hub.revision, fetching.revision)
    if revision is not None:
        require_revision(revision)
    client = _Client(
        repo=hub.repo,
        revision=revision,
        token=fetching.token,
        cache_dir=fetching.cache_dir or Path(constants.HF_HUB_CACHE),
        quiet=fetching.quiet,
    )
    part = Asked(tower=fetching.tower, headers_only=fetching.headers_only)
    if fetching.offline or constants.HF_HUB_OFFLINE:
        files = _from_cache(client, hub.file, part, _offline(client, asked=True))
    else:
        files = _from_hub(client, hub.file, part)
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


def _from_hub(client: _Client, file: str | None, part: Asked) -> _Files:
    try:
        listing = _listing(client)
    except OfflineError as error:
        # A network that fails is no reason to fail where the cache can answer; it is said.
        cached = _from_cache(client, file, part, error)
        logger.warning("no network answers; %s is taken from the cache", client.repo)
        return cached
    names = _wanted(client.repo, file, listing.files)
    hashes = {name: published.hash for name, published in listing.files.items() if published}
    snapshot = _Snapshot(commit=listing.commit, hashes=hashes)
    sharded = names[0].endswith(INDEX)
    files = _download(client, listing, names if sharded else names[1:])
    if sharded:
        shards = _shards(client.repo, names[0], files[names[0]], listing.files)
    else:
        # Of a directory the file to open comes last: where it is here, all of it is.
        shards = [names[0], *parts(names[0], listing.files)]
    if found := _part(client, listing, names[0], shards, files, part):
        path, fetched = found
        paths = {**files, names[0]: path}
        return _Files(snapshot=snapshot, weights=names[0], paths=paths, fetched=fetched)
    tokenizing = tokenizer(names[0], listing.files, _config_among(files))
    files |= _download(client, listing, [*shards, *tokenizing])
    return _Files(snapshot=snapshot, weights=names[0], paths=files)


def _part(
    client: _Client,
    listing: Listing,
    weights: str,
    shards: list[str],
    files: Mapping[str, Path],
    part: Asked,
) -> tuple[Path, Fetched] | None:
    """The headers and the tower of a large repository; None where all of it is to be read."""
    cache = RepoCache(cache=client.cache_dir, repo=client.repo)
    of_shards = {name: _published(client, listing, name) for name in shards}
    if all(cache.has(listing.commit, name, of_shards[name].hash) for name in shards):
        return None  # all of it is here, and its hashes were checked
    sizes = [wanted.size for wanted in of_shards.values()]
    total = sum(size or 0 for size in sizes)
    known = None not in sizes and all(name.endswith(".safetensors") for name in shards)
    if not known or (total < WORTHWHILE and not part.headers_only):
        return None
    config, store = _config_among(files), cache.parts(listing.commit)
    if found := kept_part(weights, config, part, store):
        return found
    try:
        return fetch_part(of_shards, weights, files.get(weights), config, part, store)
    except NoRanges:
        return None


def _config_among(files: Mapping[str, Path]) -> Mapping[str, Any]:
    # A preprocessor_config.json ends so too.
    found = (path for name, path in files.items() if PurePosixPath(name).name in CONFIGS)
    return next(map(read_object, found), {})


def _published(client: _Client, listing: Listing, name: str) -> Wanted:
    if (published := listing.files[name]) is None:
        raise _no_hash(client.repo, name)
    return _wanted_file(client, listing.commit, name, published)


def _listing(client: _Client) -> Listing:
    """Names and hashes of one commit, in one answer, so that they agree."""
    from huggingface_hub import constants

    url = f"{constants.ENDPOINT}/api/models/{client.repo}"
    if client.revision is not None:
        url += f"/revision/{quote(client.revision, safe='')}"
    with (
        explained(client.repo, cache=client.cache_dir),
        get(f"{url}?blobs=true", _headers(client)) as answer,
    ):
        if answer.status_code != HTTPStatus.OK:
            raise answered(client.repo, client.revision, None, answer)
        body = _whole(client.repo, answer)
    return read_listing(body, repo=client.repo)


def _headers(client: _Client) -> dict[str, str]:
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        validate_repo_id,
    )

    validate_repo_id(client.repo)
    return build_hf_headers(token=client.token, library_name=LIBRARY, library_version=VERSION)


def _whole(repo: str, answer: "Response") -> bytes:
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > MOST_BYTES:
            raise SourceError(
                f"The server's list of the files of {repo} does not end.",
                evidence={"received": f"{len(body)} bytes"},
                hint="HF_ENDPOINT or a proxy may lead to a server that is no Hub.",
            )
    return bytes(body)


def _wanted(repo: str, file: str | None, names: Collection[str]) -> list[str]:
    folder = f"{file.rstrip('/')}/" if file else ""
    if file and not any(name.startswith(folder) for name in names):
        weights = require(repo, file, names)
    else:
        weights = choose_weights(repo, names, folder)
    return [weights, *companions(weights, names)]


def _shards(repo: str, index: str, path: Path, names: Collection[str]) -> list[str]:
    try:
        listed = sorted(set(read_object(path)["weight_map"].values()))
        folder = PurePosixPath(index).parent
        # A name that leads out of the repository is none of its files.
        return [require(repo, str(folder / shard), names) for shard in listed]
    except (CorruptFile, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{index} of {repo} is no index of shards.",
            evidence={"file": path},
            hint="an index is JSON with weight_map: tensor name to file name.",
        ) from error


def _download(client: _Client, listing: Listing, names: list[str]) -> dict[str, Path]:
    # Small files first: what is wrong with a repository shows before gigabytes arrive.
    files = {name: _one_file(client, listing, name) for name in reversed(names)}
    cache = RepoCache(cache=client.cache_dir, repo=client.repo)
    cache.remember(client.revision or _DEFAULT_REVISION, listing.commit)
    return files


def _one_file(client: _Client, listing: Listing, name: str) -> Path:
    cache = RepoCache(cache=client.cache_dir, repo=client.repo)
    path = cache.pointer(listing.commit, name)
    if path.is_file():
        return path
    if (published := listing.files[name]) is None:
        raise _no_hash(client.repo, name)
    with cache.lock(published.hash):
        blob = cache.blob(published.hash)
        if not blob.is_file():
            blob.parent.mkdir(parents=True, exist_ok=True)
            _receive(client, listing.commit, name, published, blob)
        cache.link(listing.commit, name, published.hash)
    return path


def _receive(client: _Client, commit: str, name: str, published: Published, blob: Path) -> None:
    wanted = _wanted_file(client, commit, name, published)
    part = blob.with_name(f"{blob.name}.part")
    try:
        receive(wanted, part, quiet=client.quiet)
    except BrokenOff as error:
        raise broken(client.repo, name, error) from error
    part.replace(blob)


def _wanted_file(client: _Client, commit: str, name: str, published: Published) -> Wanted:
    from huggingface_hub import hf_hub_url

    return Wanted(
        url=hf_hub_url(client.repo, name, revision=commit),
        headers=_headers(client),
        name=name,
        refuse=lambda answer: answered(client.repo, commit, name, answer),
        kind=kind_of(published.hash) or "",
        hash=published.hash,
        size=published.size,
    )


def _no_hash(repo: str, name: str) -> SourceError:
    return SourceError(
        f"The server publishes no hash of {name}, so nothing can vouch for it.",
        evidence={"repository": repo},
        hint="HF_ENDPOINT may name a server that is no Hub; "
        "download the file yourself and give its path.",
    )


def _from_cache(client: _Client, file: str | None, part: Asked, missing: OfflineError) -> _Files:
    """The files of the cached commit, or what was fetched of them.

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
    snapshot = _Snapshot(commit=Path(folder).name, hashes=hashes)
    try:
        names = _wanted(client.repo, file, hashes)
        if names[0].endswith(INDEX):
            names += _shards(client.repo, names[0], files[names[0]], hashes)
        names += parts(names[0], hashes)
    except SourceError as error:
        if found := _part_from_cache(client, file, part, snapshot, files):
            return found
        raise missing from error
    paths = {name: files[name] for name in names}
    return _Files(snapshot=snapshot, weights=names[0], paths=paths)


def _part_from_cache(
    client: _Client, file: str | None, part: Asked, snapshot: _Snapshot, files: Mapping[str, Path]
) -> _Files | None:
    """What is asked for of the cached commit, if it alone was fetched."""
    store = RepoCache(cache=client.cache_dir, repo=client.repo).parts(snapshot.commit)
    kept = [path.relative_to(store) for path in store.rglob("*") if path.is_file()]
    names = {*files, *(str(PurePosixPath(*path.parts[1:])) for path in kept)}
    try:
        weights, *others = _wanted(client.repo, file, names)
    except SourceError:
        return None
    paths = {name: files[name] for name in others if name in files}
    if (found := kept_part(weights, _config_among(paths), part, store)) is None:
        return None
    paths[weights], fetched = found
    return _Files(snapshot=snapshot, weights=weights, paths=paths, fetched=fetched)


def _located(reference: str, name: str | None, client: _Client, files: _Files) -> Located:
    weights = files.paths[files.weights]
    partial = {files.weights} if files.fetched else set()
    paths = {name: path for name, path in sorted(files.paths.items()) if name not in partial}
    sha256 = {file: hash_file(path) for file, path in paths.items()}
    hashes = files.snapshot.hashes
    verified = [
        file
        for file, path in paths.items()
        if check_published(path, name=file, sha256=sha256[file], published=hashes.get(file, ""))
    ]
    others = [path for name, path in paths.items() if name != files.weights]
    folder = others[0].parent if partial and others else weights.parent
    return Located(
        reference=reference,
        weights=weights,
        **beside(folder),
        name=name,
        repo=client.repo,
        revision=files.snapshot.commit,
        url=None,
        sha256=sha256,
        verified=tuple(verified),
        fetched=files.fetched,
    )
