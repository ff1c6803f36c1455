"""What makes a row sound: both sides name the same axes and indices, and nothing is left over."""

from collections.abc import Iterable, Iterator

from vitconvert.config.vit_config import FIXED_AXES
from vitconvert.tables.axes import Axes, Dim
from vitconvert.tables.canonical import CanonicalTensor
from vitconvert.tables.expressions import Alternative, Part, Selection
from vitconvert.tables.templates import Index

STACKED = "layer"  # the axis along which blocks are stacked in one array; its size is the depth


def check_alternative(tensor: CanonicalTensor, alternative: Alternative) -> None:
    """Make sure that one spelling of a tensor can be read and written.

    Raises:
        ValueError: Says what does not fit.
    """
    problem = next(_problems(tensor, alternative), None)
    if problem:
        raise ValueError(problem)


def _problems(tensor: CanonicalTensor, alternative: Alternative) -> Iterator[str]:
    ours = tensor.axes
    if alternative.joined:
        yield from _of_cat(ours, alternative)
        ours = ours.without(ours.names[0])
    for part in alternative.parts:
        yield from _of_indices(tensor, part)
        yield from _of_axes(set(ours.names), part)
        if part.selection and part.axes:
            yield from _of_selection(part.selection, part.axes)


def _of_cat(ours: Axes, alternative: Alternative) -> Iterator[str]:
    axis, count = ours.names[0], len(alternative.items)
    if axis not in FIXED_AXES:
        yield f"cat has no place here: ours begins with {axis!r}, whose length varies"
    elif count != FIXED_AXES[axis]:
        yield f"cat joins {count} items, and ours has {FIXED_AXES[axis]} steps along {axis!r}"
    elif not alternative.parts:
        yield "cat needs a tensor of theirs"


def _of_indices(tensor: CanonicalTensor, part: Part) -> Iterator[str]:
    theirs = set(part.key.indices)
    if part.selection and isinstance(part.selection.step, Index):
        theirs.add(part.selection.step.name)
    if theirs != set(tensor.name.indices):
        ours = _some(tensor.name.indices)
        yield f"the indices of {part.key} are {_some(theirs)}; ours are {ours}"


def _of_axes(ours: set[str], part: Part) -> Iterator[str]:
    if part.axes is None:
        return
    theirs = set(part.axes.names) - ({part.selection.axis} if part.selection else set())
    if theirs != ours:
        yield f"the axes of {part.key} are {_some(theirs)}; ours are {_some(ours)}"
    if any(dim.number != 1 for dim in part.axes.dims):
        yield f"the axes of {part.key} hold a number other than 1, which would carry something"


def _of_selection(selection: Selection, axes: Axes) -> Iterator[str]:
    axis, step = selection.axis, selection.step
    if axis == STACKED:
        if not isinstance(step, Index) or Dim((STACKED,)) not in axes.dims:
            yield f"{STACKED!r} is a dimension of its own, and an index such as {{i}} selects on it"
    elif axis not in FIXED_AXES:
        yield f"nothing tells the size of the axis {axis!r}; blocks are stacked along {STACKED!r}"
    elif isinstance(step, Index) or step >= FIXED_AXES[axis]:
        yield f"the axis {axis!r} has the steps 0 to {FIXED_AXES[axis] - 1}"


def _some(names: Iterable[str]) -> str:
    return " ".join(sorted(names)) or "none"
