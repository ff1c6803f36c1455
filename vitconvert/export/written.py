"""Which files of a directory vitconvert wrote, by the record that it leaves in each output."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, SourceError
from vitconvert.sources.located import CONFIGS, OWN, PREPROCESSORS

RECORD = OWN
_BESIDE = frozenset((*CONFIGS, PREPROCESSORS[0], OWN, "README.md"))


def somebodys(directory: Path) -> list[str]:
    """Names in a directory of what vitconvert did not write there.

    Names decide: a file that is listed in the record counts as written, also if it was edited
    since, because hashing gigabytes of weights again would take as long as converting them. A
    directory or a link of a listed name does not, but a directory of listed files does.
    """
    # The record is read first: another process that removes this output removes it last.
    return sorted(_others(directory, written_in(directory)))


def _others(directory: Path, written: frozenset[str], within: str = "") -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name, folder = within + entry.name, f"{within}{entry.name}/"
            if entry.is_dir(follow_symlinks=False) and any(w.startswith(folder) for w in written):
                yield from _others(directory / entry.name, written, folder)
            elif name not in written or not entry.is_file(follow_symlinks=False):
                yield name


def files_of(directory: Path) -> list[str]:
    """The paths in a directory of all its files, with slashes."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in found)


def written_in(directory: Path) -> frozenset[str]:
    """The names that the record of an output lists; none if there is no record that does.

    Earlier versions listed only the weights; beside them lie the other files of every output.
    """
    record = _read_record(directory / RECORD)
    match record:
        case {"files": list(files)} if files and all(isinstance(name, str) for name in files):
            return frozenset((*files, RECORD))
        case {"vitconvert": str(), "sha256": dict(weights)} if weights and "files" not in record:
            return frozenset(weights) | _BESIDE
        case _:
            return frozenset()


def _read_record(path: Path) -> dict[str, Any]:
    """What a record says, or nothing of what is none; a link is none."""
    try:
        return {} if path.is_symlink() else read_object(path)
    except (CorruptFile, SourceError):
        return {}
