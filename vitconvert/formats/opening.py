"""From a path to an open container: the first bytes of a file say what it is, not its suffix.

A format that is read is an entry of `vitconvert/file_formats.py`. Others are named here, with what
to do about them; when one becomes readable, its line moves there.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vitconvert import file_formats as formats
from vitconvert.errors import CorruptFile, SourceError, nearest
from vitconvert.formats.container import Container
from vitconvert.formats.format_modules import RescuedFormat, module_of
from vitconvert.formats.process_files import PARTS, open_processes
from vitconvert.formats.shards import open_shards

if TYPE_CHECKING:
    from vitconvert.file_formats import Format
    from vitconvert.formats.zip_archive import Member

_ZIP = (b"PK\3\4", b"PK\5\6")  # an archive, and one without members

# First bytes, what they mean, and what to do about it.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the weights", "run `git lfs pull`."),
    (b"lmgg", "an old ggml file", "convert the checkpoint that it was made from."),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first."),
    (b"BZh", "compressed with bzip2", "unpack it first."),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it first."),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first."),
    (
        b"\x93NUMPY",
        "a single .npy array without a name",
        "save named arrays with numpy.savez.",
    ),
)


def open_container(path: Path, *, prefer: tuple[str, ...] = (), rescue: bool = False) -> Container:
    """Open a checkpoint and read its header, whatever its suffix says.

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
    if _is_index(start):
        return open_shards(path, partial(_open_shard, prefer=prefer, rescue=rescue))
    container = _open_file(path, start, prefer, rescue)
    if PARTS not in container.metadata:
        return container
    return open_processes(container, partial(_open_shard, prefer=prefer, rescue=rescue))


def _open_shard(path: Path, *, prefer: tuple[str, ...], rescue: bool) -> Container:
    start = _first_bytes(path)
    if _is_index(start):
        raise CorruptFile("An index names another index.", evidence={"file": path})
    return _open_file(path, start, prefer, rescue)


def _open_file(path: Path, start: bytes, prefer: tuple[str, ...], rescue: bool) -> Container:
    if path.suffix == ".distcp":
        raise _part(path)
    members: Mapping[str, Member] = {}
    if start.startswith(_ZIP):
        # Late: modules for zip archives take a quarter of the time of all other imports.
        from vitconvert.formats.zip_archive import zip_members

        members = zip_members(path)
        form = _format_of_archive(path, members)
    else:
        form = _format_of(path, start)
    module = module_of(form)
    if rescue and hasattr(module, "rescue_file"):
        return cast(RescuedFormat, module).rescue_file(path, members, prefer)
    return module.open_file(path, members, prefer)


def _part(path: Path) -> SourceError:
    return SourceError(
        "This is a part of a distributed checkpoint: what one process wrote of the tensors.",
        evidence={"file": path},
        hint=f"name its directory, {path.parent}, with all parts and .metadata in it.",
    )


def _is_index(start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and not any(form.begins(start) for form in formats.FORMATS)


def _format_of(path: Path, start: bytes) -> Format:
    for form in formats.FORMATS:
        if form.begins(start):
            return form
    raise _foreign(path, start)


def _format_of_archive(path: Path, members: Collection[str]) -> Format:
    for form in formats.FORMATS:
        if form.holds(members):
            return form
    raise CorruptFile(
        "This is a zip archive, but it holds no weights in a known format.",
        evidence={"file": path, "members": ", ".join(list(members)[:5]) or "none"},
        hint="if it is a zipped checkpoint, unpack it first.",
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
                hint="save its content to a file first: tensors are read where they lie.",
            )
        with path.open("rb") as file:
            start = file.read(512)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except ValueError as error:
        raise SourceError(
            "No file can have this name.", evidence={"name": ascii(str(path))}
        ) from error
    except OSError as error:
        raise SourceError(
            "The file cannot be read.", evidence={"file": path, "reason": error.strerror}
        ) from error
    if not start:
        raise CorruptFile("The file is empty.", evidence={"file": path}, hint="download it again.")
    return start


def _missing(path: Path) -> SourceError:
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, sorted(siblings), 3)
    return SourceError(
        "There is no such file.",
        evidence={"file": path},
        hint=f"nearest names there: {', '.join(near)}." if near else None,
    )


def _foreign(path: Path, start: bytes) -> CorruptFile:
    what, hint = _look(start)
    return CorruptFile(
        f"This is {what}." if what else "The file has no known format.",
        evidence={"file": path, "begins": start[:16].hex(" ")},
        hint=hint or f"{formats.in_words()} are read.",
    )


def _look(start: bytes) -> tuple[str | None, str | None]:
    """What a file in a format that is not read looks like, and what to do about it."""
    for magic, what, hint in _FOREIGN:
        if start.startswith(magic):
            return what, hint
    if start.lstrip()[:1] == b"<":
        return "an HTML or XML page", "the download gave a web page; check its address."
    if start[257:262] == b"ustar":
        return "a tar archive", "unpack it first."
    if start[:1] == b"\x08" and (b"pytorch" in start[:64] or b"onnx" in start[:64]):
        return "an ONNX graph", "convert the checkpoint that it was exported from."
    return None, None
