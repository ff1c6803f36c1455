"""Which files of a directory vitconvert wrote, by the record that it leaves in each output."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from vitconvert.sources.located import COMPANIONS, OWN

RECORD = OWN
_BESIDE = frozenset((*COMPANIONS, "README.md"))
_MOST = 1 << 26  # bytes of a record: those of models with thousands of tensors have a million


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
    """What a record says, or nothing of what is none, however large or deep."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST:
            return {}
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
