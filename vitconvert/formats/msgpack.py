"""msgpack: trees of arrays, as Flax writes them (`flax_model.msgpack`, `checkpoint_0`).

A tree is a map of text to maps or leaves; names of tensors are the keys on the way to them, joined
by "/". The heads of values are read here: the msgpack package reads the elements of an array along
with its head (0.2 s and all of the memory for a ViT-B). Elements are mapped when they are needed.
The package writes the heads, and proves what was written.

Format: https://github.com/msgpack/msgpack/blob/master/spec.md; arrays: flax 0.12,
`flax/serialization.py`: an extension whose data are msgpack again, (shape, dtype, elements in
row-major order), and arrays of more than 2^30 bytes in chunks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from vitconvert.errors import CorruptFile, UsageError
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    TensorInfo,
    mapped_container,
    weights_branch,
)
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import ALONE, Array, Surroundings, Untyped, imported
from vitconvert.formats.headers import AGAIN, check_size, checked_dtype, checked_shape, corrupt
from vitconvert.whole import SequentialWriter, whole_file

if TYPE_CHECKING:
    import torch

READER = "msgpack.unpackb"
EXAMPLE = """\
from pathlib import Path

from flax.serialization import msgpack_restore

params = msgpack_restore(Path("flax_model.msgpack").read_bytes())"""

_WEIGHTS = "params"  # of flax.core variables, flax.training.TrainState and big_vision
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # flax.serialization._MsgpackExtType
_CHUNKED = "__msgpack_chunked_array__"
_CHUNK = 2**30  # bytes; a larger array is written in chunks of it (flax.serialization)
_DEEPEST = 64  # maps within maps
_MOST_VALUES = 1_000_000  # a ViT has hundreds; each takes some hundred bytes of memory
_LONGEST_TEXT = 10_000  # bytes of a key, or of text that is kept
_CONSTANTS = (None, False, True)
# First byte of a value -> its kind, the struct of the length or number that follows, and the length
# or number if nothing follows.
_HEADS: Mapping[int, tuple[str, str, int]] = {
    **{number: ("number", "", number) for number in range(0x80)},
    **{0x80 + length: ("map", "", length) for length in range(16)},
    **{0x90 + length: ("list", "", length) for length in range(16)},
    **{0xA0 + length: ("text", "", length) for length in range(32)},
    **{first: ("constant", "", index) for index, first in enumerate((0xC0, 0xC2, 0xC3))},
    **{0xC4 + index: ("bytes", code, 0) for index, code in enumerate("BHI")},
    **{0xC7 + index: ("extension", code, 0) for index, code in enumerate("BHI")},
    **{0xCA + index: ("number", code, 0) for index, code in enumerate("fdBHIQbhiq")},
    **{0xD4 + index: ("extension", "", 1 << index) for index in range(5)},
    **{0xD9 + index: ("text", code, 0) for index, code in enumerate("BHI")},
    **{0xDC + index: ("list", code, 0) for index, code in enumerate("HI")},
    **{0xDE + index: ("map", code, 0) for index, code in enumerate("HI")},
    **{0x100 + number: ("number", "", number) for number in range(-32, 0)},
}
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """An array: its dtype and shape, and where its elements begin in the file."""

    info: TensorInfo
    offset: int


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """What a file holds, by the path of its keys; large arrays are in several parts."""

    arrays: dict[str, _Leaf] = field(default_factory=dict)
    chunked: dict[str, tuple[TensorInfo, list[_Leaf]]] = field(default_factory=dict)
    others: dict[str, object] = field(default_factory=dict)


def open_file(path: Path, _members: object, prefer: tuple[str, ...], *_: object) -> Container:
    """Read the tree of a msgpack file, and map the elements of its arrays.

    Args:
        path: The file.
        prefer: Keys of branches to try before "params".

    Raises:
        CorruptFile: The file is truncated or contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        tree = _Reader(path, file, size).tree()
    _join_chunks(path, tree)

    def read(mapped: MappedFile, name: str) -> torch.Tensor:
        if leaf := tree.arrays.get(name):
            return mapped.tensor(leaf.offset, leaf.info)
        import torch

        info, parts = tree.chunked[name]
        return torch.cat([mapped.tensor(part.offset, part.info) for part in parts]).view(info.shape)

    manifest = {name: leaf.info for name, leaf in tree.arrays.items()}
    manifest |= {name: info for name, (info, _) in tree.chunked.items()}
    begins = {name: leaf.offset for name, leaf in tree.arrays.items()}
    whole = mapped_container(path, "msgpack", manifest, begins, size=size, read=read)
    places = [name.split("/") for name in manifest]
    wrapper, beside = weights_branch(places, (*prefer, _WEIGHTS), _DEEPEST)
    begin = "".join(f"{key}/" for key in wrapper)
    names = {name.removeprefix(begin): name for name in manifest if name.startswith(begin)}
    counted = {name: f"{count} arrays" for name, count in beside.items()}
    return replace(whole.renamed(names), wrapper=wrapper, extras={**tree.others, **counted})


def _join_chunks(path: Path, tree: _Tree) -> None:
    """Take the parts of chunked arrays out of a tree, and give each array as one."""
    marks = [name for name in tree.others if name.rpartition("/")[2] == _CHUNKED]
    for name in (mark.rpartition("/")[0] for mark in marks):
        begin = f"{name}/" if name else ""
        del tree.others[begin + _CHUNKED]
        full = checked_shape(path, name[:80], _numbered(tree.others, f"{begin}shape/"))
        parts = _numbered(tree.arrays, f"{begin}chunks/")
        dtypes = {part.info.dtype for part in parts}
        shapes = [part.info.shape for part in parts]
        flat = all(len(shape) == 1 for shape in shapes)
        if len(dtypes) != 1 or not flat or sum(map(prod, shapes)) != prod(full):
            fact = f"The parts of {name[:80]!r} do not make up the array that they are of."
            raise corrupt(path, fact, shape=list(full), parts=len(parts))
        tree.chunked[name] = (TensorInfo(dtype=dtypes.pop(), shape=full), parts)


def _numbered(found: dict[str, _T], begin: str) -> list[_T]:
    """Take `begin/0`, `begin/1` and so on out of a dict."""
    values: list[_T] = []
    while (name := f"{begin}{len(values)}") in found:
        values.append(found.pop(name))
    return values


class _Reader:
    """Reads a file from its beginning to its end, but for the elements of arrays."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._values = 0

    def tree(self) -> _Tree:
        """All of the file.

        Raises:
            CorruptFile: It is no tree of arrays.
        """
        tree = _Tree()
        self._value(tree, ())
        if left := self._size - self._file.tell():
            raise self._corrupt(f"{left:,} bytes follow the tree.")
        return tree

    def _checked_end(self, length: int) -> int:
        """Where the next bytes end, if the file has so many."""
        if (end := self._file.tell() + length) > self._size:
            found = f"{self._size:,} bytes"
            raise corrupt(self._path, "The file is truncated.", hint=AGAIN, found=found)
        return end

    def _bytes(self, length: int) -> bytes:
        self._checked_end(length)
        return self._file.read(length)

    def _head(self) -> tuple[str, int]:
        """The kind of the next value, and its length; of a number, the number itself."""
        if (first := self._bytes(1)[0]) not in _HEADS:
            raise self._corrupt("This is no msgpack.")
        kind, code, number = _HEADS[first]
        if code:
            (number,) = struct.unpack(f">{code}", self._bytes(struct.calcsize(f">{code}")))
        return kind, number

    def _text(self, length: int) -> str:
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError as error:
            raise self._corrupt("A text of the tree is not valid Unicode.") from error

    def _value(self, tree: _Tree, keys: tuple[str, ...]) -> None:
        self._values += 1
        if self._values > _MOST_VALUES or len(keys) > _DEEPEST:
            raise self._corrupt("The tree has more values, or is deeper, than any checkpoint's.")
        kind, number = self._head()
        if kind == "map":
            seen = set[str]()
            for _ in range(number):
                of_key, length = self._head()
                if of_key != "text":
                    raise self._corrupt("A key of the tree is not text.")
                self._checked_end(length)
                if length > _LONGEST_TEXT:
                    raise self._corrupt("A key of the tree is longer than any name.")
                if (key := self._text(length)) in seen:
                    raise self._corrupt(f"{key[:80]!r} stands in a map more than once.")
                seen.add(key)
                self._value(tree, (*keys, key))
            return
        if kind == "list":
            for index in range(number):
                self._value(tree, (*keys, str(index)))
            return
        name = "/".join(keys)
        if name in tree.arrays or name in tree.others:
            raise self._corrupt(f"{name[:80]!r} stands in the tree more than once.")
        if kind == "extension":
            self._extension(tree, name, number)
        elif kind == "text" and number <= _LONGEST_TEXT:
            tree.others[name] = self._text(number)
        elif kind in ("text", "bytes"):
            self._file.seek(self._checked_end(number))
            tree.others[name] = kind
        else:
            tree.others[name] = number if kind == "number" else _CONSTANTS[number]

    def _extension(self, tree: _Tree, name: str, length: int) -> None:
        """An array or a number of numpy; complex numbers are only named."""
        code = self._bytes(1)[0]
        end = self._checked_end(length)
        if code == _COMPLEX:
            tree.others[name] = "a complex number"
        elif code in (_ARRAY, _SCALAR):
            leaf = tree.arrays[name] = self._leaf(name)
            if leaf.offset + leaf.info.nbytes != end:
                raise self._corrupt(f"{name[:80]!r} does not have the length of its header.")
        else:
            raise self._corrupt(f"{name[:80]!r} is an extension that Flax does not write.")
        self._file.seek(end)

    def _leaf(self, name: str) -> _Leaf:
        """The header of an array: its shape, its dtype and the length of its elements."""
        parts = self._head()
        kind, axes = self._head()
        if parts != ("list", 3) or kind != "list" or axes > _DEEPEST:
            raise self._corrupt(f"{name[:80]!r} is not a shape, a dtype and elements.")
        shape = [self._short() for _ in range(axes)]
        dtype = checked_dtype(self._path, name, self._short(), ITEM_SIZE)
        info = TensorInfo(dtype=dtype, shape=checked_shape(self._path, name[:80], shape))
        kind, length = self._head()
        if kind != "bytes":
            raise self._corrupt(f"{name[:80]!r} is not a shape, a dtype and elements.")
        check_size(self._path, name, info, length)
        return _Leaf(info=info, offset=self._file.tell())

    def _short(self) -> object:
        """An axis, or the name of a dtype."""
        kind, number = self._head()
        if kind == "number":
            return number
        if kind not in ("text", "bytes") or number > _LONGEST_TEXT:
            raise self._corrupt("An array has a header that Flax does not write.")
        return self._bytes(number).decode(errors="replace")

    def _corrupt(self, fact: str) -> CorruptFile:
        return corrupt(self._path, fact, before=f"byte {self._file.tell():,}")


_Branch = dict[str, "Content | _Branch"]


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    _surroundings: Surroundings = ALONE,
    read_soon: bool = True,
) -> str:
    """Write tensors as the tree that their names spell, as `flax.serialization.to_bytes` does.

    Returns:
        The sha256 of the file.

    Raises:
        MissingPackage: msgpack is not installed.
        UsageError: A name that is a branch of the tree too, or a dtype that Flax has no word for.
    """
    contents = checked_contents(tensors, list(ITEM_SIZE), "msgpack")
    tree: _Branch = {}
    for name in sorted(contents):  # a name before those that begin with it
        *branches, leaf = name.split("/")
        place = tree
        for branch in branches:
            inner = place.setdefault(branch, {})
            if isinstance(inner, Content):
                raise UsageError(
                    "A tensor has a name that msgpack cannot hold: a part of it names another "
                    "tensor.",
                    evidence={"name": ascii(name)[:80]},
                )
            place = inner
        place[leaf] = contents[name]
    packer = imported("msgpack", "msgpack", path).Packer()
    with whole_file(path, read_soon=read_soon) as file:
        _write_branch(file, packer, tree)
    return file.sha256


def _write_branch(file: SequentialWriter, packer: Untyped, tree: _Branch) -> None:
    file.write(packer.pack_map_header(len(tree)))
    for key, value in tree.items():
        file.write(packer.pack(key))
        if not isinstance(value, Content):
            _write_branch(file, packer, value)
        elif value.info.nbytes <= _CHUNK:
            file.write(_array_header(packer, value.info))
            for chunk in value.chunks(file.room):
                file.write(chunk)
        else:
            _write_chunked(file, packer, value)


def _write_chunked(file: SequentialWriter, packer: Untyped, content: Content) -> None:
    """A map of the shape, and of one-dimensional arrays that follow one another."""
    info = content.info
    shape = {str(axis): length for axis, length in enumerate(info.shape)}
    file.write(packer.pack_map_header(3) + packer.pack(_CHUNKED) + packer.pack(True))
    file.write(packer.pack("shape") + packer.pack(shape) + packer.pack("chunks"))
    most = _CHUNK // ITEM_SIZE[info.dtype]
    lengths = [min(most, prod(info.shape) - at) for at in range(0, prod(info.shape), most)]
    file.write(packer.pack_map_header(len(lengths)))
    heads = iter(
        (packer.pack(str(number)), TensorInfo(dtype=info.dtype, shape=(length,)))
        for number, length in enumerate(lengths)
    )
    left = 0
    for chunk in content.chunks(file.room):
        rest = chunk
        while rest:
            if not left:
                key, part = next(heads)
                file.write(key + _array_header(packer, part))
                left = part.nbytes
            file.write(rest[:left])
            left, rest = left - len(rest[:left]), rest[left:]


def _array_header(packer: Untyped, info: TensorInfo) -> bytes:
    """All of an array but its elements, with which alone the package writes it."""
    inside: bytes = packer.pack_array_header(3) + packer.pack(info.shape) + packer.pack(info.dtype)
    inside += _sized(0xC4, info.nbytes)
    return _sized(0xC7, len(inside) + info.nbytes) + bytes([_ARRAY]) + inside


def _sized(first: int, number: int) -> bytes:
    """The shortest head of bytes or an extension; of 1 to 16 bytes, extensions have others."""
    for index, width in enumerate((1, 2, 4)):
        if number < 256**width:
            return bytes([first + index]) + number.to_bytes(width, "big")
    raise UsageError("A tensor is larger than a msgpack file can hold.")


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with the msgpack package, which Flax itself uses."""
    package = imported("msgpack", "msgpack", path)

    def unpacked(data: bytes) -> Untyped:
        return package.unpackb(
            data,
            ext_hook=lambda code, inner: unpacked(inner) if code == _ARRAY else inner,
            max_bin_len=2**32 - 1,
            max_ext_len=2**32 - 1,
        )

    yield from _arrays(unpacked(path.read_bytes()), ())


def _arrays(tree: Untyped, keys: tuple[str, ...]) -> Iterator[Array]:
    if isinstance(tree, list):
        shape, _, data = tree
        yield "/".join(keys), tuple(shape), data
    elif _CHUNKED in tree:
        parts = (tree["chunks"][str(index)][2] for index in range(len(tree["chunks"])))
        shape = tuple(tree["shape"][str(axis)] for axis in range(len(tree["shape"])))
        yield "/".join(keys), shape, b"".join(parts)
    else:
        for key, branch in tree.items():
            yield from _arrays(branch, (*keys, key))
