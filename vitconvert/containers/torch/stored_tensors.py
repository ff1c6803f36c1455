"""Tensors that lie in the members of a zip archive, as torch writes its own archives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers.container import ITEM_SIZE, Stretch, TensorInfo
from vitconvert.containers.mapped_file import MappedFile, checked_shape, tensor_from_buffer
from vitconvert.containers.torch.pickle_reader import StoredTensor
from vitconvert.containers.zip_archive import Member, member_bytes
from vitconvert.errors import CorruptFile

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

    def place(self, path: Path) -> Stretch:
        """Where it lies in the archive, if the member is stored as it is."""
        skipped = self.tensor.offset * ITEM_SIZE[self.tensor.storage.dtype]
        return Stretch(path=path, offset=self.member.offset + skipped, strides=self.tensor.stride)

    def read(self, path: Path, mapped: MappedFile) -> torch.Tensor:
        """The tensor: a view on the mapped archive, or on a copy of a deflated member."""
        storage = self.tensor.storage
        whole = TensorInfo(dtype=storage.dtype, shape=(storage.length,))
        if self.member.stored:
            flat = mapped.tensor(self.member.offset, whole)
        else:
            flat = tensor_from_buffer(bytearray(member_bytes(path, self.member)), 0, whole)
        return flat.as_strided(self.tensor.shape, self.tensor.stride, self.tensor.offset)


def located(path: Path, name: str, tensor: StoredTensor, member: Member | None) -> LocatedTensor:
    """Find a tensor in its member, which must be as long as the pickle declares.

    Raises:
        CorruptFile: It reaches beyond its member, or makes no sense.
    """
    checked_shape(path, name, tensor.shape)
    storage, steps = tensor.storage, tensor.stride
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
        fact, evidence={"file": path, "shape": list(tensor.shape)}, hint="download it again."
    )


def _end(tensor: StoredTensor) -> int:
    """One past the last element that the tensor looks at."""
    if 0 in tensor.shape:
        return 0
    pairs = zip(tensor.shape, tensor.stride, strict=True)
    return tensor.offset + sum((axis - 1) * step for axis, step in pairs) + 1
