"""What a tensor must hold to play no part: `1 0 1 : (qkv head dim)`.

constant = number+ ":" axes          one number for each step along the first axis
         | "0.." ":" axes            the steps along the first axis, counted from 0
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.tables.axes import Axes, parse_axes
from vitconvert.tables.canonical import canonical_tensors


@dataclass(frozen=True)
class Constant:
    """The numbers of a tensor, one for each step along its first axis; none: they are counted."""

    numbers: tuple[float, ...]
    axes: Axes
    text: str  # as it stands in the table, for messages

    def along(self, sizes: Mapping[str, int]) -> tuple[float, ...]:
        """The number for each step along the first axis."""
        return self.numbers or tuple(map(float, range(sizes[self.axes.names[0]])))


def parse_constant(text: str, row: str) -> Constant:
    """Parse the numbers and the layout of a tensor.

    Args:
        text: Such as `1 0 1 : (qkv head dim)`.
        row: The row of the table that has this text, for messages.

    Raises:
        ValueError: The text is not of this form, or the first axis has another number of steps,
            or nothing tells the size of another.
    """
    numbers, colon, layout = text.partition(":")
    if not colon:
        raise ValueError(f"expected numbers, a colon and axes, found {text!r}")
    counted = numbers.strip() == "0.."
    stated = () if counted else tuple(map(float, numbers.split()))
    constant = Constant(stated, parse_axes(layout), row)
    axis = next(iter(constant.axes.names), "")
    if not counted and FIXED_AXES.get(axis) != len(constant.numbers):
        known = f"it has {FIXED_AXES[axis]}" if axis in FIXED_AXES else "nothing tells how many"
        raise ValueError(f"{len(constant.numbers)} numbers for the steps of {axis!r}: {known}")
    ours = {name for tensor in canonical_tensors().values() for name in tensor.axes.names}
    for name in constant.axes.names:
        if name not in ours:
            raise ValueError(f"no tensor of ours has an axis {name!r}")
    return constant
