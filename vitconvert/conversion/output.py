"""Outputs that are directories: where one may be written, and what vitconvert wrote in one.

An output lists its files and their hashes in a record. Only what a record lists is ever replaced or
removed.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from vitconvert.atomic_write import atomic_directory, require_possible
from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile, OutputExists, SourceError, UsageError
from vitconvert.formats import hash_file
from vitconvert.sources.located import RECORD

_MANY = 10  # at most so many names are listed


def check_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a directory may be written here.

    A link is followed: its target is written, or replaced.

    Raises:
        OutputExists: Something is there that vitconvert did not write, or an earlier output is,
            and `overwrite` is false.
        UsageError: No directory can be here, or it would replace the current or the home
            directory.
    """
    require_possible(path)
    real = Path(os.path.realpath(path))  # Path.resolve fails for circular links
    try:
        os.fsencode(real).decode()  # by its bytes, whatever the locale takes them for
    except UnicodeError:
        raise UsageError(
            "The path of the output is not valid UTF-8, and programs could not load it.",
            evidence={"output": real},
            hint="-o names another.",
        ) from None
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home fails for a user without one)
    for needed in (Path.cwd(), home):
        if needed.resolve().is_relative_to(real):
            raise UsageError(
                "The output would replace the current directory or your home directory.",
                evidence={"output": real, "in it": needed},
                hint="-o names a new directory.",
            )
    if path.is_symlink() and not path.exists():
        raise UsageError(
            "The output is a link to something that does not exist.",
            evidence={"output": path, "leads to": path.readlink()},
            hint="create the directory that it leads to, or name another with -o.",
        )
    if path.exists() and not path.is_dir():
        raise UsageError("The output must be a directory.", evidence={"output": path})
    if path.is_dir():
        if names := somebodys(path):
            more = [f"and {len(names) - _MANY} more"] if len(names) > _MANY else []
            raise OutputExists(
                f"{path} contains what vitconvert did not write, or not so; it is not replaced.",
                details=[*names[:_MANY], *more],
                hint="move it elsewhere, or name another directory with -o.",
            )
        if any(path.iterdir()) and not overwrite:
            raise OutputExists(
                f"{path} already exists, and is not empty.",
                hint="--force (in Python, overwrite=True) replaces it; -o names another directory.",
            )


def check_source(path: Path, sources: Iterable[Path]) -> None:
    """Make sure that an output does not replace its own source.

    Args:
        path: The output.
        sources: Every file that is read, and the path where they were searched.

    Raises:
        UsageError: A source is in the directory that the output would replace, or is the same file
            as one in it: through a link, a hard link or another name of a directory.
    """
    if not path.is_dir():
        return

    def identities(paths: Iterable[Path]) -> set[tuple[int, int]]:
        # Device and inode, which are the same under every name and through links.
        found = (one.stat() for one in paths if one.exists())
        return {(status.st_dev, status.st_ino) for status in found}

    taken = identities([path, *path.iterdir()])
    for source in sources:
        places = (source, *source.absolute().parents, *source.resolve().parents)
        if taken & identities(places):
            raise UsageError(
                "The output would replace its own source.",
                evidence={"source": source, "output": path},
                hint="-o names another directory.",
            )


def atomic_output(path: Path, *, overwrite: bool) -> AbstractContextManager[Path]:
    """A temporary directory that replaces `path` if the block succeeds; see `atomic_directory`.

    Raises:
        OutputExists: As for `check_output`, before or meanwhile.
        UsageError: No directory can be made beside `path`.
    """
    return atomic_directory(path, partial(check_output, overwrite=overwrite))


def somebodys(directory: Path) -> list[str]:
    """Names in a directory of what vitconvert did not write there, or not as it is now.

    A file is vitconvert's if its content has the sha256 that the record states: a name alone may be
    anybody's, and whoever states the hash of a file has had it. So a file that was edited since is
    its editor's. A directory or a link of a listed name is not vitconvert's, but a directory of
    listed files is.
    """
    return sorted(_others(directory, written_in(directory)))


def _others(directory: Path, written: Mapping[str, str], within: str = "") -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name, folder = within + entry.name, f"{within}{entry.name}/"
            if entry.is_dir(follow_symlinks=False) and any(w.startswith(folder) for w in written):
                yield from _others(directory / entry.name, written, folder)
            elif (
                name not in written
                or not entry.is_file(follow_symlinks=False)
                or (name != RECORD and hash_file(Path(entry.path)) != written[name])
            ):
                yield name


def files_of(directory: Path) -> list[str]:
    """The paths in a directory of all its files, with slashes."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in found)


def written_in(directory: Path) -> Mapping[str, str]:
    """The files that the record of an output lists, and the sha256 of each but its own.

    There are none if there is no record, or one that states no hashes.
    """
    path, record = directory / RECORD, {}
    with suppress(CorruptFile, SourceError):
        record = {} if path.is_symlink() else read_object(path)  # a link is no record
    match record.get("sha256"):
        case dict(hashes) if hashes and all(isinstance(text, str) for text in hashes.values()):
            return {**hashes, RECORD: ""}
        case _:
            return {}
