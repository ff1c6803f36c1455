"""Carries out a plan from file to file: bytes are moved, and one tensor at most is in memory.

A layout is a stride for every axis, so each piece of a plan is a strided copy whose offsets in
both files follow from the two headers.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from vitconvert.facts.plan import Picks, Piece, Plan
from vitconvert.formats import (
    ITEM_SIZE,
    Box,
    Container,
    Content,
    Stretch,
    TensorInfo,
    chunks_of,
    row_major,
)
from vitconvert.tables.axes import Axes

# struct's format for a number of a dtype, and the first byte to keep. A bfloat16 is the upper half
# of a float32, and exactly so for constants, which are small whole numbers.
_NUMBERS = {
    "float64": ("<d", 0),
    "float32": ("<f", 0),
    "float16": ("<e", 0),
    "bfloat16": ("<f", 2),
    "int64": ("<q", 0),
    "int32": ("<i", 0),
}

_FRACTIONS = ("float64", "float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Move:
    """Where the elements of a target tensor come from; what no box fills is zero.

    Without boxes, each number of `fill` fills an equal part of the tensor.
    """

    info: TensorInfo
    boxes: tuple[Box, ...]
    fill: tuple[float, ...] = (0.0,)

    def content(self) -> Content:
        """The tensor's bytes, which are read when they are written."""
        if any(self.fill):
            return Content(info=self.info, chunks=partial(_constant, self.info, self.fill))
        return Content(info=self.info, chunks=partial(chunks_of, self.info, self.boxes))


def moves(plan: Plan, source: Container, prefix: str) -> dict[str, Move] | None:
    """Every target tensor of a plan, as bytes of the source; from the headers alone.

    Args:
        plan: The composed plan, from the source's dialect to the target's.
        source: The checkpoint.
        prefix: What precedes the plan's source names in the file.

    Returns:
        None if moving bytes is not enough: tensors are compressed in the file, are joined but
        differ in dtype, are sums, made for several or turned, or are ignored only if they
        hold certain numbers; or constants have an unusual dtype.
    """
    pieces = (*(piece for a in plan.assemblies for piece in a.pieces), *plan.zeros)
    layouts = (*(a.axes for a in plan.assemblies), *(piece.axes for piece in pieces))
    compared = plan.constants or plan.shared
    if compared or any(axes.summed or axes.turned for axes in layouts):  # compared, or computed
        return None
    names = dict.fromkeys(piece.source for piece in pieces if piece.source)
    dtypes = {name: source.manifest[prefix + name].dtype for name in names}
    places = {name: source.places.get(prefix + name) for name in names}
    found = {name: place for name, place in places.items() if place}
    if len(found) < len(places):
        return None
    moved = {}
    for assembly in plan.assemblies:
        of_parts = {dtypes[piece.source] for piece in assembly.pieces if piece.source}
        if assembly.dtype:
            of_parts = {assembly.dtype}
        # An array without elements has the dtype of the others.
        dtype, *others = of_parts or {next(iter(dtypes.values()))}
        # A constant is written as it is, without rounding.
        whole = all(number.is_integer() for number in assembly.fill)
        exact = not any(assembly.fill) or (dtype in _NUMBERS and (whole or dtype in _FRACTIONS))
        if others or not exact:
            return None
        info = TensorInfo(dtype=dtype, shape=plan.shape(assembly))
        targets = _axis_strides(assembly.axes, row_major(info.shape), plan.sizes)
        boxes = (
            _box(piece, targets, plan, found[piece.source], ITEM_SIZE[dtype], assembly.axes.origins)
            for piece in assembly.pieces
            if piece.source is not None
        )
        moved[assembly.target] = Move(info=info, boxes=tuple(boxes), fill=assembly.fill)
    return moved


def stream(plan: Plan, source: Container, prefix: str = "") -> dict[str, Content] | None:
    """Every target tensor of a plan, as bytes that are read when they are written.

    Args:
        plan, source, prefix: As for `moves`. The source must not change until the contents are
            written.

    Returns:
        None if moving bytes is not enough, or if what the target leaves out is not zero. Then
        `materialise` does it, or says why it cannot be done.
    """
    found = moves(plan, source, prefix)
    if found is None or not all(_is_zero(piece, plan, source, prefix) for piece in plan.zeros):
        return None
    return {name: move.content() for name, move in found.items()}


def _constant(info: TensorInfo, fill: tuple[float, ...]) -> Iterator[memoryview]:
    code, first = _NUMBERS[info.dtype]
    for number in map(int, fill) if info.dtype.startswith("int") else fill:
        yield memoryview(struct.pack(code, number)[first:] * (prod(info.shape) // len(fill)))


def _is_zero(piece: Piece, plan: Plan, source: Container, prefix: str) -> bool:
    """Whether all bytes that a piece takes are zero."""
    assert piece.source is not None
    name = prefix + piece.source
    taken = [axis for axis in piece.axes.names if axis not in dict(piece.take)]
    shape = tuple(plan.sizes[axis] for axis in taken)
    info = TensorInfo(dtype=source.manifest[name].dtype, shape=shape)
    steps = dict(zip(taken, row_major(shape), strict=True))
    box = _box(piece, steps, plan, source.places[name], ITEM_SIZE[info.dtype])
    return not any(any(chunk) for chunk in chunks_of(info, [box]))


def _box(
    piece: Piece,
    targets: Mapping[str, int],
    plan: Plan,
    place: Stretch,
    item_size: int,
    origins: Picks = (),
) -> Box:
    strides = _axis_strides(piece.axes, place.strides, plan.sizes)
    filled = [axis for axis in targets if axis not in dict(piece.put)]
    sizes, source_strides, target_strides = _coalesced(
        [(plan.sizes[axis], strides[axis], targets[axis]) for axis in filled]
    )
    return Box(
        path=place.path,
        offset=place.offset + _reach((*piece.axes.origins, *piece.take), strides) * item_size,
        begin=_reach((*origins, *piece.put), targets),
        sizes=sizes,
        strides=source_strides,
        target_strides=target_strides,
    )


def _reach(picks: Picks, strides: Mapping[str, int]) -> int:
    return sum(step * strides[axis] for axis, step in picks)


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
    """The same elements with as few axes as possible: sizes, strides, target strides."""
    # Fewer axes are longer runs, which are moved at once.
    kept: list[tuple[int, int, int]] = []
    for size, stride, target in axes:
        if size == 1:
            continue
        if kept and kept[-1][1:] == (stride * size, target * size):
            kept[-1] = (kept[-1][0] * size, stride, target)
        else:
            kept.append((size, stride, target))
    sizes, strides, targets = zip(*kept, strict=True) if kept else ((1,), (1,), (1,))
    return sizes, strides, targets
