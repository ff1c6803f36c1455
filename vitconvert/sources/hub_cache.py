"""The Hub client's cache of one repository, written here in its layout.

    models--ORG--REPO/blobs/HASH              a file's bytes, by the hash that is published of them
    models--ORG--REPO/snapshots/COMMIT/NAME   a link to them
    models--ORG--REPO/refs/REVISION           the commit that a branch or tag led to

The client itself (huggingface_hub 2.4, file_download.py) names a blob by the ETag that the server
sends with it and a snapshot by its X-Repo-Commit, without a look at either: a server that sends an
absolute path as ETag chooses which file is written. To look before the client asks does not help,
since the server may answer it otherwise, and its one HTTP client is not ours to put checks into.
So this package downloads by itself, and every part of a path is one that `answers` has checked.
The layout is the documented one (https://huggingface.co/docs/huggingface_hub/guides/manage-cache),
so that other programs and `HF_HUB_OFFLINE` find what is here, and we what they have left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitconvert.errors import SourceError
from vitconvert.sources.answers import is_relative_name, shown


@dataclass(frozen=True, kw_only=True)
class RepoCache:
    """Where the files of one repository lie."""

    cache: Path
    repo: str

    @property
    def _name(self) -> str:
        return "--".join(("models", *self.repo.split("/")))

    def blob(self, digest: str) -> Path:
        """The bytes that have this hash."""
        return self.cache / self._name / "blobs" / digest

    def pointer(self, commit: str, name: str) -> Path:
        """A file of a commit."""
        return self.cache / self._name / "snapshots" / commit / name

    def has(self, commit: str, name: str, digest: str) -> bool:
        """Whether all of a file is here."""
        return self.blob(digest).is_file() or self.pointer(commit, name).is_file()

    def parts(self, commit: str) -> Path:
        """Where parts of a commit's large files are; no folder of the client's."""
        return self.cache / ".vitconvert-parts" / self._name / commit

    @contextmanager
    def lock(self, digest: str) -> Iterator[None]:
        """One process at a time; the client's own lock, so that it waits for us as we for it."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        path = self.cache / ".locks" / self._name / f"{digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(path):
            yield

    def link(self, commit: str, name: str, digest: str) -> None:
        """Put a blob into a snapshot; where there are no links, it moves there."""
        pointer = self.pointer(commit, name)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.unlink(missing_ok=True)  # a link whose blob was removed
        up = "../" * (len(PurePosixPath(name).parts) + 1)
        try:
            pointer.symlink_to(f"{up}blobs/{digest}")
        except OSError:
            self.blob(digest).replace(pointer)

    def remember(self, revision: str, commit: str) -> None:
        """Note where a branch or tag leads, for those who are offline."""
        if revision == commit:
            return
        path = self.cache / self._name / "refs" / revision
        if path.is_file() and path.read_text(encoding="utf-8") == commit:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.part")
        draft.write_text(commit, encoding="utf-8")
        draft.replace(path)


def require_revision(revision: str) -> None:
    """Refuse what is no name of a branch, a tag or a commit: it becomes a part of a path.

    Raises:
        SourceError: It would lead out of the cache.
    """
    if not is_relative_name(revision):
        raise SourceError(
            f"{shown(revision)} cannot be a revision.",
            hint="a branch, a tag or a commit, as in hf:ORG/REPO@main",
        )
