"""Checkpoints that torch.save wrote: zip archives since 1.6, legacy files before.

They are read without torch: the pickle becomes a description, storages are mapped. Nothing in the
file is executed.

torch compares no checksums of its archives; here those of the pickle and of whatever is deflated
are compared, while storages that are mapped are not looked at.

A legacy file holds five pickles: a magic number, a version, facts about the system, the checkpoint,
and the keys of its storages. Then the storages follow in that order, each as its number of elements
(eight bytes) and its elements, little-endian.

Source: torch/serialization.py (`_legacy_save` and `_legacy_load`) and
caffe2/serialize/inline_container.cc, torch 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import ITEM_SIZE, Container, MappedFile
from vitconvert.formats.headers import truncated
from vitconvert.formats.torch.pickle_reader import BoundedFile, Storage, StrangePickle
from vitconvert.formats.torch.reading import CheckpointReader, container_of, refusal
from vitconvert.formats.torch.rescue import RescueReader, described, not_rescued
from vitconvert.formats.zip_archive import Member, member_bytes

# What torch.save writes beside the pickle and the storages, in one or another of its versions.
_RECORDS = (
    *("version", "byteorder", ".format_version", ".storage_alignment"),
    ".data/serialization_id",
)
_VERSIONS = [b"%d\n" % number for number in range(1, 11)]  # that torch reads; it writes 3
_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_MOST_PICKLES = 2**26  # bytes of all pickles; tensors take 300 each
_SIZES = {**ITEM_SIZE, "complex128": 16, "qint32": 4}  # of others, one byte


def open_archive(
    path: Path, members: Mapping[str, Member], prefer: tuple[str, ...], *, rescue: bool
) -> Container:
    """Read a checkpoint that torch.save wrote since 1.6; its storages stay on disk.

    Args:
        path, members: The archive.
        prefer: Wrapper keys to try before the usual ones.
        rescue: Take the tensors of whole objects, too.

    Raises:
        CorruptFile: The pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    folder = next(iter(members)).partition("/")[0] + "/"  # as torch, which takes the first's
    _check_records(path, folder, members)
    pickled = member_bytes(path, members[folder + "data.pkl"])
    try:
        value, notes = described(RescueReader() if rescue else CheckpointReader(), pickled)
    except StrangePickle as error:
        refused = not_rescued(path, error) if rescue else refusal(path, pickled, error)
        raise refused from error
    prefix = folder + "data/"
    storages = {
        name.removeprefix(prefix): member
        for name, member in members.items()
        if name.startswith(prefix)
    }
    container = container_of(path, value, storages, prefer)
    return replace(container, notes=(*container.notes, *notes))


def _check_records(path: Path, folder: str, members: Mapping[str, Member]) -> None:
    """Make sure that this is an archive of the kind that is read here."""
    records = {
        name: member_bytes(path, members[folder + name])
        for name in _RECORDS
        if folder + name in members
    }
    numbers = [data for name, data in records.items() if name != "byteorder"]
    strangers = [name for name in members if not name.startswith(folder)]
    folded = {name.lower() for name in members}  # torch does not tell capitals from others
    if strangers:
        fact = "The archive holds members outside the folder of its checkpoint."
    elif records.get("version") not in _VERSIONS or folder + "data.pkl" not in members:
        fact = "The archive has no data.pkl and no version that torch reads."
    elif not all(number.strip().isdigit() for number in numbers):
        fact = "Records of the archive that are whole numbers elsewhere are none here."
    elif records.get("byteorder", b"little") != b"little":
        fact = "The numbers of this archive are big-endian, which is not read here."
    elif len(folded) < len(members):
        fact = "The archive holds two members whose names differ in capitals alone."
    else:
        return
    raise CorruptFile(
        fact,
        evidence={
            "file": path,
            "members": ", ".join([*strangers, *members])[:160],
            **{name: repr(data[:20]) for name, data in records.items()},
        },
    )


def open_legacy(path: Path, prefer: tuple[str, ...], *, rescue: bool) -> Container:
    """Read a checkpoint that torch.save wrote before 1.6; its storages stay on disk.

    The arguments are those of `open_archive`.

    Raises:
        CorruptFile: The file is truncated, or a pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    begin = 0
    with path.open("rb") as file:
        pickles = cast(IO[bytes], BoundedFile(file, _MOST_PICKLES))
        reader = RescueReader() if rescue else CheckpointReader()
        try:
            if [CheckpointReader().read(pickles) for _ in range(3)][:2] != [_MAGIC, _VERSION]:
                raise StrangePickle("another magic number or version than torch's")
            begin = file.tell()
            value, notes = described(reader, pickles)
            keys = CheckpointReader().read(pickles)
        except StrangePickle as error:
            if rescue:
                raise not_rescued(path, error) from error
            file.seek(begin)
            raise refusal(path, cast(IO[bytes], BoundedFile(file, _MOST_PICKLES)), error) from error
        place = file.tell()
    members = _members(path, MappedFile(path), reader.storages, keys, place)
    container = container_of(path, value, members, prefer)
    return replace(container, notes=(*container.notes, *notes))


def _members(
    path: Path, mapped: MappedFile, storages: Mapping[str, Storage], keys: object, place: int
) -> dict[str, Member]:
    """Where the storages lie, which must be those of the pickle, each once."""
    if (
        not isinstance(keys, list)
        or not all(isinstance(key, str) for key in keys)
        or sorted(keys) != sorted(storages)
    ):
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
        raise truncated(path, begin + size, len(mapped), least="at least ")
    if length != storage.length:
        raise CorruptFile(
            f"Storage {key!r} does not have the size that the pickle declares.",
            evidence={"file": path, "declared": storage.length, "found": length},
            hint="download it again.",
        )
    return Member(name=key, size=size, crc=0, stored=True, offset=begin)
