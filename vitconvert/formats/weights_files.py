"""Which file of a directory, or of a repository, holds the weights."""

import re
from collections.abc import Collection
from pathlib import Path

from vitconvert.errors import SourceError
from vitconvert.file_formats import (
    INDEX,
    directory_names,
    file_of_process,
    of_directory,
    standard_names,
    suffixes,
)

_SHARD = re.compile(r"-\d+-of-\d+\.")
# What training programs leave beside the weights.
_NOT_WEIGHTS = re.compile(
    r"(training_args\.bin|optimizer\.|scheduler\.|scaler\.|rng_state|.*_optim_states\.pt)"
)


def weights_among(names: Collection[str]) -> list[str]:
    """The weights among the files of one folder, by their names alone.

    Several files with standard names are the same weights in several formats, and so are files
    whose names differ in the suffix alone: of those, the best format counts.

    Returns:
        One name, of the weights or of the index of their shards. Or none, or several of which
        nothing tells which is meant.
    """
    for name in standard_names():
        if name in names:
            return [name]
    if of_directory(names):
        return []
    known = _known_suffixes()
    found = sorted(n for n in names if n.endswith(known) and not _NOT_WEIGHTS.match(n))
    meant = [name for name in found if name.endswith(INDEX)] or _towers(found) or found
    if all(map(file_of_process, found)):
        return found[:1]  # the others are opened with it
    if len({name.removesuffix(_suffix(name)) for name in meant}) == 1:
        return [min(meant, key=lambda name: known.index(_suffix(name)))]
    return found


def _towers(names: Collection[str]) -> list[str]:
    """Of GGUF files, those of image towers, as llama.cpp tells them from those of texts."""
    only = all(name.endswith(".gguf") for name in names)
    return [name for name in names if only and "mmproj" in name.lower()]


def weights_in(directory: Path) -> Path:
    """The one weights file, index of shards or header of a whole directory.

    Raises:
        SourceError: There is no such directory, or it holds no weights file, or several without a
            standard name.
    """
    if not directory.is_dir():
        raise SourceError("There is no such directory.", evidence={"path": directory})
    names = {path.name for path in directory.iterdir() if path.is_file()}
    found = weights_among(names)
    if len(found) == 1:
        return directory / found[0]
    if form := of_directory(names):
        return directory / form.standard[0]
    raise _several(directory, found) if found else _none(directory)


def _known_suffixes() -> tuple[str, ...]:
    return (*suffixes(), *(suffix + INDEX for suffix in suffixes()))


def _suffix(name: str) -> str:
    """The longest known suffix that a name ends in."""
    return max((suffix for suffix in _known_suffixes() if name.endswith(suffix)), key=len)


def _none(directory: Path) -> SourceError:
    names = sorted(
        path.name if path.exists() else f"{path.name}, a broken link"
        for path in directory.iterdir()
    )
    ends = (*suffixes(), *directory_names())
    inside = {path.parent.name for path in directory.glob("*/*") if path.name.endswith(ends)}
    return SourceError(
        "The directory holds no weights file.",
        evidence={"directory": directory, "looked for": " ".join(f"*{s}" for s in suffixes())},
        details=[f"found {name}" for name in names[:10]],
        hint=f"name a folder that holds some: {', '.join(sorted(inside)[:5])}." if inside else None,
    )


def _several(directory: Path, found: list[str]) -> SourceError:
    if all(_SHARD.search(name) for name in found):
        return SourceError(
            "The directory holds shards of a checkpoint, but no index that says what is in them.",
            evidence={"directory": directory},
            details=found[:10],
            hint="download the file that ends in .index.json, too.",
        )
    return SourceError(
        f"The directory holds {len(found)} weights files, none with a standard name.",
        evidence={"directory": directory},
        details=found[:10],
        hint="name one of them.",
    )
