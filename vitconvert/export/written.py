"""Which files of a directory vitconvert wrote, by the record that it leaves in each output."""

import os
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
    directory or a link of a listed name does not.
    """
    # The record is read first: another process that removes this output removes it last.
    written = written_in(directory)
    with os.scandir(directory) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name not in written or not entry.is_file(follow_symlinks=False)
        )


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
