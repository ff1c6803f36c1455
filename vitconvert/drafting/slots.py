"""The places of a known ViT's tensors, their layouts, and tests for the same numbers in them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.config import ViTConfig
from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.drafting.entries import Entry, knowledge
from vitconvert.tables.axes import Axes, Dim, Shape, parse_axes
from vitconvert.tables.canonical import canonical_tensors, instances

if TYPE_CHECKING:
    import torch


# Fine-tuning changes these: the head's classes, and the size of the images.
_MAY_DIFFER = frozenset({"label", "position"})
PREFIX = "prefix positions"  # among the sizes: those of no patch
_FEW = 4  # tokens in front of the patches
EXACT = "exact"  # among the sizes: 1 where they are the file's own, and not those of a reference


@dataclass(frozen=True)
class Place:
    """One of our tensors, or one step of it.

    Attributes:
        name: The canonical name, of all blocks.
        step: Along the first axis of ours, where theirs is one of several; None: all of it.
        selected: An axis of theirs and its step, where theirs holds several of ours.
    """

    name: str
    step: int | None = None
    selected: tuple[str, int] | None = None


@dataclass(frozen=True)
class Slot:
    """A tensor, or several, that one of theirs may be.

    Attributes:
        places: What of ours it is.
        axes: Its dimensions, in our order.
        looped: Whether every block has it.
        module: What it belongs to: `blocks.{i}.attn.qkv[0]` is the first step of qkv.
        kind: "weight", "bias", or "" for a parameter that is neither.
    """

    places: tuple[Place, ...]
    axes: Axes
    looped: bool
    module: str
    kind: str

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical names, of all blocks."""
        return tuple(dict.fromkeys(place.name for place in self.places))

    @property
    def is_distinct(self) -> bool:
        """Whether its shape says more than that of a vector or a token."""
        return sum(bool(dim.axes) for dim in self.axes.dims) > 1


@dataclass(frozen=True)
class SlotLayout:
    """The axes of theirs, and what is peculiar about them.

    Attributes:
        axes: Theirs.
        rare: Whether only equal values are reason enough to believe it.
        differing: Axes of which theirs is longer or shorter than the reference's.
    """

    axes: Axes
    rare: bool = False
    differing: tuple[str, ...] = ()

    @property
    def surplus(self) -> bool:
        """Whether theirs is longer than what is used."""
        return bool(self.axes.surplus)

    def turned(self, ours: Axes) -> bool:
        """Whether it begins with another dimension than ours."""
        return self.axes.names[:1] != () and self.axes.names[0] not in ours.dims[0].axes


def slots_of(config: ViTConfig) -> list[Slot]:
    """Slots for tensors of theirs, but for those of ours that more than the block counts."""
    found: list[Slot] = []
    whole: dict[str, Axes] = {}
    for name, several in instances(config).items():
        indices = tuple(several[0].indices) if several else ()
        if several and indices in ((), ("i",)):
            whole[name] = several[0].axes
            axes, looped = several[0].axes, bool(indices)
            module, kind = _module(name)
            found.append(Slot((Place(name),), axes, looped, module, kind))
            if axes.names and axes.names[0] in ("qkv", "kv"):
                for step in range(FIXED_AXES[axes.names[0]]):
                    place = Place(name, step)
                    found.append(Slot((place,), axes.step, looped, f"{module}[{step}]", kind))
    return [*found, *_packed(whole)]


def _module(name: str) -> tuple[str, str]:
    module, _, last = name.rpartition(".")
    if last in ("weight", "bias"):
        return module, last
    return (module, "") if last == "gamma" else (name, "")


def _packed(whole: Mapping[str, Axes]) -> Iterator[Slot]:
    """Slots of tensors that hold several of ours: SwiGLU's two, and two or three of q, k and v."""
    for kind in ("weight", "bias"):
        if (three := f"blocks.{{i}}.attn.qkv.{kind}") in whole:
            for pair, first in (("kv", 1), ("qk", 0)):
                steps = [Place(three, first + step, (pair, step)) for step in range(2)]
                axes = _joined(pair, whole[three].step)
                yield Slot(tuple(steps), axes, True, f"blocks.{{i}}.attn.{pair}", kind)
        gate, value = (f"blocks.{{i}}.mlp.{part}.{kind}" for part in ("fc1_g", "fc1"))
        if gate in whole:
            both = Place(gate, None, ("gate", 0)), Place(value, None, ("gate", 1))
            axes = _joined("gate", whole[gate])
            yield Slot(both, axes, True, "blocks.{i}.mlp.fc1_g+fc1", kind)
        query, pair = f"attn_pool.q.{kind}", f"attn_pool.kv.{kind}"
        if query in whole and pair in whole:
            steps = [Place(pair, step, ("qkv", step + 1)) for step in range(2)]
            places = Place(query, None, ("qkv", 0)), *steps
            yield Slot(places, _joined("qkv", whole[query]), False, "attn_pool.q+kv", kind)


def _joined(axis: str, axes: Axes) -> Axes:
    first, *others = axes.dims
    return Axes((Dim((axis, *first.axes)), *others))


def sizes_of(config: ViTConfig, *, exact: bool = False) -> dict[str, int]:
    """The length of every axis, and under PREFIX how many positions are of no patch."""
    return {**config.axes(), PREFIX: config.num_prefix_positions, EXACT: int(exact)}


def layouts_of(
    slot: Slot, shape: Shape, sizes: Mapping[str, int], *, of_head: bool = False
) -> list[SlotLayout]:
    """The layouts in which a tensor of this shape may be what the slot is, the usual first.

    Args:
        slot: Ours.
        shape: Theirs.
        sizes: From `sizes_of`.
        of_head: Whether theirs is of one head alone.
    """
    usual = knowledge()["layouts"].get(str(slot.axes), [str(slot.axes)])
    rare = knowledge()["rare_layouts"].get(str(slot.axes), [])
    asked = [(text, False) for text in usual] + [(text, True) for text in rare]
    read = [(parse_axes(text), is_rare) for text, is_rare in asked]
    if of_head:
        read = [(axes.without("head"), is_rare) for axes, is_rare in read if "head" in axes.names]
        read = [
            (axes, is_rare) for n, (axes, is_rare) in enumerate(read) if axes not in dict(read[:n])
        ]
    exact = [SlotLayout(axes, is_rare) for axes, is_rare in read if axes.shape(sizes) == shape]
    if exact or of_head:
        return exact
    if surplus := [SlotLayout(axes) for axes in _with_surplus(read, shape, sizes)]:
        return surplus
    differing = ((axes, is_rare, _differing(axes, shape, sizes)) for axes, is_rare in read)
    return [SlotLayout(axes, is_rare, axis) for axes, is_rare, axis in differing if axis]


def _with_surplus(
    read: Sequence[tuple[Axes, bool]], shape: Shape, sizes: Mapping[str, int]
) -> Iterator[Axes]:
    """Tables of more positions than are used, as many code for text keeps them."""
    for axes, _ in read:
        dims = tuple(replace(d, surplus=True) if d.axes == ("position",) else d for d in axes.dims)
        longer = Axes(dims)
        if longer.surplus and longer.takes(shape, longer.shape(sizes)):
            ((place, _),) = longer.surplus
            patches = shape[place] - sizes[PREFIX]
            more = shape[place] - sizes["position"]
            larger = math.isqrt(patches) ** 2 == patches or more <= _FEW  # images, or more tokens
            if sizes.get(EXACT) or not larger:
                yield longer


def _differing(axes: Axes, shape: Shape, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axis of another length than the reference's, if one that may differ is all that does."""
    if len(axes.dims) != len(shape):
        return ()
    pairs = zip(axes.dims, shape, strict=True)
    others = [(dim.axes, size) for dim, size in pairs if dim.size(sizes) != size]
    if len(others) != 1 or len(others[0][0]) != 1 or others[0][0][0] not in _MAY_DIFFER:
        return ()
    ((axis, size),) = others
    if axis == ("position",):  # of another size of images, which are square
        patches = size - sizes[PREFIX]
        return axis if patches > 0 and math.isqrt(patches) ** 2 == patches else ()
    return axis


def by_module(slots: Sequence[Slot]) -> dict[str, dict[str, Slot]]:
    """Module -> kind -> slot."""
    found: dict[str, dict[str, Slot]] = {}
    for slot in slots:
        found.setdefault(slot.module, {})[slot.kind] = slot
    return found


@dataclass(frozen=True)
class ComparedValues:
    """The numbers of both sides.

    Attributes:
        theirs: A tensor by its name in the file.
        ours: The reference's tensors, by canonical name.
        sizes: Of our axes, as the reference has them.
    """

    theirs: "Callable[[str], torch.Tensor]"
    ours: "Mapping[str, torch.Tensor]"
    sizes: Mapping[str, int]

    def equal(self, entry: Entry, slot: Slot, layout: SlotLayout) -> bool:
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

    def _equal(
        self, entry: Entry, place: Place, layout: SlotLayout, axes: Axes, index: int
    ) -> bool:
        ours = self.ours[place.name.replace("{i}", str(index))]
        if place.step is not None:
            ours = self._split(ours, canonical_tensors()[place.name].axes)[place.step]
        theirs, names = self._read(entry, layout, index)
        if place.selected:
            axis, step = place.selected
            theirs = theirs.select(names.index(axis), step)
            names.remove(axis)
        wanted = [axis for axis in axes.names if axis in names]
        return _same(theirs.permute([names.index(axis) for axis in wanted]), ours)

    def _read(
        self, entry: Entry, layout: SlotLayout, index: int
    ) -> "tuple[torch.Tensor, list[str]]":
        """A tensor of a block, with a dimension for each axis."""
        import torch

        names = list(layout.axes.names)
        if entry.heads:
            keys = entry.keys[index * entry.heads : (index + 1) * entry.heads]
            several = [self._split(self.theirs(key), layout.axes) for key in keys]
            return torch.stack(several), ["head", *names]
        theirs = self.theirs(entry.keys[0 if entry.stacked else index])
        if entry.stacked:
            theirs = theirs[index]
        for place, axis in layout.axes.surplus:
            theirs = theirs.narrow(place, 0, self.sizes[axis])
        return self._split(theirs, layout.axes), names

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
    # The first row tells most tensors apart, without the rest of a large file.
    if not torch.equal(theirs[:1].to(coarser), flat[:1].to(coarser)):
        return False
    return torch.equal(theirs.to(coarser), flat.to(coarser))
