"""Whether theirs and ours are the same numbers, in one layout or another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitconvert.drafting.entries import Entry
from vitconvert.drafting.slots import Layout, Place, Slot
from vitconvert.tables.axes import Axes
from vitconvert.tables.canonical import canonical_tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Values:
    """The numbers of both sides.

    Attributes:
        theirs: A tensor by its name in the file.
        ours: The reference's tensors, by canonical name.
        sizes: Of our axes, as the reference has them.
    """

    theirs: "Callable[[str], torch.Tensor]"
    ours: "Mapping[str, torch.Tensor]"
    sizes: Mapping[str, int]

    def equal(self, entry: Entry, slot: Slot, layout: Layout) -> bool:
        """Whether a tensor of theirs, in each block, is the reference's, laid out like this."""
        depth = self.sizes["layer"] if slot.looped else 1
        return not layout.differing and all(
            self._equal(entry, place, layout, slot.axes, index)
            for index in range(depth)
            for place in slot.places
        )

    def is_zero(self, name: str, step: int) -> bool:
        """Whether a step of one of our tensors is zero in every block."""
        axes = canonical_tensors()[name].axes
        names = [name.replace("{i}", str(index)) for index in range(self.sizes["layer"])]
        tensors = (self.ours[each] for each in dict.fromkeys(names))
        return not any(self._split(tensor, axes)[step].any() for tensor in tensors)

    def _equal(self, entry: Entry, place: Place, layout: Layout, axes: Axes, index: int) -> bool:
        ours = self.ours[place.name.replace("{i}", str(index))]
        if place.step is not None:
            ours = self._split(ours, canonical_tensors()[place.name].axes)[place.step]
        theirs = self.theirs(entry.keys[0 if entry.stacked else index])
        theirs = self._split(theirs[index] if entry.stacked else theirs, layout.axes)
        names = list(layout.axes.names)
        if place.selected:
            axis, step = place.selected
            theirs = theirs.select(names.index(axis), step)
            names.remove(axis)
        wanted = [axis for axis in axes.names if axis in names]
        return _same(theirs.permute([names.index(axis) for axis in wanted]), ours)

    def _split(self, tensor: "torch.Tensor", axes: Axes) -> "torch.Tensor":
        """A dimension for each axis."""
        return tensor.reshape([self.sizes[axis] for axis in axes.names])


def _same(theirs: "torch.Tensor", ours: "torch.Tensor") -> bool:
    """Whether two tensors are equal, rounded to the coarser dtype of the two."""
    import torch

    if theirs.numel() != ours.numel() or not theirs.is_floating_point():
        return False
    flat = ours.reshape(theirs.shape)
    coarser = min((theirs.dtype, ours.dtype), key=lambda dtype: dtype.itemsize)
    if not torch.equal(theirs[:1].to(coarser), flat[:1].to(coarser)):
        return False
    return torch.equal(theirs.to(coarser), flat.to(coarser))
