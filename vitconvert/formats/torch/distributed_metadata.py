"""What the `.metadata` of a distributed checkpoint says: which tensors, in which chunks, and where.

It is a pickle of a few data classes, in the protocol of Python's day; they become descriptions here
and nothing is called.

Source: torch/distributed/checkpoint/metadata.py, filesystem.py and planner_helpers.py, torch 2.0 to
2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.grids import fill
from vitconvert.formats.torch.pickle_reader import (
    Global,
    NewerPickleReader,
    StrangePickle,
)
from vitconvert.formats.torch.reading import is_dtype
from vitconvert.formats.torch.unwrapping import STAND_INS

_METADATA = "torch.distributed.checkpoint.metadata."
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata."  # before torch 2.3
_TENSOR, _CHUNK, _BYTES = (
    _METADATA + name
    for name in ("TensorStorageMetadata", "ChunkStorageMetadata", "BytesStorageMetadata")
)
_INDEX = _METADATA + "MetadataIndex"
_PLACE = "torch.distributed.checkpoint.filesystem._StorageInfo"
_PROPERTIES = (_METADATA + "TensorProperties", _SHARDED + "TensorProperties")
_ENCODINGS = (_METADATA + "_MEM_FORMAT_ENCODING", _SHARDED + "MEM_FORMAT_ENCODING")
_SIZE = "torch.Size"
_MADE = {_METADATA + "Metadata", _METADATA + "StorageMeta", _TENSOR, _CHUNK, _BYTES, _INDEX}
_MADE |= {_PLACE, *_PROPERTIES}
_LONGEST = 2**28  # bytes
_MOST_OPCODES = 10_000_000  # a chunk takes 70, and there is one of each tensor for each process
_MOST_CHUNKS = 1_000_000
_MOST_AXES = 32
_LONGEST_KEY = 10_000
_DEEPEST = 32  # keys in one another; a training checkpoint has 5


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where a torch archive lies among the files of the directory."""

    file: str
    offset: int
    length: int

    @property
    def stretch(self) -> range:
        """Its bytes."""
        return range(self.offset, self.offset + self.length)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a tensor: where it begins along each axis, how long it is, and its archive."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    record: Record


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """A tensor; chunks without elements are left out."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A distributed checkpoint, by the full names that it gives.

    Attributes:
        tensors: By name.
        others: The archive of each value that is no tensor.
        keys: Where each stood in the nested dictionary that was saved.
    """

    tensors: Mapping[str, Sharded]
    others: Mapping[str, Record]
    keys: Mapping[str, tuple[str, ...]]


@dataclass(eq=False)
class _Made:
    """An object of one of the data classes."""

    name: str
    state: Any = field(default_factory=dict)

    def get(self, attribute: str) -> Any:
        return self.state.get(attribute) if isinstance(self.state, dict) else None


class _Reader(NewerPickleReader):
    most_opcodes = _MOST_OPCODES

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def known(self, name: str) -> Global:
        if name in {*_MADE, *_ENCODINGS, _SIZE, *STAND_INS} or is_dtype(name):
            return Global(name)
        raise UnsafeFile(
            "The metadata of this distributed checkpoint asks for a class that is not plain data.",
            evidence={"file": self.path, "class": name[:160]},
            meaning="Unpickling it could run any code, so nothing was loaded.",
        )

    def described(self, called: Global, arguments: tuple[Any, ...]) -> object:
        match called.name, arguments:
            case name, (tuple(sizes),) if name == _SIZE:
                return sizes
            case name, _ if name in _ENCODINGS:
                return None
            case name, _ if name in STAND_INS:
                return STAND_INS[name](*arguments)
        raise StrangePickle(f"torch calls no {called.name} here")

    def made(self, named: Global) -> object:
        if named.name not in _MADE:
            raise StrangePickle(f"torch makes no {named.name} here")
        return _Made(named.name)

    def set_attributes(self, made: object, attributes: object) -> None:
        if isinstance(made, _Made):
            made.state = attributes


def read_metadata(path: Path) -> Metadata:
    """Read a `.metadata` file.

    Raises:
        CorruptFile: It is damaged, or contradicts itself.
        UnsafeFile: It asks for classes that torch does not write there.
    """
    try:
        if path.stat().st_size > _LONGEST:
            raise StrangePickle("it is longer than any metadata")
        return _metadata(_Reader(path).read(path.read_bytes()))
    except StrangePickle as error:
        raise CorruptFile(
            "The metadata of this distributed checkpoint cannot be read.",
            evidence={"file": path, "reason": str(error)[:160]},
            hint="copy or download the directory again.",
        ) from error


def _metadata(top: object) -> Metadata:
    if not isinstance(top, _Made) or top.name != _METADATA + "Metadata":
        raise StrangePickle("it holds no Metadata")
    listed = top.get("state_dict_metadata")
    places = _places(top.get("storage_data"))
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed):
        raise StrangePickle("it lists no tensors")
    # A pickle may name one list of chunks as that of many tensors.
    if sum(len(chunks) for chunks in map(_chunks, listed.values())) > _MOST_CHUNKS:
        raise StrangePickle(f"more than {_MOST_CHUNKS:,} chunks")
    tensors: dict[str, Sharded] = {}
    others: dict[str, Record] = {}
    for name, value in listed.items():
        if isinstance(value, _Made) and value.name == _TENSOR:
            tensors[name] = _sharded(name, value, places)
        elif isinstance(value, _Made) and value.name == _BYTES:
            others[name] = _placed(places, name, None)
        else:
            raise StrangePickle(f"{name[:80]!r} is neither a tensor nor bytes")
    return Metadata(tensors=tensors, others=others, keys=_keys(listed, top.get("planner_data")))


def _chunks(value: object) -> list[object]:
    chunks = value.get("chunks") if isinstance(value, _Made) else None
    return chunks if isinstance(chunks, list) else []


def _places(stored: object) -> dict[tuple[str, object], Record]:
    """The record of each chunk, by the name of its tensor and its offsets."""
    if not isinstance(stored, dict):
        raise StrangePickle("it does not say where tensors lie")
    found: dict[tuple[str, object], Record] = {}
    for index, place in stored.items():
        if not isinstance(index, _Made) or not isinstance(place, _Made) or place.name != _PLACE:
            raise StrangePickle("it does not say where tensors lie")
        name, offsets = index.get("fqn"), index.get("offset")
        if not isinstance(name, str) or not (offsets is None or _counts(offsets)):
            raise StrangePickle("a chunk without a name and offsets")
        if (name, offsets) in found:
            raise StrangePickle(f"{name[:80]!r} has two chunks at {str(offsets)[:80]}")
        found[name, offsets] = _record(name, place)
    return found


def _record(name: str, place: _Made) -> Record:
    match place.get("relative_path"), place.get("offset"), place.get("length"):
        case str(file), int(offset), int(length) if file and _counts((offset, length)):
            if place.get("transform_descriptors"):
                raise StrangePickle(f"{name[:80]!r} is compressed, which is not read here")
            return Record(file=file, offset=offset, length=length)
    raise StrangePickle(f"{name[:80]!r} has no file, offset and length")


def _placed(places: Mapping[tuple[str, object], Record], name: str, offsets: object) -> Record:
    record = places.get((name, offsets))
    if record is None:
        raise StrangePickle(f"it does not say where {name[:80]!r} lies")
    return record


def _sharded(name: str, value: _Made, places: Mapping[tuple[str, object], Record]) -> Sharded:
    properties, shape = value.get("properties"), value.get("size")
    dtype = properties.state[0] if _is_properties(properties) else None
    if not isinstance(dtype, Global) or not is_dtype(dtype.name):
        raise StrangePickle(f"{name[:80]!r} has no dtype")
    if not _counts(shape):
        raise StrangePickle(f"{name[:80]!r} has no shape")
    parts = dict(_extents(name, shape, _chunks(value)))
    if not fill(shape, parts):
        raise StrangePickle(f"the chunks of {name[:80]!r} overlap or leave gaps")
    return Sharded(
        dtype=dtype.name.removeprefix("torch."),
        shape=shape,
        chunks=tuple(
            Chunk(offsets=offsets, sizes=sizes, record=_placed(places, name, offsets))
            for offsets, sizes in parts.items()
        ),
    )


def _is_properties(value: object) -> bool:
    if not isinstance(value, _Made) or value.name not in _PROPERTIES:
        return False
    return isinstance(value.state, tuple) and len(value.state) > 0


def _extents(
    name: str, shape: tuple[int, ...], chunks: list[object]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    seen = set()
    for chunk in chunks:
        extent = (chunk.get("offsets"), chunk.get("sizes")) if isinstance(chunk, _Made) else ()
        if not all(_counts(part) and len(part) == len(shape) for part in extent) or not extent:
            raise StrangePickle(f"{name[:80]!r} has a chunk without offsets and sizes")
        offsets, sizes = extent
        if 0 in sizes:  # of processes that had no part of it; several may stand in one place
            continue
        if offsets in seen:
            raise StrangePickle(f"{name[:80]!r} has two chunks at {list(offsets)}")
        seen.add(offsets)
        yield offsets, sizes


def _keys(names: Mapping[str, object], planned: object) -> dict[str, tuple[str, ...]]:
    paths = planned if isinstance(planned, dict) else {}
    found = {}
    for name in names:
        keys = paths.get(name, (name,))
        if not isinstance(keys, tuple | list) or not 0 < len(keys) <= _DEEPEST:
            raise StrangePickle(f"{name[:80]!r} has no place in the dictionary")
        if not all(_is_short(key) for key in keys):
            raise StrangePickle(f"{name[:80]!r} has keys that are neither text nor numbers")
        found[name] = tuple(map(str, keys))
    return found


def _is_short(key: object) -> bool:
    if isinstance(key, str):
        return len(key) <= _LONGEST_KEY
    return type(key) is int and 0 <= key < 2**63


def _counts(values: object) -> bool:
    if not isinstance(values, tuple) or len(values) > _MOST_AXES:
        return False
    return all(type(value) is int and 0 <= value < 2**63 for value in values)
