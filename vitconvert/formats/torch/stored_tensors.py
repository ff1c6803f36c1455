"""Tensors that lie in the records of a torch file: members of an archive, or stretches of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    Stretch,
    TensorInfo,
    tensor_from_buffer,
)
from vitconvert.formats.headers import checked_shape, shown
from vitconvert.formats.torch.pickle_reader import OddTensor, StoredTensor
from vitconvert.formats.zip_archive import FREE_INFLATION, MOST_INFLATION, Member, member_bytes

if TYPE_CHECKING:
    import torch

_MOST = 2**63  # torch counts in int64


def container_of_tensors(
    path: Path,
    described: Mapping[str, StoredTensor | OddTensor],
    members: Mapping[str, Member],
    *,
    form: str,
    wrapper: tuple[str, ...] = (),
    extras: Mapping[str, object],
    notes: tuple[str, ...] = (),
) -> Container:
    """The container of a file whose tensors a pickle describes; each must lie inside its member.

    Args:
        path: The file.
        described: The tensors by name.
        members: By the keys of storages.
        form: The name of the file's format.
        wrapper, extras, notes: As in a container.

    Raises:
        CorruptFile: A tensor reaches beyond its member, or makes no sense, or has no plain numbers.
        UnsafeFile: All together are far larger than the file.
    """
    tensors = {name: _checked(path, name, tensor, members) for name, tensor in described.items()}
    manifest = {
        name: TensorInfo(dtype=tensor.storage.dtype, shape=tensor.shape)
        for name, tensor in tensors.items()
    }
    of = {name: members[tensor.storage.key] for name, tensor in tensors.items()}
    # Names may share their numbers, and a stride of zero repeats them: what would they take in
    # memory, with members that are inflated?
    asked = sum(
        info.nbytes if of[name].stored else max(info.nbytes, of[name].size)
        for name, info in manifest.items()
    )
    size = path.stat().st_size
    limit = FREE_INFLATION + MOST_INFLATION * size
    if asked > limit:
        raise UnsafeFile(
            "The tensors are far larger than the file, of which they are views.",
            evidence={
                "file": path,
                "on disk": f"{size:,} bytes",
                "tensors": f"{asked:,} bytes",
                "limit": f"{limit:,} bytes",
            },
            meaning="A file like this is made to exhaust memory, or the disk.",
        )
    mapped = MappedFile(path)
    return Container(
        path=path,
        files=(path,),
        format=form,
        manifest=manifest,
        wrapper=wrapper,
        extras=extras,
        notes=notes,
        places={
            name: Stretch(path=path, offset=of[name].offset + _begin(tensor), strides=tensor.stride)
            for name, tensor in tensors.items()
            if of[name].stored
        },
        reader=lambda name: _read(path, mapped, tensors[name], of[name]),
        release=mapped.close,
    )


def _read(path: Path, mapped: MappedFile, tensor: StoredTensor, member: Member) -> torch.Tensor:
    """A tensor: a view on the mapped file, or on a copy of what is deflated or not aligned.

    The checksum of a deflated member is compared. What is mapped is not looked at.
    """
    length = max(_end(tensor) - tensor.offset, 0)
    seen = TensorInfo(dtype=tensor.storage.dtype, shape=(length,))
    if member.stored:
        flat = mapped.tensor(member.offset + _begin(tensor), seen)
    else:
        flat = tensor_from_buffer(bytearray(member_bytes(path, member)), _begin(tensor), seen)
    return flat.as_strided(tensor.shape, tensor.stride)


def _checked(
    path: Path, name: str, tensor: StoredTensor | OddTensor, members: Mapping[str, Member]
) -> StoredTensor:
    if isinstance(tensor, OddTensor):
        raise CorruptFile(f"{name!r} {tensor.fact}", evidence={"file": path})
    storage, steps = tensor.storage, tensor.stride
    if storage.dtype not in ITEM_SIZE:
        raise CorruptFile(
            f"{name!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": storage.dtype, "known": " ".join(ITEM_SIZE)},
        )
    checked_shape(path, name, tensor.shape)
    member = members.get(storage.key)
    counts = all(type(step) is int and 0 <= step < _MOST for step in steps)
    if not counts or len(steps) != len(tensor.shape):
        fact = f"{name!r} has a stride that does not go with its shape."
    elif member is None or member.size != storage.length * ITEM_SIZE[storage.dtype]:
        fact = f"{name!r} does not have the size that the pickle declares."
    elif not 0 <= tensor.offset < _MOST or _end(tensor) > storage.length:
        fact = f"{name!r} reaches beyond its storage."
    else:
        return tensor
    raise CorruptFile(
        fact, evidence={"file": path, "shape": shown(tensor.shape)}, hint="download it again."
    )


def _begin(tensor: StoredTensor) -> int:
    """Byte of its member at which the first element lies."""
    return tensor.offset * ITEM_SIZE[tensor.storage.dtype]


def _end(tensor: StoredTensor) -> int:
    """One past the last element that the tensor looks at."""
    if 0 in tensor.shape:
        return 0
    pairs = zip(tensor.shape, tensor.stride, strict=True)
    return tensor.offset + sum((axis - 1) * step for axis, step in pairs) + 1
