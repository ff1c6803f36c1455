"""The vision encoder of a large repository, without the rest of it: headers first, then its bytes.

A safetensors file states in its header where each tensor lies, and the Hub sends any range of a
file. So each file of the repository becomes a file of the same size here, with its header and the
wanted tensors in their places, and holes elsewhere, which take no room on the disk. It is opened
like any other; `Located.fetched` states which tensors are there, and reading checks that.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vitconvert.errors import AmbiguousDialect, VitConvertError
from vitconvert.file_formats import LONGEST_SAFETENSORS_HEADER
from vitconvert.formats import Container, open_container
from vitconvert.sources.located import DownloadOptions, Fetched
from vitconvert.tables.parts import FoundViT, Header
from vitconvert.tables.towers import find_part

if TYPE_CHECKING:
    from huggingface_hub import HfFileSystem

WORTHWHILE = 64 * 2**20  # bytes of weights; a smaller file arrives as soon as its header alone
_MOST = 0.8  # of all bytes: an encoder that is nearly everything is better had with the file's hash
_PIECE = 2**26  # bytes of a range that are in memory at a time
_START = 2**16  # bytes that are asked for first; most headers are shorter
_DRAFT = "part-"  # what names of unfinished folders begin with
_HEADERS = "headers"  # the folder of headers alone


class NoRanges(Exception):
    """The server sends whole files only."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """Files of one commit of the Hub, any range of which can be read.

    Attributes:
        repo, commit: The repository, and its commit.
        sizes: Name of each file -> its bytes.
        token: For private and gated repositories.
    """

    repo: str
    commit: str
    sizes: Mapping[str, int]
    token: str | None = field(repr=False)

    @cached_property
    def _files(self) -> "HfFileSystem":
        from huggingface_hub import HfFileSystem

        return HfFileSystem(token=self.token, skip_instance_cache=True)

    def copy_range(self, name: str, to: IO[bytes], start: int, end: int) -> None:
        """Write a range of a file to the same place of a file here.

        Raises:
            NoRanges: The server sends whole files only.
        """
        path = f"{self.repo}@{self.commit}/{name}"
        to.seek(start)
        with self._files.open(path, "rb", cache_type="none") as file:
            file.seek(start)
            while start < end:
                data = file.read(min(_PIECE, end - start))
                if len(data) != min(_PIECE, end - start):
                    raise NoRanges
                to.write(data)
                start += len(data)


def fetch_part(
    remote: Remote,
    weights: str,
    index: Path | None,
    config: Mapping[str, object],
    fetching: DownloadOptions,
    store: Path,
) -> tuple[Path, Fetched] | None:
    """Fetch the headers of a repository's files, and the tensors of its vision encoder.

    Args:
        remote: The files of weights.
        weights: The name of the one to open, which may be an index of them.
        index: That index, if it is one.
        config: The repository's `config.json`.
        fetching: With `tower` and `headers_only`.
        store: A folder for parts of this commit.

    Returns:
        What to open, and what was fetched; None if the whole is to be read.

    Raises:
        AmbiguousDialect: There are several towers: it is asked before anything large is moved.
    """
    total = sum(remote.sizes.values())
    if not all(name.endswith(".safetensors") for name in remote.sizes):
        return None
    if total < WORTHWHILE and not fetching.headers_only:
        return None
    if found := kept_part(weights, config, fetching, store):
        return found
    store.mkdir(parents=True, exist_ok=True)
    with suppress(NoRanges), tempfile.TemporaryDirectory(dir=store, prefix=_DRAFT) as draft:
        folder = Path(draft)
        moved = sum(_fetch_header(remote, name, folder / name) for name in remote.sizes)
        if index is not None:
            (folder / weights).write_bytes(index.read_bytes())
        tower, place = None, store / _HEADERS
        if not fetching.headers_only:
            with open_container(folder / weights) as container:
                if (part := _worthwhile_tower(container, config, fetching.tower)) is None:
                    return None
                tower, place = part.tower.prefix, _place_of(part, store)
                moved += _fetch_tensors(container, part.names.values(), remote, folder)
        if not place.is_dir():
            with suppress(OSError):  # another process was first
                folder.rename(place)
                folder.mkdir()  # for the context that removes it
        return place / weights, Fetched(tower=tower, moved=moved, total=total)
    return None


def kept_part(
    weights: str, config: Mapping[str, object], fetching: DownloadOptions, store: Path
) -> tuple[Path, Fetched] | None:
    """The part that `fetch_part` would fetch, if it is in the store: no server is asked.

    Raises:
        AmbiguousDialect: There are several encoders.
    """
    finished = (path for path in sorted(store.glob("*")) if not path.name.startswith(_DRAFT))
    folders = [folder for folder in finished if (folder / weights).is_file()]
    if not folders:
        return None
    tower, place = None, folders[0]
    with open_container(place / weights) as container:
        total = sum(file.stat().st_size for file in container.files)
        if not fetching.headers_only:
            if (part := _worthwhile_tower(container, config, fetching.tower)) is None:
                return None
            tower, place = part.tower.prefix, _place_of(part, store)
    return (
        (place / weights, Fetched(tower=tower, moved=0, total=total)) if place in folders else None
    )


def _place_of(part: FoundViT, store: Path) -> Path:
    return store / hashlib.sha256(part.tower.prefix.encode()).hexdigest()[:16]


def _fetch_header(remote: Remote, name: str, path: Path) -> int:
    """Make a file with a published file's header and nothing else; the bytes that were moved."""
    size = remote.sizes[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w+b") as file:
        first = min(_START, size)
        remote.copy_range(name, file, 0, first)
        file.seek(0)
        length = 8 + int.from_bytes(file.read(8), "little")
        if first < length <= min(size, 8 + LONGEST_SAFETENSORS_HEADER):
            remote.copy_range(name, file, first, length)
        length = min(length, size)
        file.truncate(length)  # what follows may be another tensor's
        file.truncate(size)
    return max(first, length)


def _worthwhile_tower(
    container: Container, config: Mapping[str, object], tower: str | None
) -> FoundViT | None:
    """The vision encoder of files whose headers are there, if taking it alone is worthwhile."""
    shapes = {name: info.shape for name, info in container.manifest.items()}
    try:
        part = find_part(Header(shapes=shapes, config=config), tower)
    except AmbiguousDialect:
        raise
    except VitConvertError:
        return None  # reading the files, which knows the user's table, raises it again
    wanted = sum(container.manifest[name].nbytes for name in part.names.values())
    total = sum(info.nbytes for info in container.manifest.values())
    return part if part.tower.prefix and wanted <= _MOST * total else None


def _fetch_tensors(container: Container, names: Iterable[str], remote: Remote, folder: Path) -> int:
    """Fill in the bytes of tensors; the bytes that were moved.

    Args:
        container: Files of which the headers are there.
        names: The tensors.
        remote: The same files, whole.
        folder: Where they are here.
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
                remote.copy_range(path.relative_to(folder).as_posix(), file, start, end)
    return sum(end - start for of_file in runs.values() for start, end in of_file)
