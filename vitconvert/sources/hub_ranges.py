"""The image tower of a large repository, without the rest of it: headers first, then its bytes.

A safetensors file says in its header where each tensor lies, and the Hub sends any range of a file.
So each file of the repository becomes a file of the same size here, with its header and the tensors
that are wanted in their places, and holes elsewhere, which take no room on the disk. It is opened
like any other; `Located.fetched` says which tensors are there, and reading checks that.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vitconvert.errors import AmbiguousDialect, SourceError, VitConvertError
from vitconvert.file_formats import LONGEST_SAFETENSORS_HEADER
from vitconvert.formats import Container, open_container
from vitconvert.sources.answers import read_range, shown
from vitconvert.sources.located import Fetched
from vitconvert.sources.transfer import Wanted
from vitconvert.sources.transport import get, transport_errors
from vitconvert.tables.parts import Header, Part
from vitconvert.tables.towers import find_part

if TYPE_CHECKING:
    from httpx2 import Response

WORTHWHILE = 64 * 2**20  # bytes of weights; a smaller file arrives as soon as its header alone
_MOST = 0.8  # of all bytes: a tower that is nearly everything is better had with the file's hash
_START = 2**16  # bytes that are asked for first; most headers are shorter
_ATTEMPTS = 3
_DRAFT = "part-"  # what names of unfinished folders begin with


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked for of a repository: a tower by its prefix, or headers and nothing else."""

    tower: str | None = None
    headers_only: bool = False


class NoRanges(Exception):
    """The server sends whole files only."""


def fetch_part(
    files: Mapping[str, Wanted],
    weights: str,
    index: Path | None,
    config: Mapping[str, Any],
    asked: Asked,
    store: Path,
) -> tuple[Path, Fetched] | None:
    """Fetch the headers of a repository's files, and the tensors of its tower.

    Args:
        files: Name of each safetensors file -> where it is; sizes are known.
        weights: The name of the one to open, which may be an index of them.
        index: That index, if it is one.
        config: The repository's `config.json`.
        asked: What is wanted.
        store: A folder for parts of this commit.

    Returns:
        What to open, and what was fetched; None if the whole is to be read.

    Raises:
        NoRanges: The server sends whole files only.
        AmbiguousDialect: There are several towers: it is asked before anything large is moved.
        SourceError: The server refuses, or sends something else than was asked for.
    """
    total = sum(wanted.size or 0 for wanted in files.values())
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=_DRAFT) as draft:
        folder = Path(draft)
        moved = fetch_headers(files, folder)
        if index is not None:
            (folder / weights).write_bytes(index.read_bytes())
        if asked.headers_only:
            return _kept(folder, store / "headers", weights), Fetched(
                tower=None, moved=moved, total=total
            )
        with open_container(folder / weights) as container:
            part = find_tower(container, config, asked.tower)
            if part is None:
                return None
            kept = store / _name_of(part)
            places = {folder / name: wanted for name, wanted in files.items()}
            moved += fetch_tensors(container, part.names.values(), places)
        fetched = Fetched(tower=part.tower.prefix, moved=moved, total=total)
        return _kept(folder, kept, weights), fetched


def kept_part(
    weights: str, config: Mapping[str, Any], asked: Asked, store: Path
) -> tuple[Path, Fetched] | None:
    """What `fetch_part` would fetch, where it was fetched before: no server is asked.

    Raises:
        AmbiguousDialect: There are several towers.
    """
    finished = (path for path in sorted(store.glob("*")) if not path.name.startswith(_DRAFT))
    folders = [folder for folder in finished if (folder / weights).is_file()]
    if not folders:
        return None
    with open_container(folders[0] / weights) as container:
        total = sum(file.stat().st_size for file in container.files)
        if asked.headers_only:
            return folders[0] / weights, Fetched(tower=None, moved=0, total=total)
        part = find_tower(container, config, asked.tower)
    if part is None or (kept := store / _name_of(part)) not in folders:
        return None
    return kept / weights, Fetched(tower=part.tower.prefix, moved=0, total=total)


def _name_of(part: Part) -> str:
    return hashlib.sha256(part.tower.prefix.encode()).hexdigest()[:16]


def _kept(draft: Path, place: Path, weights: str) -> Path:
    """Give what was fetched its name, unless it is there already."""
    if not place.is_dir():
        with suppress(OSError):  # another process was first
            draft.rename(place)
            draft.mkdir()  # for the context that removes it
    return place / weights


def fetch_headers(files: Mapping[str, Wanted], folder: Path) -> int:
    """Make a file of each, with its header and nothing else; the bytes that were moved.

    Args:
        files: Name of each safetensors file of the repository -> where it is; sizes are known.
        folder: Where to put them.

    Raises:
        NoRanges: The server sends whole files only.
        SourceError: It refuses, or sends something else than was asked for.
    """
    moved = 0
    for name, wanted in files.items():
        assert wanted.size is not None
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            first = min(_START, wanted.size)
            _fetch(wanted, file, 0, first)
            file.seek(0)
        with path.open("r+b") as file:
            length = 8 + int.from_bytes(file.read(8), "little")
            if first < length <= min(wanted.size, 8 + LONGEST_SAFETENSORS_HEADER):
                _fetch(wanted, file, first, length)
            moved += max(first, min(length, wanted.size))
            file.truncate(min(length, wanted.size))  # what follows may be another tensor's
            file.truncate(wanted.size)
    return moved


def find_tower(container: Container, config: Mapping[str, Any], tower: str | None) -> Part | None:
    """The image tower in files of which the headers are there, if taking it alone is worthwhile.

    Raises:
        AmbiguousDialect: There are several: it is asked before anything large is moved.
    """
    shapes = {name: info.shape for name, info in container.manifest.items()}
    try:
        part = find_part(Header(shapes=shapes, config=config), tower)
    except AmbiguousDialect:
        raise
    except VitConvertError:
        return None  # said when the files are read, by those who know the user's table
    wanted = sum(container.manifest[name].nbytes for name in part.names.values())
    total = sum(info.nbytes for info in container.manifest.values())
    return part if part.tower.prefix and wanted <= _MOST * total else None


def fetch_tensors(container: Container, names: Iterable[str], files: Mapping[Path, Wanted]) -> int:
    """Fill in the bytes of tensors; the bytes that were moved.

    Args:
        container: Files of which the headers are there.
        names: The tensors.
        files: Each file -> where it is published.
    """
    runs: dict[Path, list[list[int]]] = {}
    places = ((container.places[name], container.manifest[name].nbytes) for name in names)
    for place, nbytes in sorted(places, key=lambda item: (str(item[0].path), item[0].offset)):
        of_file = runs.setdefault(place.path, [])
        if of_file and of_file[-1][1] == place.offset:
            of_file[-1][1] += nbytes  # one request for neighbours
        else:
            of_file.append([place.offset, place.offset + nbytes])
    for path, of_file in runs.items():
        with path.open("r+b") as file:
            for start, end in of_file:
                _fetch(files[path], file, start, end)
    return sum(end - start for of_file in runs.values() for start, end in of_file)


def _fetch(wanted: Wanted, file: IO[bytes], start: int, end: int) -> None:
    """Write a range of a published file to the same place of a file here."""
    for _ in range(_ATTEMPTS):
        with suppress(*transport_errors()):
            file.seek(start)
            with get(wanted.url, {**wanted.headers, "Range": f"bytes={start}-{end - 1}"}) as answer:
                _check(wanted, answer, start, end)
                if _copy(answer, file, end - start):
                    return
    raise SourceError(
        f"A part of {wanted.name} does not arrive.",
        evidence={"address": wanted.url, "bytes": f"{start}-{end - 1}", "attempts": _ATTEMPTS},
        hint="run again.",
    )


def _copy(answer: "Response", file: IO[bytes], size: int) -> bool:
    """Write what arrives; whether it was all. The rest of a file that is sent whole is not read."""
    received = 0
    for chunk in answer.iter_raw():
        received += len(chunk)
        file.write(chunk[: max(0, size - (received - len(chunk)))])
        if received > size:
            return answer.status_code == HTTPStatus.OK
    return received == size


def _check(wanted: Wanted, answer: "Response", start: int, end: int) -> None:
    headers = answer.headers
    if answer.status_code == HTTPStatus.OK:
        if start:
            raise NoRanges
        if headers.get("Content-Length", str(wanted.size)) != str(wanted.size):
            raise _another(wanted, "Content-Length", str(wanted.size), headers)
    elif answer.status_code == HTTPStatus.PARTIAL_CONTENT:
        found = read_range(headers.get("Content-Range", ""))
        if found is None or (found.start, found.end, found.total) != (start, end, wanted.size):
            raise _another(wanted, "Content-Range", f"{start}-{end - 1}/{wanted.size}", headers)
    else:
        raise wanted.refuse(answer)
    if headers.get("Content-Encoding", "identity") != "identity":
        raise _another(wanted, "Content-Encoding", "identity", headers)
    etag = headers.get("ETag", "").removeprefix("W/").strip('"')
    if len(etag) == len(wanted.hash) and etag != wanted.hash:  # the Hub's ETags are these hashes
        raise _another(wanted, "ETag", wanted.hash, headers)
    wanted.etags.update({etag} - {""})
    if len(wanted.etags) > 1:  # of one file, and of another that came in its place
        raise _another(wanted, "ETag", " and ".join(sorted(wanted.etags - {etag})), headers)


def _another(wanted: Wanted, field: str, expected: str, headers: Mapping[str, str]) -> SourceError:
    return SourceError(
        f"What the server sends of {wanted.name} is not what was asked for.",
        evidence={
            "address": wanted.url,
            "field": field,
            "expected": expected,
            "found": shown(headers.get(field, "none")),
        },
        hint="run again; if it repeats, the server or a proxy alters the file.",
    )
