"""Archives with other members, pickles by their opcodes, and what sings when it is run."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path


class Canary:
    """An object that touches a file when somebody unpickles it."""

    def __init__(self, path: Path, *state: object) -> None:
        self.path, self.state = path, state

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,), *self.state)


def rewritten(
    path: Path,
    how: int = zipfile.ZIP_STORED,
    change: Callable[[dict[str, bytes]], dict[str, bytes]] = dict,
    *,
    aligned: bool = False,
) -> None:
    """Write an archive again: compressed in another way, with other members, and not aligned."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in change(members).items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = how
            if aligned:  # as torch writes it
                padding = -(archive.fp.tell() + 34 + len(name)) % 64
                entry.extra = b"\xff\xff" + padding.to_bytes(2, "little") + bytes(padding)
            archive.writestr(entry, data)


def text(word: bytes) -> bytes:
    """A text in a pickle."""
    return b"X" + struct.pack("<I", len(word)) + word


def number(value: int) -> bytes:
    """A whole number in a pickle."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def tensor(
    shape: tuple[int, ...] = (4,),
    strides: tuple[int, ...] = (1,),
    offset: int = 0,
    length: int = 4,
    key: bytes = b"0",
    kind: bytes = b"FloatStorage",
    more: bytes = b"",
) -> bytes:
    """A tensor, in the opcodes that torch.save writes; legacy files have `more` in its storage."""
    sizes, steps = (b"(" + b"".join(map(number, axes)) + b"t" for axes in (shape, strides))
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") + b"ctorch\n" + kind + b"\n"
        + text(key) + text(b"cpu") + number(length) + more + b"tQ" + number(offset)
        + sizes + steps + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip
