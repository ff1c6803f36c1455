"""A plan as copies of bytes: where each element of a target lies in the files it comes from."""

from collections.abc import Mapping
from math import prod

from vitconvert.containers import ITEM_SIZE, Box, Stretch, TensorInfo, row_major
from vitconvert.conversion.plan import Assembly, Piece, Plan, Steps
from vitconvert.tables.axes import Axes


def boxes_of(
    assembly: Assembly, plan: Plan, places: Mapping[str, Stretch], info: TensorInfo
) -> tuple[Box, ...]:
    """The boxes that fill a target tensor; steps that nothing fills are zeros.

    Args:
        assembly: One of the plan.
        plan: Knows the sizes.
        places: Where each source tensor lies.
        info: Of the target.
    """
    steps = _axis_strides(assembly.axes, row_major(info.shape), plan.sizes)
    return tuple(
        _box(piece, steps, plan, places[piece.source], ITEM_SIZE[info.dtype])
        for piece in assembly.pieces
        if piece.source is not None
    )


def _box(piece: Piece, steps: Mapping[str, int], plan: Plan, place: Stretch, item_size: int) -> Box:
    strides = _axis_strides(piece.axes, place.strides, plan.sizes)
    filled = [axis for axis in steps if axis not in dict(piece.put)]
    sizes, strided, stepped = _coalesced(
        [(plan.sizes[axis], strides[axis], steps[axis]) for axis in filled]
    )
    return Box(
        path=place.path,
        offset=place.offset + _reach(piece.take, strides) * item_size,
        begin=_reach(piece.put, steps),
        sizes=sizes,
        strides=strided,
        steps=stepped,
    )


def _reach(steps: Steps, strides: Mapping[str, int]) -> int:
    return sum(step * strides[axis] for axis, step in steps)


def _axis_strides(axes: Axes, strides: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, int]:
    """Elements from one step to the next along each axis, slowest axis first."""
    found = {}
    for dim, stride in zip(axes.dims, strides, strict=True):
        for position, axis in enumerate(dim.axes):
            found[axis] = stride * prod(sizes[faster] for faster in dim.axes[position + 1 :])
    return found


def _coalesced(
    axes: list[tuple[int, int, int]],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The same elements by as few axes as will do: sizes, strides, steps."""
    kept: list[tuple[int, int, int]] = []
    for size, stride, step in axes:
        if size == 1:
            continue
        if kept and kept[-1][1:] == (stride * size, step * size):
            kept[-1] = (kept[-1][0] * size, stride, step)
        else:
            kept.append((size, stride, step))
    sizes, strides, steps = zip(*kept, strict=True) if kept else ((1,), (1,), (1,))
    return sizes, strides, steps
