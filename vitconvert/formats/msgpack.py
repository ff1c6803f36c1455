"""msgpack: trees of arrays, as Flax writes them (`flax_model.msgpack`, `checkpoint_0`).

A tree is a map of text to maps or leaves; names of tensors are the keys on the way to them, joined
by "/". The msgpack package reads the whole file.

Arrays: flax 0.12, `flax/serialization.py`: an extension whose data are msgpack again, (shape,
dtype, elements in row-major order), and arrays of more than 2^30 bytes in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitconvert.atomic_write import HashingWriter, atomic_file
from vitconvert.errors import UsageError
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    TensorInfo,
    tensor_from_buffer,
    weights_branch,
)
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import ALONE, Array, Surroundings, Untyped, imported
from vitconvert.formats.headers import AGAIN, check_size, checked_dtype, checked_shape, corrupt

if TYPE_CHECKING:
    import torch

READER = "msgpack.unpackb"
EXAMPLE = """\
from pathlib import Path

from flax.serialization import msgpack_restore

params = msgpack_restore(Path("flax_model.msgpack").read_bytes())"""

_WEIGHTS = "params"  # of flax.core variables, flax.training.TrainState and big_vision
_UNTIL_2021 = ("optimizer", "target")  # of training states with optimizers of flax.optim
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # flax.serialization._MsgpackExtType
_CHUNKED = "__msgpack_chunked_array__"
_CHUNK = 2**30  # bytes; a larger array is written in chunks of it (flax.serialization)
_DEEPEST = 64  # maps within maps
_LONGEST_TEXT = 10_000  # letters of a key, or of text that is kept
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class _Extension:
    """What Flax has for arrays and for numbers that msgpack lacks."""

    code: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """An array and its elements; of a large one, those of its parts one after another."""

    info: TensorInfo
    data: bytes


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """What a file holds, by the path of its keys; large arrays are in several parts."""

    arrays: dict[str, _Leaf] = field(default_factory=dict)
    others: dict[str, object] = field(default_factory=dict)


def open_file(path: Path, _members: object, prefer: tuple[str, ...], *_: object) -> Container:
    """Read the tree of a msgpack file.

    Args:
        path: The file.
        prefer: Keys of branches to try before "params".

    Raises:
        MissingPackage: msgpack is not installed.
        CorruptFile: The file is truncated, or no tree of arrays.
    """
    tree = _Tree()
    _gather(path, tree, _unpacked(path, path.read_bytes()), ())
    _join_chunks(path, tree)
    places = [name.split("/") for name in tree.arrays]
    old = _UNTIL_2021 if any(tuple(keys[:2]) == _UNTIL_2021 for keys in places) else ()
    wrapper, beside = weights_branch(places, (*prefer, _WEIGHTS, *old), _DEEPEST)
    begin = "".join(f"{key}/" for key in wrapper)
    arrays = {
        name.removeprefix(begin): a for name, a in tree.arrays.items() if name.startswith(begin)
    }

    def read(name: str) -> torch.Tensor:
        if not arrays:
            raise ValueError("read from a closed container")
        return tensor_from_buffer(bytearray(arrays[name].data), 0, arrays[name].info)

    counted = {name: f"{number} arrays" for name, number in beside.items()}
    return Container(
        path=path,
        files=(path,),
        format="msgpack",
        manifest={name: array.info for name, array in arrays.items()},
        wrapper=wrapper,
        extras={**tree.others, **counted},
        reader=read,
        release=arrays.clear,
    )


def _unpacked(path: Path, data: bytes) -> Untyped:
    """What the package makes of a value; it checks every length against what is there."""
    package = imported("msgpack", "msgpack", path)

    def pairs(items: list[tuple[object, object]]) -> dict[object, object]:
        if len(found := dict(items)) < len(items):
            raise corrupt(path, "A key is in a map more than once.")
        return found

    try:
        return package.unpackb(
            data,
            ext_hook=lambda code, inner: _Extension(code=code, data=inner),
            object_pairs_hook=pairs,
            max_bin_len=2**32 - 1,
            max_ext_len=2**32 - 1,
        )
    except ValueError as error:  # and what the package derives from it
        problem = str(error) or type(error).__name__
        fact = "The msgpack package cannot read this file: it is truncated, or no msgpack."
        raise corrupt(
            path, fact, hint=AGAIN, problem=problem, found=f"{len(data):,} bytes"
        ) from error


def _gather(path: Path, tree: _Tree, value: object, keys: tuple[str, ...]) -> None:
    """Put a value and all below it into the tree."""
    if len(keys) > _DEEPEST:
        raise corrupt(path, "The tree is deeper than any checkpoint's.")
    if isinstance(value, dict):
        for key, branch in value.items():
            if not isinstance(key, str) or len(key) > _LONGEST_TEXT:
                raise corrupt(path, "A key of the tree is not text, or is too long for a name.")
            _gather(path, tree, branch, (*keys, key))
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            _gather(path, tree, item, (*keys, str(index)))
        return
    name = "/".join(keys)
    if name in tree.arrays or name in tree.others:
        raise corrupt(path, f"{name[:80]!r} is in the tree more than once.")
    match value:
        case _Extension(code=code, data=data) if code in (_ARRAY, _SCALAR):
            tree.arrays[name] = _leaf(path, name, data)
        case _Extension(code=code) if code == _COMPLEX:
            tree.others[name] = "a complex number"
        case str() if len(value) > _LONGEST_TEXT:
            tree.others[name] = "text"
        case bytes():
            tree.others[name] = "bytes"
        case None | bool() | int() | float() | str():
            tree.others[name] = value
        case _:
            raise corrupt(path, f"{name[:80]!r} is an extension that Flax does not write.")


def _leaf(path: Path, name: str, data: bytes) -> _Leaf:
    match _unpacked(path, data):
        case [list(shape), str() | bytes() as dtype, bytes(elements)]:
            dtype = dtype.decode(errors="replace") if isinstance(dtype, bytes) else dtype
            info = TensorInfo(
                dtype=checked_dtype(path, name, dtype, ITEM_SIZE),
                shape=checked_shape(path, name[:80], shape),
            )
            check_size(path, name, info, len(elements))
            return _Leaf(info=info, data=elements)
    raise corrupt(path, f"{name[:80]!r} is not a shape, a dtype and elements.")


def _join_chunks(path: Path, tree: _Tree) -> None:
    """Put the parts of chunked arrays together."""
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
        info = TensorInfo(dtype=dtypes.pop(), shape=full)
        tree.arrays[name] = _Leaf(info=info, data=b"".join(part.data for part in parts))


def _numbered(found: dict[str, _T], begin: str) -> list[_T]:
    """Take `begin/0`, `begin/1` and so on out of a dict."""
    names = (f"{begin}{index}" for index in count())
    return [found.pop(name) for name in takewhile(found.__contains__, names)]


_Branch = dict[str, "Content | _Branch"]


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    _surroundings: Surroundings = ALONE,
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
    package = imported("msgpack", "msgpack", path)
    with atomic_file(path) as file:
        _write_branch(file, package, tree)
    return file.sha256


def _write_branch(file: HashingWriter, package: Untyped, tree: _Branch) -> None:
    """Write a map, and each of its arrays as soon as it is at hand."""
    packer = package.Packer()
    file.write(packer.pack_map_header(len(tree)))
    for key, value in tree.items():
        file.write(packer.pack(key))
        if not isinstance(value, Content):
            _write_branch(file, package, value)
            continue
        info, data = value.info, bytes(value.whole())
        if info.nbytes <= _CHUNK:
            file.write(packer.pack(_array(package, info, data)))
            continue
        # A map of the shape, and of one-dimensional arrays that follow one another.
        shape = {str(axis): length for axis, length in enumerate(info.shape)}
        file.write(packer.pack_map_header(3) + packer.pack(_CHUNKED) + packer.pack(True))
        file.write(packer.pack("shape") + packer.pack(shape) + packer.pack("chunks"))
        size = ITEM_SIZE[info.dtype]
        step = _CHUNK // size * size
        file.write(packer.pack_map_header(len(range(0, len(data), step))))
        for number, begin in enumerate(range(0, len(data), step)):
            part = data[begin : begin + step]
            of_part = TensorInfo(dtype=info.dtype, shape=(len(part) // size,))
            file.write(packer.pack(str(number)))
            file.write(packer.pack(_array(package, of_part, part)))


def _array(package: Untyped, info: TensorInfo, data: bytes) -> Untyped:
    return package.ExtType(_ARRAY, package.packb((info.shape, info.dtype, data)))


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
