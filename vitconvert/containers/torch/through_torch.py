"""torch checkpoints through torch: the legacy format, and zip archives out of the ordinary.

torch's restricted unpickler reads them (`weights_only=True`, safe since torch 2.10). It is also
allowed `argparse.Namespace`, in which Meta's training checkpoints keep their arguments, and gets
stand-ins for the usual values beside weights (`STAND_INS`). A file that asks for anything else is
refused, and the message names what it asks for.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers.container import ITEM_SIZE, Container, TensorInfo
from vitconvert.containers.torch.unwrapping import STAND_INS, unwrap
from vitconvert.containers.zip_archive import Member
from vitconvert.errors import CorruptFile, UnsafeFile

if TYPE_CHECKING:
    import torch

# What FSDP keeps a part of a tensor in.
_DTENSOR = "torch.distributed.tensor.DTensor"
_SHARDED = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"

# What torch raises for damaged pickles; the tests have many of them.
_UNPICKLING_FAILURES = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    OSError,
    struct.error,
)


def open_through_torch(
    path: Path, members: Mapping[str, Member], *, prefer: tuple[str, ...] = ()
) -> Container:
    """Read a checkpoint that torch.save wrote since 1.6; its storages stay on disk.

    Raises:
        CorruptFile: The pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    storages = storage_members(members)
    # torch maps storages wherever their members begin: from a deflated archive it would hand
    # out compressed bytes as numbers. Reading such an archive copies it instead.
    mapped = mappable(storages)
    loaded = _load(path, mmap=mapped)
    container = _container(path, loaded, prefer)
    # A mapped storage is as long as the pickle says, whatever the archive has.
    sizes = {member.size for member in storages}
    for name in container.manifest if mapped else ():
        if (size := container.read(name).untyped_storage().nbytes()) not in sizes:
            raise CorruptFile(
                f"{name!r} does not have the size that the pickle declares.",
                evidence={"file": path, "declared": f"{size:,} bytes"},
                hint="download it again.",
            )
    return container


def storage_members(members: Mapping[str, Member]) -> list[Member]:
    """The members that hold numbers."""
    return [member for member in members.values() if "/data/" in member.name]


def mappable(storages: list[Member]) -> bool:
    """Whether all numbers can be read where they lie, without a copy."""
    return all(member.stored and member.offset % 8 == 0 for member in storages)


def open_legacy(path: Path, *, prefer: tuple[str, ...] = ()) -> Container:
    """Read a checkpoint in the format that torch.save wrote before 1.6, into memory.

    Raises:
        CorruptFile: The pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    return _container(path, _load(path, mmap=False), prefer)


def _load(path: Path, *, mmap: bool) -> object:
    import argparse

    import torch

    stand_ins = [(made, name) for name, made in STAND_INS.items()]
    with torch.serialization.safe_globals([argparse.Namespace, *stand_ins]):
        try:
            with warnings.catch_warnings(action="ignore"):  # about what fails anyway
                return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        except _UNPICKLING_FAILURES as error:
            if classes := _refused_classes(path, str(error)):
                raise _unsafe(path, classes) from error
            raise CorruptFile(
                "The file begins as a torch checkpoint, but cannot be unpickled.",
                evidence={"file": path, "reason": _reason(error)},
                meaning="It is truncated or changed, or torch.save did not write it.",
                hint="download it again.",
            ) from error


def _refused_classes(path: Path, message: str) -> list[str]:
    """The classes that the restricted unpickler would not load, sorted."""
    import torch

    named = re.findall(r"GLOBAL (\S+) (?:was not|whose module)", message)
    if "to load DTensors" in message:  # which torch reads where their module is imported
        named = [_DTENSOR]
    if not named:
        return []
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)) or named
    except _UNPICKLING_FAILURES:
        return named  # the legacy format: torch lists the globals of zip archives only


def _unsafe(path: Path, classes: list[str]) -> UnsafeFile:
    meaning = "Unpickling them could run any code, so nothing was loaded."
    hint = (
        "where you trust the file, load it with the program that wrote it and save the tensors "
        "alone: torch.save(model.state_dict(), path)."
    )
    if any(name in (_DTENSOR, _SHARDED) for name in classes):
        meaning = (
            "Each process of a training run wrote such a file, with its own part of each tensor."
        )
        hint = (
            "gather the tensors before they are saved, with torch.distributed.checkpoint."
            "state_dict.get_model_state_dict and its option full_state_dict=True."
        )
    elif any(name.startswith("torch.nn.modules.") for name in classes):
        meaning = f"The file holds modules, as torch.save(model, path) writes them. {meaning}"
    return UnsafeFile(
        "The pickle asks for classes that are not plain data.",
        evidence={"file": path, "classes": ", ".join(classes)},
        meaning=meaning,
        hint=hint,
    )


def _reason(error: BaseException) -> str:
    # torch wraps what its unpickler says in advice to load the file unsafely.
    said = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    return said.splitlines()[0][:160] if said else type(error).__name__


def _container(path: Path, loaded: object, prefer: tuple[str, ...]) -> Container:
    found = unwrap(path, loaded, prefer)
    tensors = {name: _plain(path, name, tensor) for name, tensor in found.tensors.items()}
    return Container(
        path=path,
        files=(path,),
        format="torch",
        manifest={name: _info(path, name, tensor) for name, tensor in tensors.items()},
        wrapper=found.wrapper,
        extras=found.extras,
        notes=found.notes,
        reader=tensors.__getitem__,
        release=tensors.clear,
    )


def _plain(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gradient, if it has numbers of its own."""
    import torch

    # A subclass has its numbers in its own way: those of a DTensor are one process's part.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _unsafe(path, [f"{type(tensor).__module__}.{type(tensor).__qualname__}"])
    if tensor.is_meta:
        fact = f"{name!r} is a meta tensor: a shape without numbers."
    elif tensor.layout != torch.strided or tensor.is_quantized:
        fact = f"{name!r} is stored sparse or quantised, which is not read here."
    else:
        return tensor.detach()
    raise CorruptFile(fact, evidence={"file": path})


def _info(path: Path, name: str, tensor: torch.Tensor) -> TensorInfo:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_SIZE:
        raise CorruptFile(
            f"{name!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": dtype, "known": " ".join(ITEM_SIZE)},
        )
    return TensorInfo(dtype=dtype, shape=tuple(tensor.shape))
