"""Checkpoints in zip archives, as torch.save writes them since 1.6.

They are read without torch: the pickle becomes a description, storages are mapped. Nothing in the
file is executed. torch compares no checksums of its archives; here those of the pickle and of
whatever is deflated are compared, while storages that are mapped are not looked at.

Source: torch/serialization.py and caffe2/serialize/inline_container.cc, torch 1.6 to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import Container
from vitconvert.formats.mapped_file import MappedFile
from vitconvert.formats.torch.pickle_reader import StrangePickle
from vitconvert.formats.torch.reading import CheckpointReader, container_of, refusal
from vitconvert.formats.torch.rescue import RescueReader, described, not_rescued
from vitconvert.formats.zip_archive import Member, member_bytes, zip_members

# What torch.save writes beside the pickle and the storages, in one or another of its versions.
_RECORDS = (
    *("version", "byteorder", ".format_version", ".storage_alignment"),
    ".data/serialization_id",
)
_VERSIONS = [b"%d\n" % number for number in range(1, 11)]  # that torch reads; it writes 3


def open_checkpoint(
    path: Path,
    members: Mapping[str, Member],
    *,
    prefer: tuple[str, ...] = (),
    rescue: bool = False,
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
    found, notes = _described(path, members, rescue=rescue)
    container = container_of(path, MappedFile(path), found.value, found.storages, prefer)
    return replace(container, notes=(*container.notes, *notes))


@dataclass(frozen=True, kw_only=True)
class Described:
    """What the pickle of an archive holds, and where its storages lie, by their keys."""

    value: object
    storages: Mapping[str, Member]


def read_record(path: Path, stretch: range) -> Described:
    """Describe what torch.save wrote into a stretch of a file.

    Raises:
        CorruptFile: The archive there is damaged.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    return _described(path, zip_members(path, stretch), rescue=False)[0]


def _described(
    path: Path, members: Mapping[str, Member], *, rescue: bool
) -> tuple[Described, tuple[str, ...]]:
    # torch takes the first member's folder
    folder = next(iter(members), "").partition("/")[0] + "/"
    _check_records(path, folder, members)
    pickled = member_bytes(path, members[folder + "data.pkl"])
    reader = RescueReader() if rescue else CheckpointReader()
    try:
        value, notes = described(reader, pickled)
    except StrangePickle as error:
        refused = not_rescued(path, error) if rescue else refusal(path, pickled, error)
        raise refused from error
    prefix = folder + "data/"
    storages = {
        name.removeprefix(prefix): member
        for name, member in members.items()
        if name.startswith(prefix)
    }
    return Described(value=value, storages=storages), notes


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
