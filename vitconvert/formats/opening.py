"""From a path to an open container: the weights of a directory, and the format of a file.

The first bytes of a file say what it is, not its suffix. A format that is read is an entry of
`vitconvert/file_formats.py`. Others are named here, with what to do about them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert import file_formats
from vitconvert.errors import CorruptFile, SourceError, nearest
from vitconvert.file_formats import (
    DISTRIBUTED,
    GATHER,
    INDEX,
    directory_names,
    in_words,
    of_directory,
    standard_names,
    suffixes,
)
from vitconvert.formats.container import Container
from vitconvert.formats.format_modules import module_of
from vitconvert.formats.headers import AGAIN, corrupt
from vitconvert.formats.shards import open_shards

if TYPE_CHECKING:
    from vitconvert.formats.zip_archive import Member

_SHARD = re.compile(r"-\d+-of-\d+\.")
# What training programs leave beside the weights.
_NOT_WEIGHTS = re.compile(
    r"(training_args\.bin|optimizer\.|scheduler\.|scaler\.|rng_state|.*_optim_states\.pt)"
)
_ZIP = (b"PK\3\4", b"PK\5\6")  # an archive, and one without members
# What torch.distributed.checkpoint writes (torch/distributed/checkpoint/filesystem.py and
# hf_storage.py, torch 2.0 to 2.15): a pickle of its own class, and a key in safetensors' metadata.
_DCP_CLASS = b"torch.distributed.checkpoint.metadata"
_DCP_KEY = "DCP_SHARDING_INFO"
_OF_PROCESS = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors")

# First bytes, what they mean, and what to do about it.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the weights", "run `git lfs pull`."),
    (b"lmgg", "an old ggml file", "convert the checkpoint that it was made from."),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first."),
    (b"BZh", "compressed with bzip2", "unpack it first."),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it first."),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first."),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "unpack it first: `lz4 -dc FILE | tar -x`."),
)


_ONNX_WRITERS = (b"pytorch", b"onnx", b"vitconvert")
_EXPORTED = (
    "give the checkpoint that it was exported from; for a file of `vitconvert export`, "
    "`vitconvert predict FILE IMAGES` computes classes; no other command reads it."
)


def weights_among(names: Collection[str]) -> list[str]:
    """The weights among the files of one folder, by their names alone.

    Several files with standard names are the same weights in several formats, and so are files
    whose names differ in the suffix alone: of those, the best format counts.

    Returns:
        One name, of the weights or of the index of their shards. Or none, or several of which
        none is better than another.
    """
    for name in standard_names():
        if name in names:
            return [name]
    if of_directory(names) or any(name.endswith(DISTRIBUTED) for name in names):
        return []
    known = _known_suffixes()
    found = sorted(n for n in names if n.endswith(known) and not _NOT_WEIGHTS.match(n))
    towers: list[str] = []
    if all(name.endswith(".gguf") for name in found):  # llama.cpp's vision encoders, beside texts'
        towers = [name for name in found if "mmproj" in name.lower()]
    meant = [name for name in found if name.endswith(INDEX)] or towers or found
    if len({name.removesuffix(_suffix(name)) for name in meant}) == 1:
        return [min(meant, key=lambda name: known.index(_suffix(name)))]
    return found


def checkpoints_below(folder: Path) -> Iterator[Path]:
    """The checkpoints in a folder and in the folders below it, by the names of files alone.

    Hidden folders are left out.

    Returns:
        A directory that has one, or each file of a directory that has several; last, directories
        that cannot be listed, so that whoever opens them says so.
    """
    unread: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=unread.append):
        whole = of_directory(names)
        folders[:] = [] if whole else sorted(name for name in folders if name[0] != ".")
        found = weights_among(names)
        if whole or len(found) == 1:
            yield Path(place)
        else:
            yield from (Path(place, name) for name in found)
    yield from (Path(error.filename) for error in unread)


def has_weights(directory: Path) -> bool:
    """Whether this is a directory with files of weights, or is one as a whole."""
    if not directory.is_dir():
        return False
    names = {path.name for path in directory.iterdir() if path.is_file()}
    return bool(weights_among(names) or of_directory(names))


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
    if any(name.endswith(DISTRIBUTED) for name in names):
        raise _distributed(directory)
    if not found:
        listed = sorted(
            path.name if path.exists() else f"{path.name}, a broken link"
            for path in directory.iterdir()
        )
        ends = (*suffixes(), *directory_names())
        inside = {path.parent.name for path in directory.glob("*/*") if path.name.endswith(ends)}
        some = ", ".join(sorted(inside)[:5])
        raise SourceError(
            "The directory holds no weights file.",
            evidence={"directory": directory, "looked for": " ".join(f"*{s}" for s in suffixes())},
            details=[f"found {name}" for name in listed[:10]],
            hint=f"name a folder that holds some: {some}." if some else None,
        )
    if all(map(_OF_PROCESS.fullmatch, found)):
        raise _of_processes(directory / found[0])
    fact = f"The directory holds {len(found)} weights files, none with a standard name."
    hint = "name one of them."
    if all(map(_SHARD.search, found)):
        fact = "The directory holds shards of a checkpoint, but no index that says what is in them."
        hint = "download the file that ends in .index.json, too."
    raise SourceError(fact, evidence={"directory": directory}, details=found[:10], hint=hint)


def _known_suffixes() -> tuple[str, ...]:
    return (*suffixes(), *(suffix + INDEX for suffix in suffixes()))


def _suffix(name: str) -> str:
    """The longest known suffix that a name ends in."""
    return max((suffix for suffix in _known_suffixes() if name.endswith(suffix)), key=len)


def open_container(path: Path, *, prefer: tuple[str, ...] = (), rescue: bool = False) -> Container:
    """Open a checkpoint and read its header, whatever its suffix is.

    Every format of `vitconvert/file_formats.py` is read, and the index of a sharded checkpoint.
    Nothing in the file is executed, and no more memory is taken than the size of the file
    justifies. Only unusual torch checkpoints need torch here, such as those of the legacy format.

    Args:
        path: The file.
        prefer: Wrapper keys of a torch checkpoint to try before the usual ones; for instance
            `("state_dict",)` for the plain weights where averaged ones lie beside them.
        rescue: Of whole objects that a torch checkpoint holds, read the tensors as data.

    Raises:
        SourceError: There is no file to read at this path.
        CorruptFile: The file is truncated, contradicts itself or has another format.
        UnsafeFile: Reading it would run code or exhaust memory.
    """
    start = _first_bytes(path)
    if not _is_index(start):
        return _open_file(path, start, prefer, rescue)

    def open_shard(shard: Path) -> Container:
        start = _first_bytes(shard)
        if _is_index(start):
            raise corrupt(shard, "An index names another index.")
        return _open_file(shard, start, prefer, rescue)

    return open_shards(path, open_shard)


def _open_file(path: Path, start: bytes, prefer: tuple[str, ...], rescue: bool) -> Container:
    """Open a file that begins with these bytes, and is no index."""
    if path.suffix == DISTRIBUTED or (start[:1] == b"\x80" and _DCP_CLASS in start[:64]):
        raise _distributed(path.parent)
    members: Mapping[str, Member] = {}
    if start.startswith(_ZIP):
        # Late: modules for zip archives take a quarter of the time of all other imports.
        from vitconvert.formats.zip_archive import zip_members

        members = zip_members(path)
        form = next((form for form in file_formats.FORMATS if form.holds(members)), None)
        if form is None:
            raise corrupt(
                path,
                "This is a zip archive, but it holds no weights in a known format.",
                hint="if it is a zipped checkpoint, unpack it first.",
                members=", ".join(list(members)[:5]) or "none",
            )
    else:
        form = next((form for form in file_formats.FORMATS if form.begins(start)), None)
        if form is None:
            what, hint = _look(start)
            fact = f"This is {what}." if what else "The file has no known format."
            raise corrupt(
                path, fact, hint=hint or f"{in_words()} are read.", begins=start[:16].hex(" ")
            )
    container = module_of(form).open_file(path, members, prefer, rescue)
    if _DCP_KEY in container.metadata:
        container.close()
        raise _of_processes(path)
    return container


def _distributed(directory: Path) -> CorruptFile:
    return CorruptFile(
        "This is a distributed checkpoint: each process wrote its parts of the tensors.",
        evidence={"directory": directory},
        hint=GATHER,
    )


def _of_processes(path: Path) -> CorruptFile:
    return corrupt(
        path,
        "Each process of a training run wrote such a file, with its own part of each tensor.",
        hint="consolidate_safetensors_files in torch.distributed.checkpoint."
        "_consolidate_hf_safetensors merges them; so does HuggingFaceStorageWriter when it saves "
        "with enable_consolidation=True.",
    )


def _is_index(start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and not any(
        form.begins(start) for form in file_formats.FORMATS
    )


def _first_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise SourceError(
                "This is a directory, not a weights file.",
                evidence={"path": path},
                hint="name one file in it.",
            )
        if not stat.S_ISREG(mode):  # to open a pipe waits until somebody writes to it
            raise SourceError(
                "This is a pipe, a socket or a device, not a weights file.",
                evidence={"path": path},
                hint="save its content to a file first: tensors are read in place.",
            )
        with path.open("rb") as file:
            start = file.read(512)
    except FileNotFoundError as error:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, sorted(siblings), 3)
        hint = f"nearest names there: {', '.join(near)}." if near else None
        fact = "There is no such file."
        raise SourceError(fact, evidence={"file": path}, hint=hint) from error
    except ValueError as error:
        raise SourceError(
            "No file can have this name.", evidence={"name": ascii(str(path))}
        ) from error
    except OSError as error:
        raise SourceError(
            "The file cannot be read.", evidence={"file": path, "reason": error.strerror}
        ) from error
    if not start:
        raise corrupt(path, "The file is empty.", hint=AGAIN)
    return start


def _look(start: bytes) -> tuple[str | None, str | None]:
    """What a file in a format that is not read looks like, and what to do about it."""
    for magic, what, hint in _FOREIGN:
        if start.startswith(magic):
            return what, hint
    if start.startswith(b"<?xml") and b"<net " in start:
        return "a model of OpenVINO", _EXPORTED
    if start.lstrip()[:1] == b"<":
        return "an HTML or XML page", "the download gave a web page; check its address."
    if start[257:262] == b"ustar":
        return "a tar archive", "unpack it first."
    if start[:1] == b"\x08" and any(name in start[:64] for name in _ONNX_WRITERS):
        return "an ONNX graph", _EXPORTED
    return None, None
