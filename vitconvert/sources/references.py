"""The language of references: text to one of five frozen kinds, without touching the network.

    reference = path | "local-dir:" path | "timm:" NAME ["." TAG] | hub | named | "https://" ...
    hub       = ["hf-hub:" | "hf:" | "hf://"] ORG "/" REPO ["@" REVISION] ["/" (FILE | FOLDER)]
    named     = COLLECTION ":" NAME                    the collections of weights_map/downloads.toml
              | NAME                                   that only one of them, or timm alone, has

The prefixes are those of timm (`hf-hub:`, `local-dir:`) and of huggingface_hub (`hf://`). A web
address of a Hub page means the repository. What exists on disk is a path before all else.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PureWindowsPath
from urllib.parse import unquote

from vitconvert.errors import SourceError, nearest, printable, without_secrets
from vitconvert.file_formats import suffixes
from vitconvert.formats import has_weights
from vitconvert.sources.located import newest_checkpoint
from vitconvert.toml_files import read_tables

_SCHEMES = ("timm", "hf-hub", "hf", "local-dir", "https")
_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
# The hub's own URIs put the revision after the repository; `refs/pr/1` is the one revision
# with slashes (huggingface_hub 2.4, utils/_hf_uris.py).
_HUB = re.compile(
    rf"(?P<repo>{_ID}/{_ID})(?:@(?P<revision>refs/[^/]+/[^/]+|[^/]+))?(?:/(?P<file>.+))?"
)
_HUB_PAGE = re.compile(
    rf"https://(?:huggingface\.co|hf\.co)/(?P<repo>{_ID}/{_ID})"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>refs/[^/]+/[^/]+|[^/?#]+)(?:/(?P<file>[^?#]+))?)?"
    r"/?(?:[?#].*)?"
)
# A reference that is no path, unless something here is called like that.
_NO_PATH = re.compile(
    r"(?!local-dir:|file:)[A-Za-z][A-Za-z0-9+-]+:.*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@.+)?",
    re.DOTALL,
)
_LONGEST_REPO = 96 + 1 + 96
_CALLED = {"jax": "google"}  # as `--to` calls what Google's JAX code reads
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+-]+):(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class LocalPath:
    """A file or a directory that exists."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class TimmName:
    """A model that timm knows, with or without the tag of its weights."""

    name: str


@dataclass(frozen=True, kw_only=True)
class HubRepo:
    """A repository of the Hugging Face Hub, or one file or folder of it."""

    repo: str
    revision: str | None
    file: str | None


@dataclass(frozen=True, kw_only=True)
class NamedDownload:
    """A checkpoint whose fixed address `weights_map/downloads.toml` states."""

    collection: str
    name: str


@dataclass(frozen=True, kw_only=True)
class WebAddress:
    """A file behind an https address."""

    url: str


Reference = LocalPath | TimmName | HubRepo | NamedDownload | WebAddress


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Files under one base address, of `weights_map/downloads.toml`.

    Attributes:
        base: The beginning of every address.
        files: Name to the rest of the address.
        sha256_in_name: A file's name ends in the first digits of its sha256, torch.hub's habit.
    """

    base: str
    files: Mapping[str, str]
    sha256_in_name: bool


@cache
def collections() -> Mapping[str, Collection]:
    """Every collection, by the prefix of its references."""
    return {
        prefix: Collection(
            base=table["base"],
            files=table["files"],
            sha256_in_name=table.get("sha256_in_name", False),
        )
        for prefix, table in read_tables("downloads").items()
    }


def address(prefix: str, name: str) -> str:
    """The address of a name.

    Raises:
        SourceError: The collection has no such name. Names the nearest.
    """
    collection = collections()[prefix]
    if name in collection.files:
        return collection.base + collection.files[name]
    lowered = {known.lower(): known for known in collection.files}
    near = nearest(name.lower(), lowered, 3)
    raise SourceError(
        f"{prefix}: has no checkpoint {name}.",
        hint=f"did you mean {' or '.join(f'{prefix}:{lowered[match]}' for match in near)}?"
        if near
        else f"one of {', '.join(collection.files)}",
    )


def publishes_sha256_in_name(url: str) -> bool:
    """Whether an address belongs to a collection whose file names hold hashes."""
    return any(c.sha256_in_name and url.startswith(c.base) for c in collections().values())


def parse_reference(text: str) -> Reference:
    """The meaning of a reference.

    Raises:
        SourceError: It means nothing, or a path that does not exist. Names the nearest.
    """
    path = Path(os.path.expanduser(text))  # noqa: PTH111 (never an error)
    if text and os.path.exists(path):  # noqa: PTH110 (no error for a name that is too long)
        if path.is_dir() and _may_be_repo(text) and not has_weights(newest_checkpoint(path)[0]):
            import logging  # late: it takes as long to import as all of this package's sources

            logger = logging.getLogger(__name__)
            logger.warning("%s is a path here; write hf:%s for the Hub repository", text, text)
        return LocalPath(path=path)
    if (match := _SCHEME.fullmatch(text)) is not None:
        scheme = match["scheme"].lower()
        return _with_scheme(text, _CALLED.get(scheme, scheme), match["rest"])
    if not looks_like_path(text) and (match := _HUB.fullmatch(text)):
        return _hub(match)
    known = _of_that_name(text)
    if len(known) > 1:
        ways = " or ".join(f"{prefix}:{text}" for prefix in known)
        raise SourceError(f"Several libraries have a model {text}.", hint=f"write {ways}.")
    if known:
        return next(iter(known.values()))
    raise _nothing_there(text, path)


def _of_that_name(name: str) -> dict[str, TimmName | NamedDownload]:
    """What a name without a prefix may mean, by the prefix that would say so."""
    from vitconvert.tables.architectures import named  # late: most references are paths

    found: dict[str, TimmName | NamedDownload] = {
        prefix: NamedDownload(collection=prefix, name=name)
        for prefix, collection in collections().items()
        if name in collection.files
    }
    if name.split(".")[0] in named("timm"):
        found["timm"] = TimmName(name=name)
    return found


def _with_scheme(text: str, scheme: str, rest: str) -> Reference:
    match scheme:
        case "timm" if rest:
            return TimmName(name=rest)
        case "local-dir":
            path = Path(os.path.expanduser(rest))  # noqa: PTH111
            if os.path.exists(path):  # noqa: PTH110
                return LocalPath(path=path)
            raise _nothing_there(rest, path)
        case "https" | "http":
            page = _HUB_PAGE.fullmatch(text)
            return _hub(page) if page else WebAddress(url=text)
        case "hf" | "hf-hub":
            plain = rest.removeprefix("//").removeprefix("models/")
            if (hub := _HUB.fullmatch(plain)) is not None:
                return _hub(hub)
            raise SourceError(
                f"{text} names no Hub repository.", hint="write hf:ORG/REPO, or hf:ORG/REPO/FILE"
            )
    if scheme in collections() and rest:
        return NamedDownload(collection=scheme, name=rest)
    known = (*_SCHEMES, *collections())
    near = nearest(scheme, known)
    raise SourceError(
        f"{text} is neither a path that exists nor a reference of a known kind.",
        evidence={"kinds": ", ".join(f"{kind}:" for kind in known)},
        hint=f"did you mean {near[0]}:{rest or 'NAME'}?" if near else None,
    )


def _hub(match: re.Match[str]) -> HubRepo:
    revision, file = (unquote(match[part] or "") or None for part in ("revision", "file"))
    return HubRepo(repo=match["repo"], revision=revision, file=file)


def _may_be_repo(text: str) -> bool:
    """Whether the Hub could have this repository (huggingface_hub 2.4, `_validators.py`)."""
    match = _HUB.fullmatch(text)
    if match is None or match["file"]:
        return False
    odd = re.search(r"[^\w.@/-]|--|\.\.|[-.](/|$)|\.(git|ipynb)$", match["repo"], re.ASCII)
    return odd is None and len(match["repo"]) <= _LONGEST_REPO


def looks_like_path(text: str) -> bool:
    """Whether a text means a path, whether or not something is there."""
    # ORG/REPO never begins like these, and no repository is named like a file of weights;
    # ORG/REPO/model.safetensors is a path unless it has hf: in front. .json: an index
    if text.startswith(("/", "./", "../", "~")) or text.endswith((*suffixes(), ".json")):
        return True
    return "\\" in text or bool(PureWindowsPath(text).drive)


def _nothing_there(text: str, path: Path) -> SourceError:
    if not text:
        return SourceError("The reference is empty.", hint="give a path, timm:NAME or hf:ORG/REPO.")
    if os.path.islink(path):  # noqa: PTH114
        return SourceError(
            f"{text} is a link to what is not there.",
            evidence={"link": path, "leads to": path.readlink()},
            hint="in a cache of downloads, the download was not finished: get it again.",
        )
    siblings = [p.name for p in path.parent.iterdir()] if os.path.isdir(path.parent) else []  # noqa: PTH112
    if near := nearest(path.name, siblings, 3):
        hint = f"did you mean {' or '.join(str(path.parent / name) for name in near)}?"
    elif "/" in text or looks_like_path(text):
        hint = "give the path of a file or directory, or hf:ORG/REPO for the Hub."
    else:
        from vitconvert.tables.architectures import named  # late, as in `_of_that_name`

        near = nearest(text, named("timm"), 3)
        hint = (
            f"did you mean {' or '.join(f'timm:{name}' for name in near)}?"
            if near
            else f"timm:{text} for a timm model, hf:ORG/REPO for the Hub."
        )
    return SourceError(f"There is no file or directory {text}.", hint=hint)


def published(reference: str) -> str:
    """A reference as anybody may read it.

    Of a path the last name remains, which tells nothing of this machine, and of an address what is
    no secret. No name steers a terminal, or holds what cannot be written as text.
    """
    is_here = os.path.lexists(os.path.expanduser(reference))  # noqa: PTH111 (never an error)
    if _NO_PATH.fullmatch(reference) and not is_here:
        return printable(without_secrets(reference))
    kind = "local-dir:" if reference.startswith("local-dir:") else ""
    name = re.split(r"[/\\]", reference.rstrip("/\\"))[-1].removeprefix(kind)
    return kind + printable(name)
