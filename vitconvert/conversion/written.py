"""Which files of a directory vitconvert wrote, by the record that it leaves in each output."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitconvert.checkpoint.unchanged import State, states_of
from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, SourceError
from vitconvert.formats import hash_file
from vitconvert.sources.located import OWN

RECORD = OWN


def somebodys(directory: Path) -> list[str]:
    """Names in a directory of what vitconvert did not write there, or not as it is now.

    A file is vitconvert's if its content has the sha256 that the record states: a name alone may be
    anybody's, and whoever states the hash of a file has had it. So a file that was edited since is
    its editor's. A directory or a link of a listed name is not vitconvert's, but a directory of
    listed files is.
    """
    place = directory.stat().st_ino
    try:
        # The record is read first: another process that removes this output removes it last.
        found = sorted(_others(directory, written_in(directory)))
    except FileNotFoundError:
        if directory.stat().st_ino == place:
            raise
        return somebodys(directory)
    # Another process may have put another output here, of which the record says nothing.
    return found if directory.stat().st_ino == place else somebodys(directory)


def _others(directory: Path, written: Mapping[str, str], within: str = "") -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name, folder = within + entry.name, f"{within}{entry.name}/"
            if entry.is_dir(follow_symlinks=False) and any(w.startswith(folder) for w in written):
                yield from _others(directory / entry.name, written, folder)
            elif (
                name not in written
                or not entry.is_file(follow_symlinks=False)
                or (name != RECORD and _sha256(Path(entry.path)) != written[name])
            ):
                yield name


_LARGE = 2**26  # bytes that take longer to write than the clock of a file system takes to go on
_hashes: dict[State, str] = {}


def _sha256(path: Path) -> str:
    """The sha256 of a file; of a large one once, as an output is looked at several times."""
    if path.stat().st_size < _LARGE:
        return hash_file(path)
    state = states_of([path])[path]
    if state not in _hashes:
        _hashes[state] = hash_file(path)
    return _hashes[state]


def files_of(directory: Path) -> list[str]:
    """The paths in a directory of all its files, with slashes."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in found)


def written_in(directory: Path) -> Mapping[str, str]:
    """The files that the record of an output lists, and the sha256 of each but its own.

    There are none if there is no record, or one that states no hashes.
    """
    record = _read_record(directory / RECORD)
    match record.get("sha256"):
        case dict(hashes) if hashes and all(isinstance(text, str) for text in hashes.values()):
            return {**hashes, RECORD: ""}
        case _:
            return {}


def _read_record(path: Path) -> dict[str, Any]:
    """What a record says, or nothing of what is none; a link is none."""
    try:
        return {} if path.is_symlink() else read_object(path)
    except (CorruptFile, SourceError):
        return {}
