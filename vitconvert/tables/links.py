"""Which of their tensors, or steps of one, is which of ours."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vitconvert.tables.axes import Axes
from vitconvert.tables.canonical import CanonicalTensor, Instance, instantiate
from vitconvert.tables.expressions import Alternative, Part
from vitconvert.tables.templates import Index


class Link(NamedTuple):
    """One of their tensors (or one step of it) is one of ours (or one step of it).

    There are hundreds, and a frozen dataclass takes five times as long to make.
    """

    ours: str
    tensor: CanonicalTensor
    indices: Mapping[str, int]
    our_axes: Axes
    our_step: int | None  # along the first axis of ours, where a row joins several of theirs
    theirs: str | None  # None: they leave this step out because it is zero
    their_axes: Axes
    their_step: tuple[str, int] | None  # along an axis of theirs, where a row selects


def links_of(
    alternative: Alternative, one: Instance, keys: Mapping[int, str], steps: int = 0
) -> Iterator[Link]:
    """The links of one tensor of ours, spelled by `keys`: item number -> their key.

    `steps` is the length of their axis where a row takes the rest of it.
    """
    ours = one.axes
    default = ours.step if alternative.joined else ours
    for number, item in enumerate(alternative.items):
        part = item if isinstance(item, Part) else None
        link = Link(
            ours=one.name,
            tensor=one.tensor,
            indices=one.indices,
            our_axes=ours,
            our_step=number if alternative.joined else None,
            theirs=keys.get(number) if part else None,
            their_axes=instantiate(part.axes, one.indices) if part and part.axes else default,
            their_step=_selected(part, one.indices),
        )
        if not (rest := alternative.rest) or not link.their_step:
            yield link
            continue
        for number, theirs in enumerate(range(link.their_step[1], steps)):
            yield link._replace(our_step=number, their_step=(rest.axis, theirs))


def _selected(part: Part | None, indices: Mapping[str, int]) -> tuple[str, int] | None:
    if not part or not part.selection:
        return None
    step = part.selection.step
    number = step.write(indices[step.name]) if isinstance(step, Index) else step
    return part.selection.axis, number
