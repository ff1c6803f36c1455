"""Files of a Hugging Face Hub repository, all of one commit, each compared with its published hash.

One answer lists the files of a commit with their hashes; each is then asked for by that commit and
kept by that hash, in the layout of the Hub client's own cache:

    models--ORG--REPO/blobs/HASH              a file's bytes, by the hash that is published of them
    models--ORG--REPO/snapshots/COMMIT/NAME   a link to them
    models--ORG--REPO/refs/REVISION           the commit that a branch or tag led to

The client itself (huggingface_hub 2.4, file_download.py) names a blob by the ETag that the server
sends with it and a snapshot by its X-Repo-Commit, without a look at either: a server that sends an
absolute path as ETag chooses which file is written. To look before the client asks does not help,
since the server may answer it otherwise; and hooks in its HTTP client are gone after a connection
that fails, for which it makes another. Its Xet client has connections of its own. So this package
downloads by itself, and every part of a path is one that `answers` has checked. The layout is the
documented one (https://huggingface.co/docs/huggingface_hub/guides/manage-cache), so that other
programs and `HF_HUB_OFFLINE` find what is here, and we what they have left.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from vitconvert.documents import MOST_BYTES, read_object
from vitconvert.errors import OfflineError, SourceError, UsageError
from vitconvert.file_formats import INDEX
from vitconvert.formats.hashing import git_blob_hash, hash_file
from vitconvert.sources.answers import (
    NO_HUB,
    SHA256,
    Listing,
    is_relative_name,
    kind_of,
    read_listing,
    shown,
)
from vitconvert.sources.choosing import parts, shards_of, tokenizer, wanted_files
from vitconvert.sources.hub_ranges import fetch_part, kept_part
from vitconvert.sources.located import CONFIGS, Fetched, Fetching, Located, files_beside
from vitconvert.sources.references import HubRepo
from vitconvert.sources.transfer import Wanted, mismatch, receive
from vitconvert.sources.transport import (
    describe,
    get,
    is_unreachable,
    offline_error,
    transport_errors,
)
from vitconvert.version import LIBRARY, VERSION

if TYPE_CHECKING:
    from httpx2 import Response

logger = logging.getLogger(__name__)
_DEFAULT_REVISION = "main"


@dataclass(frozen=True, kw_only=True)
class _Files:
    """Local files of one commit, and which of them is the one to read.

    `hashes` are those that are published, empty where there is none.
    """

    commit: str
    hashes: Mapping[str, str]
    weights: str
    paths: Mapping[str, Path]
    fetched: Fetched | None = None


def locate_repo(reference: str, hub: HubRepo, name: str | None, fetching: Fetching) -> Located:
    """Download what a conversion reads of a repository, or take it from the cache."""
    from huggingface_hub import constants

    if hub.revision and fetching.revision and hub.revision != fetching.revision:
        raise UsageError(
            "Two revisions are asked for.",
            evidence={"reference": hub.revision, "revision": fetching.revision},
            hint="leave one of them out.",
        )
    revision = hub.revision or fetching.revision
    if revision is not None and not is_relative_name(revision):  # it becomes a part of a path
        raise SourceError(
            f"{shown(revision)} cannot be a revision.",
            hint="a branch, a tag or a commit, as in hf:ORG/REPO@main",
        )
    cache = fetching.cache_dir or Path(constants.HF_HUB_CACHE)
    repo = _Repository(name=hub.repo, revision=revision, fetching=fetching, cache=cache)
    if fetching.offline or constants.HF_HUB_OFFLINE:
        what = hub.repo + (f"@{revision}" if revision else "")
        files = _from_cache(repo, hub.file, offline_error(what, asked=True, cache=cache))
    else:
        files = _from_hub(repo, hub.file)
    whole = {
        n: p for n, p in sorted(files.paths.items()) if n != files.weights or not files.fetched
    }
    sha256 = {file: hash_file(path) for file, path in whole.items()}
    verified = []
    for file, path in whole.items():
        published = files.hashes.get(file, "")
        if (kind := kind_of(published)) is not None:
            found = sha256[file] if kind == SHA256 else git_blob_hash(path)
            if found != published:
                raise mismatch(path, file, kind, published=published, found=found)
            verified.append(file)
    weights = files.paths[files.weights]
    others = [path for file, path in whole.items() if file != files.weights]
    folder = others[0].parent if files.fetched and others else weights.parent
    return Located(
        reference=reference,
        weights=weights,
        **files_beside(folder),
        name=name,
        repo=hub.repo,
        revision=files.commit,
        sha256=sha256,
        verified=tuple(verified),
        fetched=files.fetched,
    )


@dataclass(frozen=True, kw_only=True)
class _Repository:
    """One repository at one revision, how it is reached, and where it is kept."""

    name: str
    revision: str | None
    fetching: Fetching
    cache: Path

    @property
    def _folder(self) -> str:
        return "--".join(("models", *self.name.split("/")))

    def blob(self, digest: str) -> Path:
        """The bytes that have this hash."""
        return self.cache / self._folder / "blobs" / digest

    def pointer(self, commit: str, name: str) -> Path:
        """A file of a commit."""
        return self.cache / self._folder / "snapshots" / commit / name

    def parts(self, commit: str) -> Path:
        """The place of parts of a commit's large files; no folder of the client's."""
        return self.cache / ".vitconvert-parts" / self._folder / commit

    def headers(self) -> dict[str, str]:
        """The headers of each request; a name that the Hub cannot have is refused."""
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            validate_repo_id,
        )

        validate_repo_id(self.name)
        token = self.fetching.token
        return build_hf_headers(token=token, library_name=LIBRARY, library_version=VERSION)

    def listing(self) -> Listing:
        """Names and hashes of one commit, in one answer, so that they agree."""
        from huggingface_hub import constants
        from huggingface_hub.errors import HFValidationError

        url = f"{constants.ENDPOINT}/api/models/{self.name}"
        if self.revision is not None:
            url += f"/revision/{quote(self.revision, safe='')}"
        body = bytearray()
        try:
            with get(f"{url}?blobs=true", self.headers()) as answer:
                if answer.status_code != HTTPStatus.OK:
                    raise _refused(self.name, self.revision, None, answer)
                for chunk in answer.iter_bytes():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise SourceError(
                            f"The server's list of the files of {self.name} does not end.",
                            evidence={"received": f"{len(body)} bytes"},
                            hint=NO_HUB,
                        )
        except HFValidationError as error:
            raise SourceError(
                f"{self.name} cannot be the name of a Hub repository.",
                hint="letters, digits, '-', '_' and '.', as in hf:ORG/REPO",
            ) from error
        except transport_errors() as error:
            if is_unreachable(error):
                cause = f"{type(error).__name__}: {error}"
                raise offline_error(
                    self.name, asked=False, cache=self.cache, cause=cause
                ) from error
            raise SourceError(
                "The Hub does not answer as it should.",
                evidence={"repository": self.name, "cause": shown(str(error))},
                hint=NO_HUB,
            ) from error
        return read_listing(bytes(body), repo=self.name)

    def wanted(self, listing: Listing, name: str) -> Wanted:
        """A file of the commit.

        Raises:
            SourceError: No hash of it is published.
        """
        from huggingface_hub import hf_hub_url

        if (published := listing.files[name]) is None:
            raise SourceError(
                f"The server publishes no hash of {name}, so nothing can vouch for it.",
                evidence={"repository": self.name},
                hint="HF_ENDPOINT may name a server that is no Hub; "
                "download the file yourself and give its path.",
            )
        return Wanted(
            url=hf_hub_url(self.name, name, revision=listing.commit),
            headers=self.headers(),
            name=name,
            refuse=lambda answer: _refused(self.name, listing.commit, name, answer),
            hash=published.hash,
            size=published.size,
        )

    def download(self, listing: Listing, names: list[str]) -> dict[str, Path]:
        """Files of the commit, from the last to the first of the names."""
        # Small files first: what is wrong with a repository shows before gigabytes arrive.
        files = {name: self._file(listing, name) for name in reversed(names)}
        # Where a branch or tag leads, for those who are offline.
        revision = self.revision or _DEFAULT_REVISION
        if revision != listing.commit:
            ref = self.cache / self._folder / "refs" / revision
            if not ref.is_file() or ref.read_text(encoding="utf-8") != listing.commit:
                ref.parent.mkdir(parents=True, exist_ok=True)
                draft = ref.with_name(f"{ref.name}.part")
                draft.write_text(listing.commit, encoding="utf-8")
                draft.replace(ref)
        return files

    def _file(self, listing: Listing, name: str) -> Path:
        pointer = self.pointer(listing.commit, name)
        if pointer.is_file():
            return pointer
        wanted = self.wanted(listing, name)
        blob = self.blob(wanted.hash)
        with self._lock(wanted.hash):
            if not blob.is_file():
                blob.parent.mkdir(parents=True, exist_ok=True)
                part = blob.with_name(f"{blob.name}.part")
                receive(wanted, part, cache=self.cache, quiet=self.fetching.quiet)
                part.replace(blob)
            pointer.parent.mkdir(parents=True, exist_ok=True)
            pointer.unlink(missing_ok=True)  # a link whose blob was removed
            up = "../" * (len(PurePosixPath(name).parts) + 1)
            try:
                pointer.symlink_to(f"{up}blobs/{wanted.hash}")
            except OSError:  # where there are no links, it moves there
                blob.replace(pointer)
        return pointer

    @contextmanager
    def _lock(self, digest: str) -> Iterator[None]:
        """One process at a time; the client's own lock, so that it waits for us as we for it."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        path = self.cache / ".locks" / self._folder / f"{digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(path):
            yield


def _from_hub(repo: _Repository, file: str | None) -> _Files:
    try:
        listing = repo.listing()
    except OfflineError as error:
        # A network that fails is no reason to fail where the cache can answer.
        cached = _from_cache(repo, file, error)
        logger.warning("no network answers; %s is taken from the cache", repo.name)
        return cached
    hashes = {name: published.hash for name, published in listing.files.items() if published}
    weights, *others = wanted_files(repo.name, file, listing.files)
    if weights.endswith(INDEX):
        paths = repo.download(listing, [weights, *others])
        shards = shards_of(repo.name, weights, paths[weights], listing.files)
    else:
        paths = repo.download(listing, others)
        # Of a directory the file to open comes last: where it is here, all of it is.
        shards = [weights, *parts(weights, listing.files)]
    tower = None
    wanted = {name: repo.wanted(listing, name) for name in shards}
    if not all(
        repo.blob(one.hash).is_file() or repo.pointer(listing.commit, name).is_file()
        for name, one in wanted.items()
    ):  # otherwise all of it is here, and its hashes were checked
        place, config = repo.parts(listing.commit), _config_among(paths)
        tower = fetch_part(wanted, weights, paths.get(weights), config, repo.fetching, place)
    if tower is not None:
        paths[weights], fetched = tower
    else:
        fetched = None
        tokenizing = tokenizer(weights, listing.files, _config_among(paths))
        paths |= repo.download(listing, [*shards, *tokenizing])
    return _Files(
        commit=listing.commit, hashes=hashes, weights=weights, paths=paths, fetched=fetched
    )


def _config_among(paths: Mapping[str, Path]) -> Mapping[str, object]:
    # By its whole name: a preprocessor_config.json ends so too.
    found = (path for name, path in paths.items() if PurePosixPath(name).name in CONFIGS)
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
    cached = {str(p.relative_to(folder).as_posix()): p for p in Path(folder).rglob("*")}
    files = {name: path for name, path in cached.items() if path.is_file()}
    # In the cache a file is a link to a blob that is named by its published hash.
    hashes = {name: path.resolve().name for name, path in files.items()}
    try:
        names = wanted_files(repo.name, file, hashes)
        if names[0].endswith(INDEX):
            names += shards_of(repo.name, names[0], files[names[0]], hashes)
        names += parts(names[0], hashes)
        paths = {name: files[name] for name in names}
        return _Files(commit=commit, hashes=hashes, weights=names[0], paths=paths)
    except SourceError as error:
        # What was fetched of the commit is in folders, one for each tower.
        store = repo.parts(commit)
        kept = [path.relative_to(store) for path in store.rglob("*") if path.is_file()]
        try:
            weights, *others = wanted_files(
                repo.name, file, {*files, *(str(PurePosixPath(*path.parts[1:])) for path in kept)}
            )
        except SourceError:
            raise missing from error
        paths = {name: files[name] for name in others if name in files}
        found = kept_part(weights, _config_among(paths), repo.fetching, store)
        if found is None:
            raise missing from error
        paths[weights], fetched = found
        return _Files(commit=commit, hashes=hashes, weights=weights, paths=paths, fetched=fetched)


def _refused(repo: str, revision: str | None, file: str | None, answer: "Response") -> SourceError:
    """The error for a refusal, by the word that the Hub gives with it or by its status."""
    page = f"https://huggingface.co/{repo}"
    evidence: Mapping[str, object] = {"page": page}
    match answer.headers.get("X-Error-Code"):
        case "GatedRepo":
            fact = f"{repo} is gated: its owners want their terms accepted first."
            hint = "accept the licence on that page, then pass --token or run `hf auth login`."
        case "RepoNotFound":
            fact = f"The Hub has no repository {repo}, or it is private."
            hint = "check the spelling; for a private one pass --token or run `hf auth login`."
        case "RevisionNotFound":
            fact, evidence = f"{repo} has no revision {revision}.", {}
            hint = f"branches, tags and commits are listed at {page}/commits"
        case "EntryNotFound":
            fact, evidence = f"{repo} holds no file {file}.", {}
            hint = f"the files are listed at {page}/tree/main"
        case _:
            evidence = {"repository": repo, **describe(answer)}
            match answer.status_code:
                case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                    fact = "The Hub refuses the token, or wants one."
                    hint = "pass --token, or run `hf auth login`."
                case HTTPStatus.TOO_MANY_REQUESTS:
                    fact = "The Hub takes no more requests from here for now."
                    hint = "try again later; it takes more with a token (--token)."
                case _:
                    fact = "The Hub does not answer as it should."
                    hint = "try again later; what has arrived is kept."
    return SourceError(fact, evidence=evidence, hint=hint)
