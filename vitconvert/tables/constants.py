"""What a tensor must hold to play no part: `1 0 1 : (qkv head dim)`.

constant = number+ ":" axes dtype?   one number for each step along the first axis
         | "0.." ":" axes dtype?     the steps along the first axis, counted from 0
dtype    = ":" ("int32" | "int64")   in which it is written; else in that of the other tensors
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
    dtype: str = ""  # in which it is written, if not that of the other tensors

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
    numbers, colon, rest = text.partition(":")
    layout, _, dtype = rest.partition(":")
    if not colon:
        raise ValueError(f"expected numbers, a colon and axes, found {text!r}")
    counted = numbers.strip() == "0.."
    stated = () if counted else tuple(map(float, numbers.split()))
    constant = Constant(stated, parse_axes(layout), row, checked_dtype(dtype.strip()))
    axis = next(iter(constant.axes.names), "")
    if not counted and FIXED_AXES.get(axis) != len(constant.numbers):
        known = f"it has {FIXED_AXES[axis]}" if axis in FIXED_AXES else "nothing tells how many"
        raise ValueError(f"{len(constant.numbers)} numbers for the steps of {axis!r}: {known}")
    ours = {name for tensor in canonical_tensors().values() for name in tensor.axes.names}
    for name in constant.axes.names:
        if name not in ours:
            raise ValueError(f"no tensor of ours has an axis {name!r}")
    return constant


def checked_dtype(name: str) -> str:
    """The dtype of what plays no part; "" is that of the other tensors.

    Raises:
        ValueError: It cannot be said.
    """
    if name not in ("", "int32", "int64"):
        raise ValueError(f"{name!r} is neither int32 nor int64, the dtypes that can be said")
    return name
