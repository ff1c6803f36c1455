"""Directories that Orbax writes: trees of arrays of JAX, in one key-value store (OCDBT) or a folder
of zarr for each array. Only read.

`_METADATA` is JSON with the keys that lead to each leaf; names of tensors are these keys, joined by
"/". tensorstore reads the header of each array (zarr 2, or zarr 3 as the newest interface writes),
and its chunks when it is asked for; what they inflate to is looked at before. A chunk of zarr 3 may
be cut into pieces that are compressed one by one; an index behind them has their places.

Formats: orbax-checkpoint 0.12, `metadata/tree.py`;
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    TensorInfo,
    tensor_from_buffer,
    weights_branch,
)
from vitconvert.formats.format_modules import Untyped, imported
from vitconvert.formats.headers import (
    checked_dtype,
    checked_shape,
    corrupt,
    parse_strict_object,
    shown,
)
from vitconvert.formats.zip_archive import FREE_INFLATION, refuse_bomb

if TYPE_CHECKING:
    import torch

_LONGEST_TREE = 2**26  # bytes; a leaf takes 300
_MOST_FILES = 100_000
_MOST_CHUNKS = 100_000  # of one array, or their pieces
_DEEPEST = 64
_MOST_WRAPPERS = 4  # in one another
_WRAPPERS = ("params", "target")  # of Flax's training states, today and before Linen
_VARIABLE = "/value"
_ARRAYS = ("jax.Array", "np.ndarray")
_EMPTY = ("None", "Dict", "List", "Tuple", "NamedTuple")
# A frame of zstd is a header and blocks, of 128 KiB at most when inflated (RFC 8878, 3.1.1.2.4).
_MAGIC, _BLOCK = b"\x28\xb5\x2f\xfd", 2**17
_MOST_BLOCKS = 4  # for each 128 KiB: an encoder may end blocks early
_CHUNK_KEY = re.compile(r"(c[/.])?\d+([/.]\d+)*|c")
_MISSING = (2**64 - 1, 2**64 - 1)  # of a piece: it has the value that fills

Kinds = dict[tuple[str, ...], str]
"""The keys that lead to a leaf -> what it was in Python."""


def open_file(path: Path, _members: object, prefer: tuple[str, ...], *_: object) -> Container:
    """Read the tree of an Orbax directory, and the header of each array.

    Args:
        path: Of `_METADATA`.
        prefer: Wrapper keys to try before the usual ones.

    Raises:
        MissingPackage: tensorstore is not installed.
        CorruptFile: The tree or a header is damaged, or arrays are missing.
        UnsafeFile: The arrays are far larger than the directory, or a key leads out of it.
    """
    tensorstore = imported("tensorstore", "the arrays of Orbax", path)
    if (size := path.stat().st_size) > _LONGEST_TREE:
        raise _strange(path, f"it has {size:,} bytes, more than {_LONGEST_TREE:,}")
    content = parse_strict_object(path, path.read_bytes(), what="The tree of this Orbax directory")
    inside = (file for file in path.parent.rglob("*") if file.is_file())
    sizes = {file: file.stat().st_size for file in islice(inside, _MOST_FILES + 1)}
    if len(sizes) > _MOST_FILES:
        raise _corrupt(path.parent, f"The directory has more than {_MOST_FILES:,} files.")
    wrapper, leaves, beside = unwrapped(_kinds(path, content.get("tree_metadata")), prefer)
    notes: tuple[str, ...] = ()
    if all(name.endswith(_VARIABLE) for name in leaves):  # a state of Flax's NNX
        leaves = {name.removesuffix(_VARIABLE): place for name, place in leaves.items()}
        notes = (f"behind the names of tensors, the file has {_VARIABLE}",)
    arrays = _open(tensorstore, path, content, leaves)
    asked = sum(array.info.nbytes for array in arrays.values())
    refuse_bomb(path.parent, sum(sizes.values()), asked, "The arrays")
    opened = dict(arrays)

    def read(name: str) -> torch.Tensor:
        if name in arrays and name not in opened:
            raise ValueError("read from a closed container")
        return opened[name].read()

    return Container(
        path=path,
        files=(path, *sorted(sizes.keys() - {path})),
        format="orbax",
        manifest={name: array.info for name, array in arrays.items()},
        wrapper=wrapper,
        extras=beside,
        notes=notes,
        reader=read,
        release=opened.clear,
    )


def _kinds(path: Path, listed: object) -> Kinds:
    leaves: Kinds = {}
    if not isinstance(listed, dict):
        raise _strange(path, "it lists no leaves")
    for name, entry in listed.items():
        match entry:
            case {"key_metadata": [*steps], "value_metadata": {"value_type": str(kind)}}:
                found = [step.get("key") if isinstance(step, dict) else None for step in steps]
            case _:
                raise _strange(path, f"{name[:80]!r} has no keys or no type")
        keys = tuple(key for key in found if isinstance(key, str) and key)
        if not 0 < len(found) <= _DEEPEST or len(keys) < len(found):
            raise _strange(path, f"{name[:80]!r} has no keys, or one that is not text")
        for key in keys:
            # As a part of the name of a folder, it would be more than that.
            if any(letter in key for letter in '/\\\0:|"') or key in (".", ".."):
                raise UnsafeFile(
                    "A key of this Orbax directory leads to another place.",
                    evidence={"file": path, "key": shown(key)},
                )
        if keys in leaves:
            raise _strange(path, f"{name[:80]!r} is there twice")
        if kind not in _EMPTY:
            leaves[keys] = kind[:80]
    if len({".".join(keys) for keys in leaves}) < len(leaves):
        raise _strange(path, "two leaves are kept under one name")
    return leaves


def _strange(path: Path, reason: str) -> CorruptFile:
    return corrupt(path, "The tree of this Orbax directory cannot be read.", reason=reason)


def unwrapped(
    level: Kinds, prefer: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, str], dict[str, object]]:
    """The keys around the weights, the places of arrays by name, and what lies beside them."""
    wrapper, counts = weights_branch(level, (*prefer, *_WRAPPERS), _MOST_WRAPPERS)
    beside: dict[str, object] = {
        name: f"{count:,} value{'s' * (count != 1)}" for name, count in counts.items()
    }
    arrays: dict[str, str] = {}
    for keys, kind in level.items():
        inner = keys[len(wrapper) :]
        if keys[: len(wrapper)] != wrapper or not inner:
            continue
        if kind in _ARRAYS:
            arrays["/".join(inner)] = ".".join(keys)
        else:
            beside["/".join(keys)] = kind
    return wrapper, arrays, beside


def _open(
    tensorstore: ModuleType, path: Path, content: Mapping[str, object], leaves: Mapping[str, str]
) -> dict[str, _Array]:
    """Open arrays by the names of their folders, all at once."""
    directory = path.parent
    place: dict[str, object] = {"driver": "file", "path": f"{directory.resolve()}/"}
    # Older releases wrote no such key; the files of their stores show it.
    if content.get("use_ocdbt", (directory / "manifest.ocdbt").exists()):
        place = {"driver": "ocdbt", "base": place, "path": ""}
    driver = "zarr3" if content.get("use_zarr3") is True else "zarr"
    futures = {}
    for name, folder in leaves.items():
        spec = {"driver": driver, "kvstore": {**place, "path": f"{place['path']}{folder}/"}}
        with _errors_of(directory, name):
            futures[name] = tensorstore.open(spec, open=True, read=True)
    has_zeros = content.get("store_array_data_equal_to_fill_value") is True
    arrays = {}
    for name, future in futures.items():
        with _errors_of(directory, name):
            arrays[name] = _array(directory, name, future.result(), has_zeros)
    return arrays


@contextmanager
def _errors_of(directory: Path, name: str) -> Iterator[None]:
    """tensorstore raises ValueError for whatever is damaged."""
    try:
        yield
    except (ValueError, OSError, MemoryError) as error:
        reason = str(error).replace(f"{directory.resolve()}/", "")[:200]
        fact = f"tensorstore cannot read {name[:80]!r}."
        raise _corrupt(directory, fact, reason=reason) from error


def _corrupt(directory: Path, fact: str, **more: object) -> CorruptFile:
    evidence = {"directory": directory, **more}
    return CorruptFile(fact, evidence=evidence, hint="copy or download it again.")


@dataclass(frozen=True, kw_only=True)
class _Array:
    """An array, by its header.

    Attributes:
        opened: tensorstore's.
        chunks: How many there are.
        chunk_size: Bytes of one, inflated.
        pieces: How many a chunk is cut into; 0 where it is not cut.
        compressed: Whether each chunk, or each piece, is a frame of zstd.
        has_zeros: Whether chunks of zeros were written, too.
    """

    directory: Path
    name: str
    opened: Untyped
    info: TensorInfo
    chunks: int
    chunk_size: int
    pieces: int
    compressed: bool
    has_zeros: bool

    def read(self) -> torch.Tensor:
        """Read the array.

        Raises:
            CorruptFile: Chunks are missing or damaged.
            UnsafeFile: One would inflate to more than its size.
        """
        import numpy as np

        with _errors_of(self.directory, self.name):
            if self.info.nbytes:
                self._check_chunks()
            values = np.ascontiguousarray(self.opened.read().result())
        return tensor_from_buffer(values.reshape(-1).view(np.uint8).data, 0, self.info)

    def _check_chunks(self) -> None:
        store = self.opened.kvstore
        listed = (key.decode() for key in store.list().result())
        keys = [key for key in listed if _CHUNK_KEY.fullmatch(key)]
        if self.has_zeros and len(keys) < self.chunks:
            raise _corrupt(self.directory, f"A chunk of {self.name[:80]!r} is missing.")
        for key in keys if self.compressed or self.pieces else ():
            frames = [store.read(key).result().value]
            if self.pieces:
                pieces = pieces_of(frames[0], self.pieces)
                if pieces is None or (self.has_zeros and len(pieces) < self.pieces):
                    problem = "has an index that cannot be" if pieces is None else "lacks a piece"
                    raise _corrupt(self.directory, f"A chunk of {self.name[:80]!r} {problem}.")
                frames = [frames[0][piece] for piece in pieces]
            for frame in frames if self.compressed else ():
                if (inflated := most_inflated(frame)) is None:
                    fact = f"A chunk of {self.name[:80]!r} is not a frame of zstd."
                    raise _corrupt(self.directory, fact)
                size = self.chunk_size // max(1, self.pieces)
                if inflated > FREE_INFLATION + _MOST_BLOCKS * size:
                    fact = f"A chunk of {self.name[:80]!r} would inflate to far more than its shape"
                    raise UnsafeFile(
                        f"{fact} says.",
                        evidence={"directory": self.directory, "chunk": key},
                        meaning="A directory like this is made to exhaust memory.",
                    )


def _array(directory: Path, name: str, opened: Untyped, has_zeros: bool) -> _Array:
    """An array by its header, as tensorstore reads it."""
    shape = checked_shape(directory, name[:80], tuple(opened.shape))
    dtype = checked_dtype(directory, name, opened.dtype.name, ITEM_SIZE)
    info = TensorInfo(dtype=dtype, shape=shape)
    layout, metadata = opened.chunk_layout, opened.spec().to_json()["metadata"]
    chunk, piece = layout.write_chunk.shape or (), layout.read_chunk.shape or ()
    cut: dict[str, Untyped] = {}
    match metadata:
        case {"compressor": compressor}:
            kinds = ["bytes"] if compressor is None else ["bytes", compressor["id"]]
        case {"codecs": [{"name": "sharding_indexed", "configuration": cut}]}:
            kinds = [codec["name"] for codec in cut["codecs"]]
            index = [codec["name"] for codec in cut["index_codecs"]]
            if cut["index_location"] != "end" or index != ["bytes", "crc32c"]:
                raise _corrupt(directory, f"{name[:80]!r} has an index that Orbax does not write.")
        case _:
            kinds = [codec["name"] for codec in metadata["codecs"]]
    if kinds not in (["bytes"], ["bytes", "zstd"]):
        raise _corrupt(directory, f"{name[:80]!r} is compressed in a way that is not read here.")
    if any(length > max(axis, 1) for length, axis in zip(chunk, shape, strict=True)):
        raise _corrupt(directory, f"{name[:80]!r} has chunks that do not go with its shape.")
    chunks, pieces = _count(shape, chunk), _count(chunk, piece) if cut else 0
    if chunks * max(1, pieces) > _MOST_CHUNKS:
        raise _corrupt(directory, f"{name[:80]!r} has more than {_MOST_CHUNKS:,} chunks.")
    return _Array(
        directory=directory,
        name=name,
        opened=opened,
        info=info,
        chunks=chunks,
        chunk_size=prod(chunk) * ITEM_SIZE[info.dtype],
        pieces=pieces,
        compressed=len(kinds) > 1,
        has_zeros=has_zeros,
    )


def _count(shape: tuple[int, ...], part: tuple[int, ...]) -> int:
    return prod(-(-axis // length) for axis, length in zip(shape, part, strict=True))


def most_inflated(frame: bytes) -> int | None:
    """The most bytes that a frame of zstd can inflate to, by its blocks; None if it is no frame.

    Source: RFC 8878, 3.1.1.
    """
    if frame[:4] != _MAGIC or len(frame) < 6:
        return None
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    position = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    position += (single, 2, 4, 8)[descriptor >> 6]
    total, last = 0, False
    while not last:
        head = frame[position : position + 3]
        if len(head) < 3:
            return None
        number = int.from_bytes(head, "little")
        last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        total += _BLOCK if kind == 2 else size  # compressed; others have sizes
        position += 3 + (1 if kind == 1 else size)
    checksum = 4 * (descriptor >> 2 & 1)
    return total if position + checksum == len(frame) else None


def pieces_of(chunk: bytes, count: int) -> list[slice] | None:
    """Where the pieces of a chunk lie that are there; None if its index cannot be."""
    begin = len(chunk) - 16 * count - 4  # a checksum, which tensorstore compares
    if begin < 0:
        return None
    found, end = [], 0
    for offset, size in sorted(struct.iter_unpack("<QQ", chunk[begin:-4])):
        if (offset, size) == _MISSING:
            continue
        if offset < end or offset + size > begin:
            return None
        found.append(slice(offset, end := offset + size))
    return found
