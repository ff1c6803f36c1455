"""torch checkpoints in zip archives, as torch.save writes them since 1.6.

An ordinary one is read without torch: its pickle becomes a description, its storages are mapped.
Whatever is out of the ordinary goes through torch, which reads it or says what is wrong. Nothing
in the file is executed either way.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from vitconvert.containers.checkpoint_pickle import read_checkpoint_pickle
from vitconvert.containers.container import Container
from vitconvert.containers.mapped_file import MappedFile
from vitconvert.containers.stored_tensors import LocatedTensor, located
from vitconvert.containers.torch_file import mappable, open_through_torch, storage_members
from vitconvert.containers.torch_pickle import StrangePickle
from vitconvert.containers.unwrapping import unwrap
from vitconvert.containers.zip_directory import Member
from vitconvert.errors import CorruptFile

# What torch.save writes beside the pickle and the storages, in one or another of its versions.
_RECORDS = ("version", "byteorder", ".format_version", ".storage_alignment")


def open_torch_zip(
    path: Path, members: Mapping[str, Member], *, prefer: tuple[str, ...] = ()
) -> Container:
    """Read a checkpoint that torch.save wrote since 1.6; its storages stay on disk.

    Raises:
        CorruptFile: The pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    mapped = MappedFile(path)
    try:
        value, storages = _described(mapped, members)
        found = unwrap(path, value, prefer)
        tensors: dict[str, LocatedTensor] = {
            name: located(path, name, tensor, storages.get(tensor.storage.key))
            for name, tensor in found.tensors.items()
        }
    except (StrangePickle, CorruptFile):
        return open_through_torch(path, members, prefer=prefer)
    return Container(
        path=path,
        files=(path,),
        format="torch",
        manifest={name: tensor.info for name, tensor in tensors.items()},
        wrapper=found.wrapper,
        extras=found.extras,
        places={name: tensor.place(path) for name, tensor in tensors.items()},
        reader=lambda name: tensors[name].read(path, mapped),
        release=mapped.close,
    )


def _described(
    mapped: MappedFile, members: Mapping[str, Member]
) -> tuple[object, dict[str, Member]]:
    """What an ordinary checkpoint holds, and its storages by their keys."""
    archive = next(iter(members)).partition("/")[0] + "/"  # torch takes the first member's folder
    records = {
        name: _bytes_of(mapped, member)
        for name in _RECORDS
        if (member := members.get(archive + name))
    }
    ordinary = records.get("version") == b"3\n" and records.get("byteorder", b"little") == b"little"
    pickled = members.get(archive + "data.pkl")
    if not ordinary or pickled is None or not mappable(storage_members(members)):
        raise StrangePickle("an archive that torch.save does not write")
    prefix = archive + "data/"
    storages = {
        name.removeprefix(prefix): member
        for name, member in members.items()
        if name.startswith(prefix)
    }
    return read_checkpoint_pickle(_bytes_of(mapped, pickled)), storages


def _bytes_of(mapped: MappedFile, member: Member) -> bytes:
    data = mapped.bytes_at(member.offset, member.size)
    if not member.stored or zlib.crc32(data) != member.crc:
        raise StrangePickle(f"{member.name} is deflated or damaged")
    return data
