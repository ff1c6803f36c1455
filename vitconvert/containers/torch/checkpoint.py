"""Checkpoints in zip archives, as torch.save writes them since 1.6.

An ordinary one is read without torch: its pickle becomes a description, its storages are mapped.
The reader of pickles knows what state dicts and the usual values beside them (`STAND_INS`) are
made of. Unusual ones go through torch, which reads them or says what is wrong. Nothing in the file
is executed either way.

Source: torch/_utils.py and torch/_weights_only_unpickler.py, torch 1.6 to 2.15.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitconvert.containers.container import ITEM_SIZE, Container
from vitconvert.containers.mapped_file import MappedFile
from vitconvert.containers.torch.pickle_reader import (
    HOOKS,
    STORAGES,
    TENSOR,
    UNTYPED_STORAGE,
    UNTYPED_TENSOR,
    Global,
    PickleReader,
    Storage,
    StoredTensor,
    StrangePickle,
)
from vitconvert.containers.torch.stored_tensors import LocatedTensor, located
from vitconvert.containers.torch.through_torch import mappable, open_through_torch, storage_members
from vitconvert.containers.torch.unwrapping import STAND_INS, StandIn, unwrap
from vitconvert.containers.zip_archive import Member
from vitconvert.errors import CorruptFile

# What torch.save writes beside the pickle and the storages, in one or another of its versions.
_RECORDS = ("version", "byteorder", ".format_version", ".storage_alignment")
_PARAMETER = "torch._utils._rebuild_parameter"
_SET = "builtins.set"
_BYTES = "_codecs.encode"  # as protocol 2 spells them
_NAMESPACE = "argparse.Namespace"  # Meta's training checkpoints keep their arguments in one
_DTYPES: Mapping[str, str] = {f"torch.{dtype}": dtype for dtype in ITEM_SIZE}
_KNOWN = (
    TENSOR,
    UNTYPED_TENSOR,
    _PARAMETER,
    HOOKS,
    _SET,
    _BYTES,
    _NAMESPACE,
    *STAND_INS,
    UNTYPED_STORAGE,
    *STORAGES,
    *_DTYPES,
)


class Namespace:
    """An `argparse.Namespace`, of which only the attributes matter."""


class _CheckpointReader(PickleReader):
    def known(self, name: str) -> Global:
        if name.startswith("__builtin__."):  # as protocol 2 spells it
            name = name.replace("__builtin__", "builtins", 1)
        if name not in _KNOWN:
            raise StrangePickle(f"{name} is not known here")
        return Global(name)

    def described(self, called: Global, arguments: tuple[Any, ...]) -> object:
        match called.name, arguments:
            case name, (StoredTensor() as tensor, bool(), dict()) if name == _PARAMETER:
                return tensor
            case name, (*typed, Global(dtype)) if name == UNTYPED_TENSOR and dtype in _DTYPES:
                untyped = super().described(Global(TENSOR), tuple(typed))
                assert isinstance(untyped, StoredTensor)
                return replace(untyped, storage=_viewed(untyped.storage, _DTYPES[dtype]))
            case name, (list(items),) if name == _SET:
                return set(items)
            case name, (str(text), "latin1") if name == _BYTES:
                return text.encode("latin1")
            case name, _ if name in STAND_INS:
                return STAND_INS[name](*arguments)
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        if named.name != _NAMESPACE:
            raise StrangePickle(f"torch.save does not make {named.name} so")
        return Namespace()

    def set_attributes(self, made: object, attributes: object) -> None:
        match made, attributes:
            case Namespace(), dict():
                vars(made).update(attributes)
            case (OrderedDict(), dict()) | (StandIn(), _):
                pass  # the versions of modules, and what numpy keeps in an array
            case _:
                raise StrangePickle(f"torch.save sets no attributes of a {type(made).__name__}")


def _viewed(storage: Storage, dtype: str) -> Storage:
    """The bytes of an untyped storage as numbers."""
    length, rest = divmod(storage.length, ITEM_SIZE[dtype])
    if storage.dtype != "uint8" or rest:
        raise StrangePickle("an untyped storage that is no whole number of elements")
    return replace(storage, dtype=dtype, length=length)


def open_checkpoint(
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
        notes=found.notes,
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
    return _CheckpointReader().read(_bytes_of(mapped, pickled)), storages


def _bytes_of(mapped: MappedFile, member: Member) -> bytes:
    data = mapped.bytes_at(member.offset, member.size)
    if not member.stored or zlib.crc32(data) != member.crc:
        raise StrangePickle(f"{member.name} is deflated or damaged")
    return data
