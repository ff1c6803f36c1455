"""Tensors that processes have cut among them, each along the same axes: do the parts make one?"""

from collections.abc import Mapping

Extent = tuple[int, ...]


def fill(shape: Extent, parts: Mapping[Extent, Extent]) -> bool:
    """Whether parts fill a tensor and overlap nowhere.

    Processes cut a tensor along some axes, so parts make a grid: along each axis there are
    sections, and a part for each combination of them.

    Args:
        shape: Of the tensor.
        parts: Where each begins along the axes -> how long it is; none is empty.
    """
    if 0 in shape:
        return not parts
    cells = 1
    for axis, length in enumerate(shape):
        sections = {(offsets[axis], sizes[axis]) for offsets, sizes in parts.items()}
        if not _follow(sections, length):
            return False
        cells *= len(sections)
    return cells == len(parts)


def _follow(sections: set[tuple[int, int]], length: int) -> bool:
    position = 0
    for begin, size in sorted(sections):
        if begin != position:
            return False
        position += size
    return position == length
