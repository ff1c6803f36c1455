"""The header of a msgpack file: everything in it but the elements of arrays, which are skipped.

The `msgpack` package cannot skip them: it would read all of the file into memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    Stretch,
    TensorInfo,
    row_major,
)
from vitconvert.formats.headers import SequentialReader, checked_shape, shown

if TYPE_CHECKING:
    import torch

# flax.serialization._MsgpackExtType: ndarray, native_complex, npscalar
ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
CHUNKED = "__msgpack_chunked_array__"
_DTYPES = frozenset(ITEM_SIZE)  # numpy and ml_dtypes call them as torch does
_DEEPEST = 64  # maps within maps
_MOST_VALUES = 1_000_000  # a ViT has hundreds; each takes some hundred bytes of memory
_LONGEST_TEXT = 10_000  # bytes of a key, or of text that is kept


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """An array: what it is, and where its elements begin in the file."""

    info: TensorInfo
    offset: int


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """What a file holds, by the path of its keys."""

    arrays: dict[str, _Leaf] = field(default_factory=dict)
    others: dict[str, object] = field(default_factory=dict)


def read_header(path: Path) -> Container:
    """Read the tree of a file, and map the elements of its arrays.

    Raises:
        CorruptFile: The file is truncated or contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        tree = _Reader(path, file, size).tree()
    chunks = dict(_chunked(path, tree))
    mapped = MappedFile(path, size)
    manifest = {name: leaf.info for name, leaf in tree.arrays.items()}
    manifest |= {name: array.info for name, array in chunks.items()}
    return Container(
        path=path,
        files=(path,),
        format="msgpack",
        manifest=manifest,
        extras=tree.others,
        places={
            name: Stretch(path=path, offset=leaf.offset, strides=row_major(leaf.info.shape))
            for name, leaf in tree.arrays.items()
        },
        reader=lambda name: (
            chunks[name].read(mapped)
            if name in chunks
            else mapped.tensor(tree.arrays[name].offset, tree.arrays[name].info)
        ),
        release=mapped.close,
    )


@dataclass(frozen=True, kw_only=True)
class _Chunks:
    """A large array, in parts that follow one another."""

    info: TensorInfo
    parts: tuple[_Leaf, ...]

    def read(self, mapped: MappedFile) -> torch.Tensor:
        import torch

        parts = [mapped.tensor(part.offset, part.info) for part in self.parts]
        return torch.cat(parts).view(self.info.shape)


def _chunked(path: Path, tree: _Tree) -> Iterator[tuple[str, _Chunks]]:
    """Take the parts of chunked arrays out of a tree, and give each array as one."""
    marks = [name for name in tree.others if name.rpartition("/")[2] == CHUNKED]
    for name in (mark.rpartition("/")[0] for mark in marks):
        begin = f"{name}/" if name else ""
        del tree.others[begin + CHUNKED]
        full = checked_shape(path, name[:80], _numbered(tree.others, f"{begin}shape/"))
        parts: list[_Leaf] = _numbered(tree.arrays, f"{begin}chunks/")
        dtypes = {part.info.dtype for part in parts}
        shapes = [part.info.shape for part in parts]
        flat = all(len(shape) == 1 for shape in shapes)
        if len(dtypes) != 1 or not flat or sum(map(prod, shapes)) != prod(full):
            raise CorruptFile(
                f"The parts of {name[:80]!r} do not make up the array that they are of.",
                evidence={"file": path, "shape": list(full), "parts": len(parts)},
            )
        yield name, _Chunks(info=TensorInfo(dtype=dtypes.pop(), shape=full), parts=tuple(parts))


def _numbered(found: dict[str, Any], begin: str) -> list[Any]:
    """Take `begin/0`, `begin/1` and so on out of a dict."""
    values: list[Any] = []
    while (name := f"{begin}{len(values)}") in found:
        values.append(found.pop(name))
    return values


class _Reader(SequentialReader):
    """Reads a file from its beginning to its end, but for the elements of arrays."""

    def tree(self) -> _Tree:
        """All of the file.

        Raises:
            CorruptFile: It is no tree of arrays.
        """
        tree = _Tree()
        self._value(tree, ())
        if self.file.tell() != self.size:
            left = self.size - self.file.tell()
            raise self.corrupt(f"{left:,} bytes follow the tree.")
        return tree

    def _value(self, tree: _Tree, keys: tuple[str, ...]) -> None:
        kind, number = self._head()
        self.values += 1
        if self.values > _MOST_VALUES or len(keys) > _DEEPEST:
            raise self.corrupt("The tree has more values, or is deeper, than any checkpoint's.")
        if kind == "map":
            seen = set[str]()
            for _ in range(number):
                if (key := self._key()) in seen:
                    raise self.corrupt(f"{key[:80]!r} stands in a map more than once.")
                seen.add(key)
                self._value(tree, (*keys, key))
        elif kind == "array":
            for index in range(number):
                self._value(tree, (*keys, str(index)))
        elif kind == "ext":
            self._extension(tree, self._name(tree, keys), number)
        else:
            tree.others[self._name(tree, keys)] = self._plain(kind, number)

    def _name(self, tree: _Tree, keys: tuple[str, ...]) -> str:
        name = "/".join(keys)
        if name in tree.arrays or name in tree.others:
            raise self.corrupt(f"{name[:80]!r} stands in the tree more than once.")
        return name

    def _key(self) -> str:
        kind, number = self._head()
        if kind != "str":
            raise self.corrupt("A key of the tree is not text.")
        return self._text(number)

    def _plain(self, kind: str, number: int) -> object:
        """A leaf that is no array, as far as it is short."""
        if kind == "str" and number <= _LONGEST_TEXT:
            return self._text(number)
        if kind in ("str", "bin"):
            self.skip(number)
            return "text" if kind == "str" else "bytes"
        if kind == "float":
            return struct.unpack(">f" if number == 4 else ">d", self.bytes(number))[0]
        return {"nil": None, "bool": bool(number)}.get(kind, number)

    def _extension(self, tree: _Tree, name: str, length: int) -> None:
        """An array or a number of numpy; complex numbers are only named."""
        code = self.bytes(1)[0]
        end = self.file.tell() + length
        if code == _COMPLEX:
            self.skip(length)
            tree.others[name] = "a complex number"
            return
        if code not in (ARRAY, _SCALAR):
            raise self.corrupt(f"{name[:80]!r} is an extension that Flax does not write.")
        leaf = self._leaf(name)
        self.skip(leaf.info.nbytes)
        if self.file.tell() != end:
            raise self.corrupt(f"{name[:80]!r} is not as long as it is said to be.")
        tree.arrays[name] = leaf

    def _leaf(self, name: str) -> _Leaf:
        """The header of an array: its shape, its dtype and the length of its elements."""
        kind, count = self._head()
        if (kind, count) != ("array", 3):
            raise self.corrupt(f"{name[:80]!r} is not a shape, a dtype and elements.")
        kind, axes = self._head()
        lengths = [self._head() for _ in range(axes)] if axes <= _DEEPEST else []
        if kind != "array" or any(kind != "int" for kind, _ in lengths) or len(lengths) < axes:
            raise self.corrupt(f"{name[:80]!r} has no shape.")
        shape = [length for _, length in lengths]
        kind, number = self._head()
        dtype = self._text(number) if kind in ("str", "bin") else ""
        if dtype not in _DTYPES:
            raise CorruptFile(
                f"{name[:80]!r} has a dtype that is not read here.",
                evidence={"file": self.path, "dtype": shown(dtype), "known": " ".join(ITEM_SIZE)},
            )
        info = TensorInfo(dtype=dtype, shape=checked_shape(self.path, name[:80], shape))
        kind, number = self._head()
        if kind != "bin" or number != info.nbytes:
            raise CorruptFile(
                f"{name[:80]!r} does not have the size that its shape says.",
                evidence={
                    "file": self.path,
                    "shape": list(info.shape),
                    "needs": f"{info.nbytes:,} bytes",
                    "found": f"{number:,} bytes" if kind == "bin" else f"a {kind}",
                },
            )
        return _Leaf(info=info, offset=self.file.tell())

    def _head(self) -> tuple[str, int]:
        """What comes next, and its length; of a whole number, and of a truth value, itself."""
        first = self.bytes(1)[0]
        if first <= 0x7F:
            return "int", first
        if first >= 0xE0:
            return "int", first - 256
        for begin, end, kind in ((0x80, 0x8F, "map"), (0x90, 0x9F, "array"), (0xA0, 0xBF, "str")):
            if begin <= first <= end:
                return kind, first - begin
        if 0xD4 <= first <= 0xD8:
            return "ext", 2 ** (first - 0xD4)
        if first not in _HEADS:
            raise self.corrupt("This is no msgpack.")
        kind, form = _HEADS[first]
        if isinstance(form, int):
            return kind, form
        return kind, struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def _text(self, length: int) -> str:
        if length > _LONGEST_TEXT:
            raise self.corrupt("A key of the tree is longer than any name.")
        try:
            return self.bytes(length).decode()
        except UnicodeDecodeError:
            raise self.corrupt("A key of the tree is not valid Unicode.") from None


# First byte -> what it begins, and how its length follows, or the length (or the value) itself.
_HEADS: Mapping[int, tuple[str, str | int]] = {
    0xC0: ("nil", 0),
    0xC2: ("bool", 0),
    0xC3: ("bool", 1),
    0xC4: ("bin", ">B"),
    0xC5: ("bin", ">H"),
    0xC6: ("bin", ">I"),
    0xC7: ("ext", ">B"),
    0xC8: ("ext", ">H"),
    0xC9: ("ext", ">I"),
    0xCA: ("float", 4),
    0xCB: ("float", 8),
    0xCC: ("int", ">B"),
    0xCD: ("int", ">H"),
    0xCE: ("int", ">I"),
    0xCF: ("int", ">Q"),
    0xD0: ("int", ">b"),
    0xD1: ("int", ">h"),
    0xD2: ("int", ">i"),
    0xD3: ("int", ">q"),
    0xD9: ("str", ">B"),
    0xDA: ("str", ">H"),
    0xDB: ("str", ">I"),
    0xDC: ("array", ">H"),
    0xDD: ("array", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}
