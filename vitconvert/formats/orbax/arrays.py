"""The arrays of an Orbax directory: chunks, which are measured, and which tensorstore inflates."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.container import tensor_from_buffer
from vitconvert.formats.orbax.headers import StrangeHeader, ZarrArray, read_header
from vitconvert.formats.orbax.tree import Leaf, Tree
from vitconvert.formats.zip_archive import FREE_INFLATION

if TYPE_CHECKING:
    import torch

_LONGEST_HEADER = 2**20  # bytes
# A frame of zstd is a header and blocks, of 128 KiB at most when inflated (RFC 8878, 3.1.1.2.4).
_MAGIC, _BLOCK = b"\x28\xb5\x2f\xfd", 2**17
_MISSING = (2**64 - 1, 2**64 - 1)  # of a piece: it has the value that fills
_MOST_BLOCKS = 4  # for each 128 KiB: an encoder may end blocks early


class Store:
    """Where the arrays of a directory lie."""

    def __init__(self, directory: Path, tree: Tree) -> None:
        import tensorstore

        self._directory, self._has_zeros = directory, tree.has_zeros
        self._third, self._header = tree.third, "zarr.json" if tree.third else ".zarray"
        files = {"driver": "file", "path": f"{directory.resolve()}/"}
        in_one = {"driver": "ocdbt", "base": files, "path": ""}
        self._place: dict[str, Any] = in_one if tree.in_one_store else files
        self._store: Any = self._asked(lambda: tensorstore.KvStore.open(self._place).result())

    def open(self, leaves: Mapping[str, Leaf]) -> dict[str, ZarrArray]:
        """Read the headers of arrays.

        Raises:
            CorruptFile: One is missing, damaged or of a kind that is not read.
        """
        asked = {n: self._store.read(f"{leaf.place}/{self._header}") for n, leaf in leaves.items()}
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
        spec = {"driver": array.driver, "kvstore": place}
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
        if array.pieces is None:
            self._check_frame(name, array, place, found.value, array.chunk_size)
            return
        pieces = pieces_of(found.value, array.pieces_of_a_chunk)
        if pieces is None:
            raise self._corrupt(f"A chunk of {name!r} has an index that cannot be.", chunk=place)
        if self._has_zeros and len(pieces) < array.pieces_of_a_chunk:
            raise self._corrupt(f"A piece of a chunk of {name!r} is missing.", chunk=place)
        size = array.chunk_size // array.pieces_of_a_chunk
        for piece in pieces:
            self._check_frame(name, array, place, found.value[piece], size)

    def _check_frame(
        self, name: str, array: ZarrArray, place: str, frame: bytes, size: int
    ) -> None:
        if not array.compressed:
            if len(frame) != size:
                raise self._corrupt(f"A chunk of {name!r} has a wrong size.", chunk=place)
        elif (inflated := most_inflated(frame)) is None:
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
        path = self._directory / leaf.place / self._header
        try:
            return read_header(leaf.place, path, name, bytes(found.value), third=self._third)
        except StrangeHeader as error:
            raise self._corrupt(f"{name!r} {error}", array=leaf.place) from error

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


def pieces_of(chunk: bytes, count: int) -> list[slice] | None:
    """Where the pieces of a chunk lie that are there; None if its index cannot be.

    Source: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed
    """
    begin = len(chunk) - 16 * count - 4  # a checksum, which tensorstore compares
    if begin < 0:
        return None
    found = []
    end = 0
    for offset, size in sorted(struct.iter_unpack("<QQ", chunk[begin:-4])):
        if (offset, size) == _MISSING:
            continue
        if offset < end or offset + size > begin:
            return None
        found.append(slice(offset, end := offset + size))
    return found
