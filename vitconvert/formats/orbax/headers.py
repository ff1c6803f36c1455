"""The headers of the arrays in an Orbax directory: zarr 2 (`.zarray`) and zarr 3 (`zarr.json`).

Both become one description: in which chunks an array is stored, and how each is compressed. A chunk
of zarr 3 may be cut again, into pieces that are compressed one by one; an index behind them says
where they lie ("sharding").

Sources: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html and v3/core, v3/codecs/sharding;
orbax-checkpoint 0.12, `serialization/tensorstore_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import ITEM_SIZE, TensorInfo
from vitconvert.formats.headers import checked_shape, parse_object, shown

_DTYPES_OF_2: Mapping[str, str] = {
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
_DTYPES_OF_3: Mapping[str, str] = {name: name for name in ITEM_SIZE}

_MOST_CHUNKS = 100_000  # of one array, or their pieces


class StrangeHeader(Exception):
    """Why an array is not read, in words that follow its name."""


@dataclass(frozen=True, kw_only=True)
class ZarrArray:
    """An array, by its header.

    Attributes:
        place: Its name among the arrays.
        driver: What tensorstore calls this kind.
        info: Dtype and shape.
        chunks: The shape of a chunk.
        pieces: The shape of a piece, where chunks are cut into such.
        compressed: Whether each chunk, or each piece, is a frame of zstd.
        before: What names of chunks begin with.
        separator: Stands between the numbers of a chunk.
    """

    place: str
    driver: str
    info: TensorInfo
    chunks: tuple[int, ...]
    pieces: tuple[int, ...] | None
    compressed: bool
    before: tuple[str, ...]
    separator: str

    def parts(self) -> Iterator[str]:
        """The names of its chunks."""
        counts = map(_quotient, self.info.shape, self.chunks)
        for numbers in product(*map(range, counts)):
            yield self.separator.join((*self.before, *map(str, numbers))) or "0"

    @property
    def chunk_size(self) -> int:
        """Bytes of a chunk, inflated."""
        return prod(self.chunks) * ITEM_SIZE[self.info.dtype]

    @property
    def pieces_of_a_chunk(self) -> int:
        """How many there are; 0 where chunks are not cut."""
        return 0 if self.pieces is None else prod(map(_quotient, self.chunks, self.pieces))


def read_header(place: str, path: Path, name: str, data: bytes, *, third: bool) -> ZarrArray:
    """Read a header.

    Args:
        place: Of the array among the others.
        path: Of the header, for messages.
        name: The array's own, for messages.
        data: The header.
        third: Whether it is of zarr 3.

    Raises:
        StrangeHeader: It is none that Orbax writes.
        CorruptFile: It is damaged, or its shape or dtype cannot be.
    """
    header = parse_object(path, data, what="The header of an array")
    read = _third if third else _second
    array = read(place, _Header(path=path, name=name, content=header))
    shape, chunks, pieces = array.info.shape, array.chunks, array.pieces
    if len(chunks) != len(shape) or not all(map(_fits, chunks, shape)):
        raise StrangeHeader("has chunks that do not go with its shape.")
    if pieces is not None and not _divide(pieces, chunks):
        raise StrangeHeader("has chunks that are no whole number of pieces.")
    count = prod(map(_quotient, shape, chunks)) * max(1, array.pieces_of_a_chunk)
    if count > _MOST_CHUNKS:
        raise StrangeHeader(f"has more than {_MOST_CHUNKS:,} chunks.")
    return array


@dataclass(frozen=True, kw_only=True)
class _Header:
    """A header as JSON, and of which array."""

    path: Path
    name: str
    content: Mapping[str, object]

    def shape(self, found: object) -> tuple[int, ...]:
        return checked_shape(self.path, self.name, found)

    def info(self, dtype: object, known: Mapping[str, str]) -> TensorInfo:
        if not isinstance(dtype, str) or dtype not in known:
            raise CorruptFile(
                f"{self.name!r} has a dtype that is not read here.",
                evidence={"file": self.path, "dtype": shown(dtype), "known": " ".join(known)},
            )
        return TensorInfo(dtype=known[dtype], shape=self.shape(self.content.get("shape")))


def _second(place: str, header: _Header) -> ZarrArray:
    content = header.content
    info = header.info(content.get("dtype"), _DTYPES_OF_2)
    if content.get("zarr_format") != 2 or content.get("order") != "C" or content.get("filters"):
        raise StrangeHeader("is kept in a way of zarr that Orbax does not write.")
    compressor, separator = content.get("compressor"), content.get("dimension_separator", ".")
    if compressor is not None and not _is(compressor, "id", "zstd"):
        raise StrangeHeader("is compressed in a way that is not read here.")
    return ZarrArray(
        place=place,
        driver="zarr",
        info=info,
        chunks=header.shape(content.get("chunks")),
        pieces=None,
        compressed=compressor is not None,
        before=(),
        separator=_separator(separator),
    )


def _third(place: str, header: _Header) -> ZarrArray:
    content = header.content
    info = header.info(content.get("data_type"), _DTYPES_OF_3)
    grid, naming = content.get("chunk_grid"), content.get("chunk_key_encoding")
    plain = content.get("zarr_format") == 3 and content.get("node_type") == "array"
    if not plain or content.get("storage_transformers") or not _is(grid, "name", "regular"):
        raise StrangeHeader("is kept in a way of zarr that Orbax does not write.")
    if not _is(naming, "name", "default"):
        raise StrangeHeader("has chunks whose names are not known.")
    codecs, pieces = content.get("codecs"), None
    match codecs:
        case [{"name": "sharding_indexed"} as sharding]:
            within = _settings(sharding)
            pieces, codecs = header.shape(within.get("chunk_shape")), within.get("codecs")
            if not _is_plain_index(within):
                raise StrangeHeader("has an index of pieces that Orbax does not write.")
    return ZarrArray(
        place=place,
        driver="zarr3",
        info=info,
        chunks=header.shape(_settings(grid).get("chunk_shape")),
        pieces=pieces,
        compressed=_is_compressed(codecs),
        before=("c",),
        separator=_separator(_settings(naming).get("separator", "/")),
    )


def _is_compressed(codecs: object) -> bool:
    match codecs:
        case [{"name": "bytes"} as order, *rest] if _is_little(order):
            match rest:
                case []:
                    return False
                case [{"name": "zstd"}]:
                    return True
    raise StrangeHeader("is compressed in a way that is not read here.")


def _is_plain_index(sharding: Mapping[str, object]) -> bool:
    if sharding.get("index_location", "end") != "end":
        return False
    match sharding.get("index_codecs"):
        case [{"name": "bytes"} as order, {"name": "crc32c"}]:
            return _is_little(order)
    return False


def _is_little(order: object) -> bool:
    return _settings(order).get("endian", "little") == "little"


def _settings(codec: object) -> Mapping[str, object]:
    found = codec.get("configuration") if isinstance(codec, dict) else None
    return found if isinstance(found, dict) else {}


def _is(value: object, key: str, expected: str) -> bool:
    return isinstance(value, dict) and value.get(key) == expected


def _separator(found: object) -> str:
    if found not in (".", "/"):
        raise StrangeHeader("has chunks whose names are not known.")
    return str(found)


def _fits(chunk: int, axis: int) -> bool:
    return 0 < chunk <= max(axis, 1)


def _divide(pieces: tuple[int, ...], chunks: tuple[int, ...]) -> bool:
    if len(pieces) != len(chunks):
        return False
    return all(p and c % p == 0 for p, c in zip(pieces, chunks, strict=True))


def _quotient(axis: int, chunk: int) -> int:
    return -(-axis // chunk)
