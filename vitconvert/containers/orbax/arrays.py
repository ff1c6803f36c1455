"""The arrays of an Orbax directory: headers of zarr 2, and chunks that tensorstore inflates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.containers.container import ITEM_SIZE, TensorInfo
from vitconvert.containers.json_object import parse_object
from vitconvert.containers.mapped_file import checked_shape, shown, tensor_from_buffer
from vitconvert.containers.orbax.tree import Leaf, Tree
from vitconvert.containers.zip_archive import FREE_INFLATION
from vitconvert.errors import CorruptFile, UnsafeFile

if TYPE_CHECKING:
    import torch

_DTYPES: Mapping[str, str] = {
    **{f"<f{size}": f"float{8 * size}" for size in (2, 4, 8)},
    **{f"<i{size}": f"int{8 * size}" for size in (2, 4, 8)},
    **{f"<u{size}": f"uint{8 * size}" for size in (2, 4, 8)},
    "|i1": "int8",
    "|u1": "uint8",
    "|b1": "bool",
    "<c8": "complex64",
    **{name: name for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")},
}
"""torch's name of each dtype of zarr 2, with those that tensorstore adds."""

_LONGEST_HEADER = 2**20  # bytes
_MOST_CHUNKS = 100_000  # of one array
# A frame of zstd is a header and blocks, of 128 KiB at most when inflated (RFC 8878, 3.1.1.2.4).
_MAGIC, _BLOCK = b"\x28\xb5\x2f\xfd", 2**17
_MOST_BLOCKS = 4  # for each 128 KiB: an encoder may end blocks early


@dataclass(frozen=True, kw_only=True)
class ZarrArray:
    """An array, by its header."""

    place: str
    info: TensorInfo
    chunks: tuple[int, ...]
    compressed: bool
    separator: str

    def parts(self) -> Iterator[str]:
        """The names of its chunks."""
        counts = map(_quotient, self.info.shape, self.chunks)
        for numbers in product(*map(range, counts)):
            yield self.separator.join(map(str, numbers)) or "0"

    @property
    def chunk_size(self) -> int:
        """Bytes of a chunk, inflated."""
        return prod(self.chunks) * ITEM_SIZE[self.info.dtype]


class Store:
    """Where the arrays of a directory lie."""

    def __init__(self, directory: Path, tree: Tree) -> None:
        import tensorstore

        self._directory, self._has_zeros = directory, tree.has_zeros
        files = {"driver": "file", "path": f"{directory.resolve()}/"}
        in_one = {"driver": "ocdbt", "base": files, "path": ""}
        self._place: dict[str, Any] = in_one if tree.in_one_store else files
        self._store: Any = self._asked(lambda: tensorstore.KvStore.open(self._place).result())

    def open(self, leaves: Mapping[str, Leaf]) -> dict[str, ZarrArray]:
        """Read the headers of arrays.

        Raises:
            CorruptFile: One is missing, damaged or of a kind that is not read.
        """
        asked = {n: self._store.read(f"{leaf.place}/.zarray") for n, leaf in leaves.items()}
        return {name: self._array(name, leaves[name], asked[name]) for name in leaves}

    def read(self, name: str, array: ZarrArray) -> torch.Tensor:
        """Read an array.

        Raises:
            CorruptFile: Chunks are missing or damaged.
            UnsafeFile: One would inflate to more than its size.
        """
        import numpy as np
        import tensorstore

        if self._store is None:
            raise ValueError("read from a closed container")
        for part in array.parts() if array.info.nbytes else ():
            self._check_chunk(name, array, f"{array.place}/{part}")
        place = {**self._place, "path": f"{self._place['path']}{array.place}/"}
        spec = {"driver": "zarr", "kvstore": place}
        opened = self._asked(lambda: tensorstore.open(spec, open=True, read=True).result())
        if tuple(opened.shape) != array.info.shape:
            raise self._corrupt(f"The header of {name!r} changed since it was read.")
        values = np.ascontiguousarray(self._asked(lambda: opened.read().result()))
        return tensor_from_buffer(values.reshape(-1).view(np.uint8).data, 0, array.info)

    def close(self) -> None:
        """Let go of the store."""
        self._store = None

    def _check_chunk(self, name: str, array: ZarrArray, place: str) -> None:
        found = self._asked(lambda: self._store.read(place).result())
        if found.state != "value":
            if self._has_zeros:
                raise self._corrupt(f"A chunk of {name!r} is missing.", chunk=place)
            return  # which then means zeros
        size = array.chunk_size
        if not array.compressed:
            if len(found.value) != size:
                raise self._corrupt(f"A chunk of {name!r} has a wrong size.", chunk=place)
        elif (inflated := most_inflated(found.value)) is None:
            raise self._corrupt(f"A chunk of {name!r} is no frame of zstd.", chunk=place)
        elif inflated > FREE_INFLATION + _MOST_BLOCKS * size:
            raise UnsafeFile(
                f"A chunk of {name!r} would inflate to far more than its shape says.",
                evidence={"directory": self._directory, "chunk": place},
                meaning="A directory like this is made to exhaust memory.",
            )

    def _array(self, name: str, leaf: Leaf, asked: Any) -> ZarrArray:
        found = self._asked(asked.result)
        if found.state != "value" or len(found.value) > _LONGEST_HEADER:
            raise self._corrupt(f"{name!r} has no header among the arrays.", array=leaf.place)
        path = self._directory / leaf.place / ".zarray"
        header = parse_object(path, bytes(found.value), what="The header of an array")
        dtype = header.get("dtype")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise self._corrupt(
                f"{name!r} has a dtype that is not read here.",
                dtype=shown(dtype),
                known=" ".join(_DTYPES),
            )
        info = TensorInfo(
            dtype=_DTYPES[dtype], shape=checked_shape(path, name, header.get("shape"))
        )
        chunks = checked_shape(path, name, header.get("chunks"))
        if problem := _problem(header, info.shape, chunks):
            raise self._corrupt(f"{name!r} {problem}", array=leaf.place)
        return ZarrArray(
            place=leaf.place,
            info=info,
            chunks=chunks,
            compressed=header.get("compressor") is not None,
            separator=str(header.get("dimension_separator", ".")),
        )

    def _asked(self, question: Any) -> Any:
        """What tensorstore answers; it raises ValueError for whatever is damaged."""
        try:
            return question()
        except (ValueError, OSError, MemoryError) as error:
            raise self._corrupt(
                "tensorstore cannot read this directory.", reason=str(error)[:200]
            ) from error

    def _corrupt(self, fact: str, **evidence: str) -> CorruptFile:
        return CorruptFile(
            fact,
            evidence={"directory": self._directory, **evidence},
            hint="copy or download it again.",
        )


def _problem(
    header: Mapping[str, object], shape: tuple[int, ...], chunks: tuple[int, ...]
) -> str | None:
    """Why an array is not read, in words that follow its name."""
    compressor = header.get("compressor")
    is_zstd = isinstance(compressor, dict) and compressor.get("id") == "zstd"
    if header.get("zarr_format") != 2 or header.get("order") != "C" or header.get("filters"):
        return "is kept in a way of zarr that Orbax does not write."
    if compressor is not None and not is_zstd:
        return "is compressed in a way that is not read here."
    if header.get("dimension_separator", ".") not in (".", "/"):
        return "has chunks whose names are not known."
    if len(chunks) != len(shape) or not all(map(_fits, chunks, shape)):
        return "has chunks that do not go with its shape."
    if prod(map(_quotient, shape, chunks)) > _MOST_CHUNKS:
        return f"has more than {_MOST_CHUNKS:,} chunks."
    return None


def _fits(chunk: int, axis: int) -> bool:
    return 0 < chunk <= max(axis, 1)


def _quotient(axis: int, chunk: int) -> int:
    return -(-axis // chunk)


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
        total += _BLOCK if kind == 2 else size  # compressed; raw and repeated tell their sizes
        position += 3 + (1 if kind == 1 else size)
    checksum = 4 * (descriptor >> 2 & 1)
    return total if position + checksum == len(frame) else None
