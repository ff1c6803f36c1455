"""An output to the Hugging Face Hub, in one commit, after its weights were checked once more."""

import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.atomic_write import is_unfinished
from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, IntegrityError, UploadError, UsageError, VitConvertError
from vitconvert.file_formats import FOREIGN_SUFFIXES, suffixes
from vitconvert.formats.hashing import git_blob_hash, hash_file
from vitconvert.sources.located import RECORD
from vitconvert.version import LIBRARY, VERSION

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile, RepoFolder


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The files that were sent, and where they are.

    Attributes:
        repo: The repository, with its owner.
        url: Page of the commit, or of the pull request.
        commit: The commit, 40 hexadecimal digits.
        pull_request: Whether it is a pull request.
        files: Name -> bytes of each file.
    """

    repo: str
    url: str
    commit: str
    pull_request: bool
    files: Mapping[str, int]

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


def files_to_push(directory: Path, *, force: bool = False) -> dict[str, Path]:
    """The files of an output that go to the Hub: all but those whose path has a dot in front.

    Raises:
        UploadError: The directory is no output of vitconvert, or not all of one, or holds links,
            or weights that vitconvert did not write, or random ones without `force`.
        IntegrityError: A file but the card is not as it was written.
    """
    record = _record(directory, force=force)
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*")}
    hidden = {name for name in paths if any(part.startswith(".") for part in name.split("/"))}
    paths = {name: paths[name] for name in sorted(paths.keys() - hidden)}
    if links := [name for name, path in paths.items() if path.is_symlink()]:
        raise UploadError(
            "Links are not published: they may lead to files that are not meant to be.",
            evidence={"directory": directory},
            details=links,
            hint="put a copy in the place of each, or move them elsewhere.",
        )
    files = {name: path for name, path in paths.items() if path.is_file()}
    if missing := sorted(record.keys() - files.keys()):
        raise UploadError(
            "Files that were written are missing.",
            evidence={"directory": directory},
            details=missing,
            hint="convert again with --force.",
        )
    weights = (*suffixes(), *FOREIGN_SUFFIXES)
    if foreign := [name for name in files if name.endswith(weights) and name not in record]:
        raise UploadError(
            f"{RECORD} does not list all weights in this directory.",
            evidence={"directory": directory},
            details=foreign,
            hint="move them elsewhere: programs might load them instead.",
        )
    for name, written in record.items():
        if (found := hash_file(files[name])) != written:
            raise IntegrityError(
                f"{files[name].name} is not the file that vitconvert wrote.",
                evidence={"written": f"sha256 {written}", "found": f"sha256 {found}"},
                meaning="It was damaged, or changed since, so its parity report no longer applies.",
                hint="convert again with another -o, or convert what was changed.",
            )
    return files


def _record(directory: Path, *, force: bool) -> dict[str, str]:
    """File -> the sha256 with which it was written; but the card is anybody's to edit."""
    if not os.path.isdir(directory):  # noqa: PTH112 (no error for a name that is too long)
        raise UploadError(f"There is no directory {directory}.")
    if is_unfinished(directory):
        raise UploadError(f"{directory} is being written, or was left when that was interrupted.")
    path = directory / RECORD
    if not path.exists():
        raise UploadError(
            f"{directory} holds no {RECORD}, so vitconvert did not write it.",
            hint="`vitconvert convert CHECKPOINT -o DIR` writes one.",
        )
    try:
        written = read_object(path)
    except CorruptFile:
        written = {}
    record, source = written.get("sha256"), written.get("source")
    are_texts = isinstance(record, dict) and all(isinstance(v, str) for v in record.values())
    if not record or not are_texts:
        raise UploadError(
            f"{RECORD} does not list the weights that were written.",
            evidence={"file": path},
            hint="convert again, to another directory.",
        )
    if isinstance(source, dict) and source.get("random") and not force:
        raise UploadError(
            "These weights are random: nothing was learned.",
            evidence={"directory": directory},
            hint="--force publishes them anyway; the model card says that they are random.",
        )
    return {name: digest for name, digest in record.items() if name != "README.md"}


def push(
    directory: Path,
    repo: str,
    *,
    private: bool,
    create_pr: bool,
    revision: str | None,
    message: str | None,
    token: str | None,
    quiet: bool,
    force: bool,
) -> Pushed:
    """Publish an output as a model of the Hub, which is created if it is not there.

    Nothing that the repository already has is removed.

    Args:
        directory: What `convert` has written.
        repo: `ORG/REPO`, or `REPO` of the token's owner.
        private: Create it private; a repository that is there and public is refused.
        create_pr: Propose the files in a pull request, to a repository of somebody else.
        revision: The branch to commit to; it is created if it is not there.
        message: Of the commit.
        token: By default, the one of `hf auth login`.
        quiet: Show no progress.
        force: Publish random weights too.

    Raises:
        UploadError: The directory is not fit to be published, or the Hub does not take it.
        IntegrityError: The commit holds something else than was sent, or a file but the card is not
            as it was written.
        UsageError: A pull request to a branch.
    """
    from huggingface_hub import HfApi, get_token

    if create_pr and revision not in (None, "main"):
        raise UsageError(
            "A pull request is to main: --create-pr and --revision exclude each other."
        )
    files = files_to_push(directory, force=force)
    if not (token or get_token()):
        raise UploadError(
            "The Hub takes no files without a token.",
            hint="pass --token, or run `hf auth login`; --dry-run only lists the files.",
        )
    written = {name: hash_file(path) for name, path in files.items()}
    api = HfApi(library_name=LIBRARY, library_version=VERSION, token=token)
    with progress_bars(quiet=quiet), _upload_errors(repo, revision, proposed=create_pr):
        repo = _created(api, repo, revision, private=private)
        done = api.upload_folder(
            repo_id=repo,
            folder_path=directory,
            allow_patterns=[glob.escape(name) for name in files],
            commit_message=message or f"Weights and card from vitconvert {VERSION}",
            revision=revision,
            create_pr=create_pr,
        )
        revision, page = done.pr_revision or done.oid, done.pr_url or done.commit_url
        tree = api.list_repo_tree(repo, recursive=True, revision=revision)
        there = {file.path: file for file in tree}
    if left_out := sorted(files.keys() - there.keys()):
        raise UploadError(
            "The Hub left out files that the .gitignore of the repository names.",
            evidence={"commit": page},
            details=left_out,
            hint="take them out of its .gitignore, and push again.",
        )
    if other := [n for n, p in files.items() if not _is_same(p, written[n], there[n])]:
        raise IntegrityError(
            "The commit holds something else than what was sent.",
            evidence={"commit": page},
            details=other,
            meaning="The Hub's storage does not hold it, or it changed here while it was sent.",
            hint="undo the commit on its page, and push again.",
        )
    return Pushed(repo=repo, url=page, commit=done.oid, pull_request=create_pr, files=sizes(files))


def _created(api: "HfApi", repo: str, revision: str | None, *, private: bool) -> str:
    """The repository with its owner, created with its branch if it is not there."""
    repo = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
    # What was asked for when creating a repository does not change one that was there.
    if private and not api.model_info(repo).private:
        raise UploadError(
            f"{repo} exists already, and is public.",
            hint="leave out --private, or make it private on its page.",
        )
    if revision not in (None, "main") and not str(revision).startswith("refs/"):
        api.create_branch(repo, branch=str(revision), exist_ok=True)
    return repo


@contextmanager
def _upload_errors(repo: str, revision: str | None, *, proposed: bool) -> Iterator[None]:
    """Turn whatever the Hub's client raises inside into an error that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except (VitConvertError, errors.HfHubHTTPError) as error:
        if isinstance(error, VitConvertError):
            raise
        raise _refused(repo, revision, error) from error
    except errors.HFValidationError as error:
        raise UploadError(
            f"{repo} cannot be the name of a Hub repository.",
            hint="letters, digits, '-', '_' and '.', as in ORG/REPO",
        ) from error
    except ValueError as error:
        # The client's own checks, such as of the card's metadata, which the Hub validates.
        raise UploadError(
            f"The Hub does not take this as a commit to {repo}.",
            details=[line for line in str(error).splitlines() if line.strip()],
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
            raise  # of this disk
        raise UploadError(
            f"The upload to {repo} was interrupted.",
            evidence={"cause": f"{type(error).__name__}: {error}"},
            hint="look whether the pull request is there: a second run opens another."
            if proposed
            else "run again: finished files are not sent twice.",
        ) from error


def _refused(repo: str, revision: str | None, error: "HfHubHTTPError") -> UploadError:
    from huggingface_hub import errors

    code = error.response.status_code
    evidence: dict[str, object] = {"answer": f"{code} {error.response.reason_phrase}"}
    if error.server_message:
        evidence["reason"] = error.server_message
    hint: str | None
    if isinstance(error, errors.RevisionNotFoundError):
        fact, hint = f"{repo} has no revision {revision}.", None
    elif isinstance(error, errors.RepositoryNotFoundError):
        fact = f"The Hub has no model repository {repo} that this token may write to."
        hint = "a data set or space of the same name is another repository."
    elif code == HTTPStatus.UNAUTHORIZED:
        fact = "The Hub does not know this token."
        hint = "https://huggingface.co/settings/tokens lists yours."
    elif code == HTTPStatus.FORBIDDEN:
        fact = f"This token may not write to {repo}."
        hint = "it needs the right to write; --create-pr proposes the files instead."
    else:
        fact = f"The Hub rejected the upload to {repo}."
        hint = "run again later: finished files are not sent twice."
    return UploadError(fact, evidence=evidence, hint=hint)


def _is_same(path: Path, written: str, there: "RepoFile | RepoFolder") -> bool:
    """Whether the Hub holds the bytes that were hashed before they were sent.

    It has the sha256 of what its storage keeps, and git's hash of what the commit itself held.
    """
    if (lfs := getattr(there, "lfs", None)) is not None:
        return bool(lfs.sha256 == written)
    return getattr(there, "blob_id", None) == git_blob_hash(path) and hash_file(path) == written


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[None]:
    """Show no bars of the Hub's client within the block, if `quiet`; others' choices stay."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    # The environment variable, where it is set, has the last word in the client.
    free = constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    hide = quiet and free and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            enable_progress_bars()


def sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """Bytes of each file."""
    return {name: path.stat().st_size for name, path in files.items()}
