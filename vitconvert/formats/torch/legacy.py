"""Checkpoints in the format that torch.save wrote before 1.6.

The file holds five pickles: a magic number, a version, facts about the system, the checkpoint, and
the keys of its storages. Then the storages follow in that order, each as its number of elements
(eight bytes) and its elements, little-endian.

Source: `_legacy_save` and `_legacy_load` of torch/serialization.py, torch 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import ITEM_SIZE, Container
from vitconvert.formats.mapped_file import MappedFile
from vitconvert.formats.torch.pickle_reader import (
    BoundedFile,
    Global,
    Storage,
    StrangePickle,
)
from vitconvert.formats.torch.reading import CheckpointReader, container_of, refusal
from vitconvert.formats.torch.rescue import RescueReader, described, not_rescued
from vitconvert.formats.zip_archive import Member

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_MOST_PICKLES = 2**26  # bytes of all pickles; tensors take 300 each
_SIZES = {**ITEM_SIZE, "complex128": 16, "qint32": 4}  # of others, one byte


class _LegacyReader(CheckpointReader):
    def stored(self, identity: object) -> Storage:
        return _storage(self, identity)


class _LegacyRescue(RescueReader):
    def stored(self, identity: object) -> object:
        match identity:
            case ("module", Global() as kind, *_):  # with the source of its class, which is text
                return kind
        return _storage(self, identity)


def _storage(reader: CheckpointReader, identity: object) -> Storage:
    match identity:
        # The last was used for views on storages, before torch 0.4.
        case ("storage", Global() as kind, str(key), str(), int(length), None):
            return reader.storage(kind, key, length)
    raise StrangePickle("something outside the pickle that is no storage")


def open_legacy(path: Path, *, prefer: tuple[str, ...] = (), rescue: bool = False) -> Container:
    """Read a checkpoint that torch.save wrote before 1.6; its storages stay on disk.

    The arguments are those of `open_checkpoint`.

    Raises:
        CorruptFile: The file is truncated, or a pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    begin = 0
    with path.open("rb") as file:
        pickles = cast(IO[bytes], BoundedFile(file, _MOST_PICKLES))
        reader: CheckpointReader = _LegacyRescue() if rescue else _LegacyReader()
        try:
            _check_preamble(pickles)
            begin = file.tell()
            value, notes = described(reader, pickles)
            keys = CheckpointReader().read(pickles)
        except StrangePickle as error:
            if rescue:
                raise not_rescued(path, error) from error
            file.seek(begin)
            raise refusal(path, cast(IO[bytes], BoundedFile(file, _MOST_PICKLES)), error) from error
        place = file.tell()
    mapped = MappedFile(path)
    members = _members(path, mapped, reader.storages, keys, place)
    container = container_of(path, mapped, value, members, prefer)
    return replace(container, notes=(*container.notes, *notes))


def _check_preamble(pickles: IO[bytes]) -> None:
    magic, version, _ = (CheckpointReader().read(pickles) for _ in range(3))
    if (magic, version) != (_MAGIC, _VERSION):
        raise StrangePickle("another magic number or version than torch's")


def _members(
    path: Path, mapped: MappedFile, storages: Mapping[str, Storage], keys: Any, place: int
) -> dict[str, Member]:
    """Where the storages lie, which must be those of the pickle, each once."""
    named = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not named or sorted(keys) != sorted(storages):
        raise CorruptFile(
            "The storages that follow the pickle are not those that it describes.",
            evidence={"file": path, "described": len(storages)},
            hint="download it again.",
        )
    members = {}
    for key in keys:
        members[key] = _member(path, mapped, key, storages[key], place)
        place = members[key].offset + members[key].size
    return members


def _member(path: Path, mapped: MappedFile, key: str, storage: Storage, place: int) -> Member:
    """One storage, in front of which its length stands."""
    size = storage.length * _SIZES.get(storage.dtype, 1)
    length = int.from_bytes(mapped.bytes_at(place, 8), "little", signed=True)
    begin = place + 8
    if begin + size > len(mapped):
        raise CorruptFile(
            "The file is truncated.",
            evidence={
                "file": path,
                "expected": f"at least {begin + size:,} bytes",
                "found": f"{len(mapped):,} bytes",
            },
            hint="download it again.",
        )
    if length != storage.length:
        raise CorruptFile(
            f"Storage {key!r} does not have the size that the pickle declares.",
            evidence={"file": path, "declared": storage.length, "found": length},
            hint="download it again.",
        )
    return Member(name=key, size=size, crc=0, stored=True, offset=begin)
