"""Tensors that lie in the records of a torch file: members of an archive, or stretches of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.container import ITEM_SIZE, Container, Stretch, TensorInfo
from vitconvert.formats.mapped_file import (
    MappedFile,
    checked_shape,
    shown,
    tensor_from_buffer,
)
from vitconvert.formats.torch.pickle_reader import OddTensor, StoredTensor
from vitconvert.formats.zip_archive import (
    FREE_INFLATION,
    MOST_INFLATION,
    Member,
    member_bytes,
)

if TYPE_CHECKING:
    import torch

_MOST = 2**63  # torch counts in int64


@dataclass(frozen=True, kw_only=True)
class LocatedTensor:
    """A tensor that is known to lie inside its member."""

    tensor: StoredTensor
    member: Member

    @property
    def info(self) -> TensorInfo:
        """What a manifest says of it."""
        return TensorInfo(dtype=self.tensor.storage.dtype, shape=self.tensor.shape)

    @property
    def place(self) -> int:
        """Byte of its member at which the first element lies."""
        return self.tensor.offset * ITEM_SIZE[self.tensor.storage.dtype]

    @property
    def memory(self) -> int:
        """Bytes that somebody needs who makes it contiguous."""
        if not self.member.stored:
            return max(self.info.nbytes, self.member.size)
        return self.info.nbytes

    def stretch(self, path: Path) -> Stretch:
        """Where it lies in the file, if the member is stored as it is."""
        return Stretch(
            path=path, offset=self.member.offset + self.place, strides=self.tensor.stride
        )

    def read(self, path: Path, mapped: MappedFile) -> torch.Tensor:
        """The tensor: a view on the mapped file, or on a copy of what is deflated or not aligned.

        The checksum of a deflated member is compared. What is mapped is not looked at.
        """
        length = max(_end(self.tensor) - self.tensor.offset, 0)
        seen = TensorInfo(dtype=self.tensor.storage.dtype, shape=(length,))
        if self.member.stored:
            flat = mapped.tensor(self.member.offset + self.place, seen)
        else:
            flat = tensor_from_buffer(bytearray(member_bytes(path, self.member)), self.place, seen)
        return flat.as_strided(self.tensor.shape, self.tensor.stride)


def located_tensors(
    path: Path, tensors: Mapping[str, StoredTensor | OddTensor], members: Mapping[str, Member]
) -> dict[str, LocatedTensor]:
    """Find tensors in their members, which must be as long as the pickle declares.

    Args:
        path: The file.
        tensors: By name.
        members: By the keys of storages.

    Raises:
        CorruptFile: One reaches beyond its member, or makes no sense, or has no plain numbers.
        UnsafeFile: All together are far larger than the file.
    """
    found = {name: _located(path, name, tensor, members) for name, tensor in tensors.items()}
    # Names may share their numbers, and a stride of zero repeats them.
    size = path.stat().st_size
    limit = FREE_INFLATION + MOST_INFLATION * size
    if (asked := sum(tensor.memory for tensor in found.values())) > limit:
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
    return found


def container_of_tensors(
    path: Path,
    mapped: MappedFile,
    tensors: Mapping[str, LocatedTensor],
    *,
    form: str,
    wrapper: tuple[str, ...] = (),
    extras: Mapping[str, object],
    notes: tuple[str, ...] = (),
) -> Container:
    """The container of a file in which these tensors lie."""
    stored = {name: tensor for name, tensor in tensors.items() if tensor.member.stored}
    return Container(
        path=path,
        files=(path,),
        format=form,
        manifest={name: tensor.info for name, tensor in tensors.items()},
        wrapper=wrapper,
        extras=extras,
        notes=notes,
        places={name: tensor.stretch(path) for name, tensor in stored.items()},
        reader=lambda name: tensors[name].read(path, mapped),
        release=mapped.close,
    )


def _located(
    path: Path, name: str, tensor: StoredTensor | OddTensor, members: Mapping[str, Member]
) -> LocatedTensor:
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
        return LocatedTensor(tensor=tensor, member=member)
    raise CorruptFile(
        fact, evidence={"file": path, "shape": shown(tensor.shape)}, hint="download it again."
    )


def _end(tensor: StoredTensor) -> int:
    """One past the last element that the tensor looks at."""
    if 0 in tensor.shape:
        return 0
    pairs = zip(tensor.shape, tensor.stride, strict=True)
    return tensor.offset + sum((axis - 1) * step for axis, step in pairs) + 1
