"""TorchScript archives: a program with weights, of which only the weights are read.

OpenAI published CLIP so. The archive is a zip file: `data.pkl` describes the modules, each
storage is a member, and the program under `code/` is never opened.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers.container import ITEM_SIZE, Container, Stretch, TensorInfo
from vitconvert.containers.mapped_file import MappedFile, checked_shape, tensor_from_buffer
from vitconvert.containers.torchscript_pickle import StoredTensor, read_pickle
from vitconvert.containers.zip_directory import BROKEN_ZIP, Member
from vitconvert.errors import CorruptFile

if TYPE_CHECKING:
    import torch

# What nn.Module keeps beside parameters, buffers and the attributes of its author.
_FLAGS = ("training", "_is_full_backward_hook")
# No honest model nests deeper or has more attributes, and a walk must end.
_DEEPEST = 32
_MOST = 10**6


def open_torchscript(path: Path, members: Mapping[str, Member]) -> Container:
    """Read the names of all tensors of a TorchScript archive and map the file.

    Every tensor that is an attribute of a module is in the manifest, by its path: what the state
    dict of the loaded program has, and attributes that are neither parameter nor buffer.
    Numbers and texts are in `extras`. Constants of the program are not read.

    Raises:
        CorruptFile: The pickle is damaged, contradicts the archive or holds no tensors.
        UnsafeFile: The pickle asks for classes that are neither modules nor tensors.
    """
    pickled = next(name for name in members if name.endswith("/data.pkl"))
    archive = pickled.removesuffix("data.pkl")
    _refuse_big_endian(path, members.get(archive + "byteorder"))
    tensors: dict[str, tuple[Member, StoredTensor]] = {}
    extras: dict[str, object] = {}
    for name, value in _leaves(path, read_pickle(path, _member_bytes(path, members[pickled]))):
        if name in tensors or name in extras:
            raise CorruptFile(f"{name!r} appears twice.", evidence={"file": path})
        if isinstance(value, StoredTensor):
            member = members.get(f"{archive}data/{value.storage.key}")
            tensors[name] = _located(path, name, value, member)
        elif value is not None and name.rpartition(".")[2] not in _FLAGS:
            extras[name] = _plain(value)
    if not tensors:
        raise _no_tensors(path, members)
    mapped = MappedFile(path)
    return Container(
        path=path,
        files=(path,),
        format="torchscript",
        manifest={
            name: TensorInfo(dtype=tensor.storage.dtype, shape=tensor.shape)
            for name, (_, tensor) in tensors.items()
        },
        extras=extras,
        places={
            name: _place(path, member, tensor)
            for name, (member, tensor) in tensors.items()
            if member.stored
        },
        reader=lambda name: _read(path, mapped, *tensors[name]),
        release=mapped.close,
    )


def _member_bytes(path: Path, member: Member) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(member.name)
    except BROKEN_ZIP as error:
        raise CorruptFile(
            f"{member.name!r} cannot be read from the archive.",
            evidence={"file": path, "reason": error},
            hint="download it again.",
        ) from error


def _leaves(path: Path, top: object) -> Iterator[tuple[str, object]]:
    """Every attribute of the modules, by its path; a module may stand in several places."""
    pending: list[tuple[tuple[str, ...], object]] = [((), top)]
    for _ in range(_MOST):
        if not pending:
            return
        keys, value = pending.pop()
        if not isinstance(value, dict):
            yield ".".join(keys), value
        elif len(keys) < _DEEPEST:
            pending += [((*keys, str(key)), inner) for key, inner in reversed(value.items())]
        else:
            break
    raise CorruptFile(
        "The modules of this TorchScript archive nest in a circle, or too deeply.",
        evidence={"file": path, "at": ".".join(keys)[:80]},
    )


def _located(
    path: Path, name: str, tensor: StoredTensor, member: Member | None
) -> tuple[Member, StoredTensor]:
    """The tensor and its member, if it lies inside and the member is as long as declared."""
    checked_shape(path, name, tensor.shape)
    storage = tensor.storage
    steps = tensor.stride
    if len(steps) != len(tensor.shape) or not all(type(s) is int and s >= 0 for s in steps):
        fact = f"{name!r} has a stride that does not go with its shape."
    elif member is None or member.size != storage.length * ITEM_SIZE[storage.dtype]:
        fact = f"{name!r} does not have the size that the pickle declares."
    elif tensor.offset < 0 or _end(tensor) > storage.length:
        fact = f"{name!r} reaches beyond its storage."
    elif prod(tensor.shape) > storage.length:
        fact = f"{name!r} is larger than its storage."
    else:
        return member, tensor
    raise CorruptFile(
        fact, evidence={"file": path, "shape": list(tensor.shape)}, hint="download it again."
    )


def _end(tensor: StoredTensor) -> int:
    """One past the last element that the tensor looks at."""
    if 0 in tensor.shape:
        return tensor.offset
    pairs = zip(tensor.shape, tensor.stride, strict=True)
    return tensor.offset + sum((axis - 1) * step for axis, step in pairs) + 1


def _place(path: Path, member: Member, tensor: StoredTensor) -> Stretch:
    offset = member.offset + tensor.offset * ITEM_SIZE[tensor.storage.dtype]
    return Stretch(path=path, offset=offset, strides=tensor.stride)


def _read(path: Path, mapped: MappedFile, member: Member, tensor: StoredTensor) -> torch.Tensor:
    whole = TensorInfo(dtype=tensor.storage.dtype, shape=(tensor.storage.length,))
    if member.stored:
        flat = mapped.tensor(member.offset, whole)
    else:
        flat = tensor_from_buffer(bytearray(_member_bytes(path, member)), 0, whole)
    return flat.as_strided(tensor.shape, tensor.stride, tensor.offset)


def _refuse_big_endian(path: Path, member: Member | None) -> None:
    if member and _member_bytes(path, member) != b"little":
        raise CorruptFile(
            "The numbers of this archive are big-endian, which is not read here.",
            evidence={"file": path},
        )


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(
        isinstance(v, bool | int | float | str) for v in value
    ):
        return list(value)
    return type(value).__name__


def _no_tensors(path: Path, members: Mapping[str, Member]) -> CorruptFile:
    constants = sum("/constants/" in name for name in members)
    return CorruptFile(
        "The TorchScript archive holds no named tensors.",
        evidence={"file": path, "constants": constants},
        meaning="The weights of a frozen program are constants, which have lost their names."
        if constants
        else None,
    )
