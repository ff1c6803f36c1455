"""How far two outputs are apart, and how far rounding may put them."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 2e-5  # of max |output|, in float32 on a CPU


def relative_difference(ours: "Tensor", theirs: "Tensor") -> float:
    """Largest difference over the largest magnitude of `theirs`; infinite for other shapes."""
    if ours.shape != theirs.shape:
        return math.inf
    absolute, scale = largest(ours - theirs), largest(theirs)
    if absolute == 0:
        return 0.0
    return absolute / scale if 0 < scale < math.inf else math.inf


def largest(x: "Tensor") -> float:
    """The largest magnitude, infinite if one is NaN, 0 if there is none."""
    value = float(x.abs().max()) if x.numel() else 0.0
    return math.inf if math.isnan(value) else value
