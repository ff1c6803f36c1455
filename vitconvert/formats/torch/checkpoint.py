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

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, cast

from vitconvert.errors import UnsafeFile, VitConvertError
from vitconvert.formats.container import ITEM_SIZE, Container
from vitconvert.formats.content import bytes_of
from vitconvert.formats.format_modules import Array
from vitconvert.formats.headers import AGAIN, corrupt, truncated
from vitconvert.formats.torch.pickle_reader import BoundedFile, Storage, StrangePickle
from vitconvert.formats.torch.reading import CheckpointReader
from vitconvert.formats.torch.rescue import RescueReader
from vitconvert.formats.torch.unwrapping import container_of
from vitconvert.formats.torch.writing import write_file
from vitconvert.formats.zip_archive import Member, member_bytes

__all__ = ["EXAMPLE", "READER", "open_file", "read_plainly", "write_file"]

READER = "torch.load"
EXAMPLE = """\
import torch

state_dict = torch.load("model.pt", weights_only=True)"""

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


def open_file(
    path: Path, members: Mapping[str, Member], prefer: tuple[str, ...], rescue: bool
) -> Container:
    """Read a checkpoint; where it holds whole objects, `rescue` reads their tensors as data.

    Raises:
        CorruptFile: The file is truncated, or its pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """

    def opened(reader: CheckpointReader) -> Container:
        if members:
            return _open_archive(path, members, prefer, reader)
        return _open_legacy(path, prefer, reader)

    try:
        return opened(CheckpointReader())
    except UnsafeFile as error:
        if rescue:
            return opened(RescueReader())
        with suppress(VitConvertError), opened(RescueReader()) as rescued:
            error.rescuable = True
            error.hint = (
                "--rescue (in Python, rescue=True) takes its tensors as data "
                f"({len(rescued.manifest)} of them) and runs nothing; what the classes compute "
                "stays unknown. If you trust the file, the program that wrote it can save only "
                "the tensors: torch.save(model.state_dict(), path)."
            )
        raise


def _open_archive(
    path: Path, members: Mapping[str, Member], prefer: tuple[str, ...], reader: CheckpointReader
) -> Container:
    """Read a checkpoint that torch.save wrote since 1.6; its storages stay on disk."""
    folder = next(iter(members)).partition("/")[0] + "/"  # as torch, which takes the first's
    records = {
        name: member_bytes(path, members[folder + name])
        for name in _RECORDS
        if folder + name in members
    }
    numbers = [data for name, data in records.items() if name != "byteorder"]
    strangers = [name for name in members if not name.startswith(folder)]
    folded = {name.lower() for name in members}  # torch does not tell capitals from others
    fact = ""
    if strangers:
        fact = "The archive holds members outside the folder of its checkpoint."
    elif records.get("version") not in _VERSIONS or folder + "data.pkl" not in members:
        fact = "The archive has no data.pkl and no version that torch reads."
    elif not all(number.strip().isdigit() for number in numbers):
        fact = "Some records of the archive are not integers, as they should be."
    elif records.get("byteorder", b"little") != b"little":
        fact = "The numbers of this archive are big-endian, which is not read here."
    elif len(folded) < len(members):
        fact = "The archive holds two members whose names differ only in capitals."
    if fact:
        found = {name: repr(data[:20]) for name, data in records.items()}
        listed = ", ".join([*strangers, *members])[:160]
        raise corrupt(path, fact, members=listed, **found)
    pickled = member_bytes(path, members[folder + "data.pkl"])
    try:
        value = reader.read(pickled)
    except StrangePickle as error:
        raise reader.refusal(path, pickled, error) from error
    prefix = folder + "data/"
    storages = {
        name.removeprefix(prefix): member
        for name, member in members.items()
        if name.startswith(prefix)
    }
    container = container_of(path, value, storages, prefer)
    return replace(container, notes=(*container.notes, *reader.notes))


def _open_legacy(path: Path, prefer: tuple[str, ...], reader: CheckpointReader) -> Container:
    """Read a checkpoint that torch.save wrote before 1.6; its storages stay on disk."""
    begin = 0
    with path.open("rb") as file:
        pickles = cast(IO[bytes], BoundedFile(file, _MOST_PICKLES))
        try:
            if [CheckpointReader().read(pickles) for _ in range(3)][:2] != [_MAGIC, _VERSION]:
                raise StrangePickle("another magic number or version than torch's")
            begin = file.tell()
            value = reader.read(pickles)
            keys = CheckpointReader().read(pickles)
        except StrangePickle as error:
            file.seek(begin)
            pickles = cast(IO[bytes], BoundedFile(file, _MOST_PICKLES))
            raise reader.refusal(path, pickles, error) from error
        members = _members(path, reader.storages, keys, file)
    container = container_of(path, value, members, prefer)
    return replace(container, notes=(*container.notes, *reader.notes))


def _members(
    path: Path, storages: Mapping[str, Storage], keys: object, file: BinaryIO
) -> dict[str, Member]:
    """Where the storages lie, which must be those of the pickle, each once, after its length.

    They follow where the file stands.
    """
    if (
        not isinstance(keys, list)
        or not all(isinstance(key, str) for key in keys)
        or sorted(keys) != sorted(storages)
    ):
        fact = "The storages that follow the pickle are not those that it describes."
        raise corrupt(path, fact, hint=AGAIN, described=len(storages))
    members, end = {}, path.stat().st_size
    for key in keys:
        declared = storages[key].length
        size = declared * _SIZES.get(storages[key].dtype, 1)
        begin = file.tell() + 8
        found = int.from_bytes(file.read(8), "little", signed=True)
        if begin + size > end:
            raise truncated(path, begin + size, end, least="at least ")
        if found != declared:
            fact = f"Storage {key!r} does not have the size that the pickle declares."
            raise corrupt(path, fact, hint=AGAIN, declared=declared, found=found)
        members[key] = Member(name=key, size=size, crc=0, stored=True, offset=begin)
        file.seek(begin + size)
    return members


def read_plainly(path: Path, wrapper: str) -> Iterator[Array]:
    """Read a checkpoint with torch."""
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for name, tensor in (loaded[wrapper] if wrapper else loaded).items():
        yield name, tuple(tensor.shape), bytes_of(tensor).tobytes()
