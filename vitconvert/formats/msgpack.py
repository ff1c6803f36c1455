"""msgpack: trees of arrays, as Flax writes them (`flax_model.msgpack`, `checkpoint_0`).

A tree is a map of text to maps or leaves; names of tensors are the keys on the way to them, joined
by "/". The msgpack package reads and writes all but the heads of extensions and of elements: it
reads the elements of an array with it (0.2 s and all of the memory for a ViT-B), which are skipped
here, and mapped when somebody needs them.

Format: https://github.com/msgpack/msgpack/blob/master/spec.md; arrays: flax 0.12,
`flax/serialization.py`: an extension whose data are msgpack again, (shape, dtype, elements in
row-major order), and arrays of more than 2^30 bytes in chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from vitconvert.errors import CorruptFile, UsageError
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    Stretch,
    TensorInfo,
    row_major,
)
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import Array, Surroundings, imported
from vitconvert.formats.headers import checked_shape, shown
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
_READ = 512  # bytes at once; a head has less
# First bytes of maps, arrays, extensions and byte strings -> how many bytes of length follow.
_MAPS = {**dict.fromkeys(range(0x80, 0x90), 0), 0xDE: 2, 0xDF: 4}
_LISTS = {**dict.fromkeys(range(0x90, 0xA0), 0), 0xDC: 2, 0xDD: 4}
_EXTENSIONS = {**dict.fromkeys(range(0xD4, 0xD9), 0), 0xC7: 1, 0xC8: 2, 0xC9: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
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
        MissingPackage: msgpack is not installed.
        CorruptFile: The file is truncated or contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        tree = _Reader(path, file, size).tree()
    _join_chunks(path, tree)
    mapped = MappedFile(path, size)

    def read(name: str) -> torch.Tensor:
        if leaf := tree.arrays.get(name):
            return mapped.tensor(leaf.offset, leaf.info)
        import torch

        info, parts = tree.chunked[name]
        return torch.cat([mapped.tensor(part.offset, part.info) for part in parts]).view(info.shape)

    whole = Container(
        path=path,
        files=(path,),
        format="msgpack",
        manifest={name: leaf.info for name, leaf in tree.arrays.items()}
        | {name: info for name, (info, _) in tree.chunked.items()},
        extras=tree.others,
        places={
            name: Stretch(path=path, offset=leaf.offset, strides=row_major(leaf.info.shape))
            for name, leaf in tree.arrays.items()
        },
        reader=read,
        release=mapped.close,
    )
    return _branch_of_weights(whole, prefer)


def _branch_of_weights(container: Container, prefer: tuple[str, ...]) -> Container:
    """The branch of a tree that has the weights: its key as wrapper, all else as extras."""
    for key in (*prefer, _WEIGHTS):
        begin = f"{key}/"
        names = {n.removeprefix(begin): n for n in container.manifest if n.startswith(begin)}
        if names:
            rest = container.manifest.keys() - names.values()
            counts = Counter(n.partition("/")[0] for n in container.manifest if n in rest)
            counted = {other: f"{count} arrays" for other, count in counts.items()}
            branch = replace(
                container.renamed(names),
                wrapper=(*container.wrapper, key),
                extras={**container.extras, **counted},
            )
            return _branch_of_weights(branch, prefer)
    return container


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
            raise CorruptFile(
                f"The parts of {name[:80]!r} do not make up the array that they are of.",
                evidence={"file": path, "shape": list(full), "parts": len(parts)},
            )
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
        self._package = imported("msgpack", "msgpack", path)
        self._values = 0
        self._go_to(0)

    def tree(self) -> _Tree:
        """All of the file.

        Raises:
            CorruptFile: It is no tree of arrays.
        """
        tree = _Tree()
        try:
            self._value(tree, ())
        except self._package.OutOfData as error:
            raise CorruptFile(
                "The file is truncated.",
                evidence={"file": self._path, "found": f"{self._size:,} bytes"},
                hint="download it again.",
            ) from error
        except UnicodeDecodeError as error:
            raise self._corrupt("A text of the tree is not valid Unicode.") from error
        except (ValueError, self._package.UnpackException) as error:
            raise self._corrupt("This is no msgpack.") from error
        if left := self._size - self._at:
            raise self._corrupt(f"{left:,} bytes follow the tree.")
        return tree

    def _go_to(self, offset: int) -> None:
        """Read on from there. The package would read all that is skipped."""
        if offset > self._size:
            raise self._package.OutOfData
        self._begin = offset
        self._file.seek(offset)
        self._items = self._package.Unpacker(
            self._file, read_size=_READ, max_buffer_size=max(_READ, self._size), raw=False
        )

    @property
    def _at(self) -> int:
        return self._begin + int(self._items.tell())

    def _first(self) -> int:
        """The byte that comes next."""
        place = self._file.tell()
        self._file.seek(self._at)
        first = self._file.read(1)
        self._file.seek(place)
        if not first:
            raise self._package.OutOfData
        return first[0]

    def _length(self, heads: Mapping[int, int]) -> int:
        """Go behind a head that the package would read with all that follows; -1 for another."""
        first = self._first()
        if first not in heads:
            return -1
        begin = self._at
        self._file.seek(begin + 1)
        data = self._file.read(heads[first])
        if len(data) < heads[first]:
            raise self._package.OutOfData
        self._go_to(begin + 1 + len(data))
        return int.from_bytes(data, "big") if data else 1 << (first - 0xD4)

    def _value(self, tree: _Tree, keys: tuple[str, ...]) -> None:
        self._values += 1
        if self._values > _MOST_VALUES or len(keys) > _DEEPEST:
            raise self._corrupt("The tree has more values, or is deeper, than any checkpoint's.")
        first = self._first()
        if first in _MAPS:
            seen = set[str]()
            for _ in range(self._items.read_map_header()):
                key = self._key()
                if key in seen:
                    raise self._corrupt(f"{key[:80]!r} stands in a map more than once.")
                seen.add(key)
                self._value(tree, (*keys, key))
            return
        if first in _LISTS:
            for index in range(self._items.read_array_header()):
                self._value(tree, (*keys, str(index)))
            return
        name = "/".join(keys)
        if name in tree.arrays or name in tree.others:
            raise self._corrupt(f"{name[:80]!r} stands in the tree more than once.")
        if first in _EXTENSIONS:
            self._extension(tree, name)
        else:
            tree.others[name] = self._plain(self._items.unpack())

    def _key(self) -> str:
        if not (0xA0 <= (first := self._first()) < 0xC0 or 0xD9 <= first <= 0xDB):
            raise self._corrupt("A key of the tree is not text.")
        key = str(self._items.unpack())
        if len(key.encode()) > _LONGEST_TEXT:
            raise self._corrupt("A key of the tree is longer than any name.")
        return key

    @staticmethod
    def _plain(value: object) -> object:
        """A leaf that is no array, as far as it is short."""
        if isinstance(value, bytes):
            return "bytes"
        return "text" if isinstance(value, str) and len(value.encode()) > _LONGEST_TEXT else value

    def _extension(self, tree: _Tree, name: str) -> None:
        """An array or a number of numpy; complex numbers are only named."""
        length = self._length(_EXTENSIONS)
        code = self._first()
        begin = self._at + 1
        if code == _COMPLEX:
            tree.others[name] = "a complex number"
        elif code in (_ARRAY, _SCALAR):
            self._go_to(begin)
            leaf = tree.arrays[name] = self._leaf(name)
            if leaf.offset + leaf.info.nbytes != begin + length:
                raise self._corrupt(f"{name[:80]!r} does not have the length of its header.")
        else:
            raise self._corrupt(f"{name[:80]!r} is an extension that Flax does not write.")
        self._go_to(begin + length)

    def _leaf(self, name: str) -> _Leaf:
        """The header of an array: its shape, its dtype and the length of its elements."""
        if self._first() not in _LISTS or self._items.read_array_header() != 3:
            raise self._corrupt(f"{name[:80]!r} is not a shape, a dtype and elements.")
        axes = self._items.read_array_header() if self._first() in _LISTS else _DEEPEST + 1
        if axes > _DEEPEST:
            raise self._corrupt(f"{name[:80]!r} has no shape.")
        shape = [self._short() for _ in range(axes)]
        dtype = self._short()
        dtype = dtype.decode(errors="replace") if isinstance(dtype, bytes) else dtype
        if not isinstance(dtype, str) or dtype not in ITEM_SIZE:
            raise CorruptFile(
                f"{name[:80]!r} has a dtype that is not read here.",
                evidence={"file": self._path, "dtype": shown(dtype), "known": " ".join(ITEM_SIZE)},
            )
        info = TensorInfo(dtype=dtype, shape=checked_shape(self._path, name[:80], shape))
        length = self._length(_BYTES)
        if length != info.nbytes:
            raise CorruptFile(
                f"{name[:80]!r} does not have the size that its shape says.",
                evidence={
                    "file": self._path,
                    "shape": list(info.shape),
                    "needs": f"{info.nbytes:,} bytes",
                    "found": f"{length:,} bytes" if length >= 0 else "other than bytes",
                },
            )
        return _Leaf(info=info, offset=self._at)

    def _short(self) -> object:
        """A value that holds no others."""
        if self._first() in {*_MAPS, *_LISTS, *_EXTENSIONS}:
            raise self._corrupt("An array has a header that Flax does not write.")
        return cast(object, self._items.unpack())

    def _corrupt(self, fact: str) -> CorruptFile:
        return CorruptFile(fact, evidence={"file": self._path, "before byte": self._at})


_Branch = dict[str, "Content | _Branch"]


def write_file(
    path: Path, contents: Mapping[str, Content], _surroundings: Surroundings, read_soon: bool
) -> str:
    """Write tensors as the tree that their names spell, as `flax.serialization.to_bytes` does.

    Returns:
        The sha256 of the file.

    Raises:
        MissingPackage: msgpack is not installed.
        UsageError: A name that is a branch of the tree too, or a dtype that Flax has no word for.
    """
    contents = checked_contents(contents, list(ITEM_SIZE), "msgpack")
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


def _write_branch(file: SequentialWriter, packer: Any, tree: _Branch) -> None:
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


def _write_chunked(file: SequentialWriter, packer: Any, content: Content) -> None:
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


def _array_header(packer: Any, info: TensorInfo) -> bytes:
    """All of an array but its elements, with which alone the package writes it."""
    inside: bytes = packer.pack_array_header(3) + packer.pack(info.shape) + packer.pack(info.dtype)
    inside += _sized(info.nbytes, _BYTES)
    return _sized(len(inside) + info.nbytes, _EXTENSIONS) + bytes([_ARRAY]) + inside


def _sized(number: int, heads: Mapping[int, int]) -> bytes:
    """The shortest head with this length; extensions of 1 to 16 bytes have heads of their own."""
    for code, width in heads.items():
        if width and number < 256**width:
            return bytes([code]) + number.to_bytes(width, "big")
    raise UsageError("A tensor is larger than a msgpack file can hold.")


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with the msgpack package, which Flax itself uses."""
    package = imported("msgpack", "msgpack", path)

    def unpacked(data: bytes) -> Any:
        return package.unpackb(
            data,
            ext_hook=lambda code, inner: unpacked(inner) if code == _ARRAY else inner,
            max_bin_len=2**32 - 1,
            max_ext_len=2**32 - 1,
        )

    yield from _arrays(unpacked(path.read_bytes()), ())


def _arrays(tree: Any, keys: tuple[str, ...]) -> Iterator[Array]:
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
