"""Writing msgpack: small headers between the elements of tensors, which come in chunks."""

import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from vitconvert.errors import UsageError
from vitconvert.formats.container import ITEM_SIZE, TensorInfo
from vitconvert.formats.content import Content, checked_contents
from vitconvert.whole import SequentialWriter, whole_file

_CHUNK = 2**30  # bytes; a larger array is written in chunks of it (flax.serialization)
_NDARRAY = 1
_Tree = dict[str, "Content | _Tree"]


def write_tree(path: Path, tensors: Mapping[str, Content], *, read_soon: bool = True) -> str:
    """Write tensors as the tree that their names spell, and return the sha256 of the file.

    Raises:
        UsageError: A name that is a branch of the tree too, or a dtype that Flax has no word for.
    """
    contents = checked_contents(tensors, list(ITEM_SIZE), "msgpack")
    tree = _tree(contents)
    with whole_file(path, read_soon=read_soon) as file:
        _write_branch(file, tree)
    return file.sha256


def _tree(contents: Mapping[str, Content]) -> _Tree:
    tree: _Tree = {}
    for name in sorted(contents):  # a name before those that begin with it
        *branches, leaf = name.split("/")
        place = tree
        for branch in branches:
            inner = place.setdefault(branch, {})
            if isinstance(inner, Content):
                raise _taken(name)
            place = inner
        place[leaf] = contents[name]
    return tree


def _taken(name: str) -> UsageError:
    return UsageError(
        "A tensor has a name that msgpack cannot hold: a part of it names another tensor.",
        evidence={"name": ascii(name)[:80]},
    )


def _write_branch(file: SequentialWriter, tree: _Tree) -> None:
    file.write(_map(len(tree)))
    for key, value in tree.items():
        file.write(_text(key))
        if not isinstance(value, Content):
            _write_branch(file, value)
        elif value.info.nbytes <= _CHUNK:
            file.write(_array_header(value.info.dtype, value.info.shape))
            for chunk in value.chunks(file.room):
                file.write(chunk)
        else:
            _write_chunked(file, value)


def _write_chunked(file: SequentialWriter, content: Content) -> None:
    """A map of the shape, and of one-dimensional arrays that follow one another."""
    info = content.info
    size = ITEM_SIZE[info.dtype]
    step, count = _CHUNK // size, prod(info.shape)
    lengths = [min(step, count - begin) for begin in range(0, count, step)]
    file.write(_map(3) + _text("__msgpack_chunked_array__") + b"\xc3")
    file.write(_text("shape") + _map(len(info.shape)))
    for axis, length in enumerate(info.shape):
        file.write(_text(str(axis)) + _int(length))
    file.write(_text("chunks") + _map(len(lengths)))
    pieces = _pieces(content, file, [length * size for length in lengths])
    for index, piece in pieces:
        if index is not None:
            file.write(_text(str(index)) + _array_header(info.dtype, (lengths[index],)))
        file.write(piece)


def _pieces(
    content: Content, file: SequentialWriter, sizes: list[int]
) -> Iterator[tuple[int | None, memoryview]]:
    """The bytes of a tensor, cut where an array ends; the first of each with its number."""
    index, left, first = 0, sizes[0], True
    for chunk in content.chunks(file.room):
        rest = chunk
        while rest:
            piece, rest = rest[:left], rest[left:]
            yield index if first else None, piece
            left, first = left - len(piece), False
            if not left and index + 1 < len(sizes):
                index, first = index + 1, True
                left = sizes[index]


def _array_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """All of an array but its elements."""
    nbytes = TensorInfo(dtype=dtype, shape=shape).nbytes
    inside = b"\x93" + _array(len(shape)) + b"".join(map(_int, shape)) + _text(dtype)
    inside += _sized(nbytes, (0xC4, 0xC5, 0xC6))
    head = _sized(len(inside) + nbytes, (0xC7, 0xC8, 0xC9))
    return head + bytes([_NDARRAY]) + inside


def _map(count: int) -> bytes:
    return bytes([0x80 + count]) if count < 16 else _sized(count, (None, 0xDE, 0xDF))


def _array(count: int) -> bytes:
    return bytes([0x90 + count]) if count < 16 else _sized(count, (None, 0xDC, 0xDD))


def _text(text: str) -> bytes:
    data = text.encode()
    head = bytes([0xA0 + len(data)]) if len(data) < 32 else _sized(len(data), (0xD9, 0xDA, 0xDB))
    return head + data


def _int(number: int) -> bytes:
    if number < 128:
        return bytes([number])
    if number < 2**32:
        return _sized(number, (0xCC, 0xCD, 0xCE))
    return b"\xcf" + struct.pack(">Q", number)


def _sized(number: int, codes: tuple[int | None, int, int]) -> bytes:
    """A first byte that says how many bytes the number behind it has."""
    for code, form, most in zip(codes, (">B", ">H", ">I"), (2**8, 2**16, 2**32), strict=True):
        if code is not None and number < most:
            return bytes([code]) + struct.pack(form, number)
    raise UsageError("A tensor is larger than a msgpack file can hold.")
