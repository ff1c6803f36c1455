"""How two implementations differ, in numbers: in their outputs, and in each layer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitconvert.comparison import largest, relative_difference

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """The largest relative difference of one layer over all images, in one dtype."""

    layer: str
    dtype: str
    relative: float


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first layer that differs by more than rounding, and what explains it.

    Attributes:
        layer, dtype, images: Where it shows.
        relative: The layer's largest difference over its largest magnitude in the reference.
        cause: In words; "unknown" if no known mistake explains it.
        positions: `token_differences` of the layer: prefix tokens, then patches row by row.
        grid: Patches from top to bottom and across.
    """

    layer: str
    dtype: str
    images: str
    relative: float
    cause: str
    positions: tuple[float, ...] = ()
    grid: tuple[int, int] | None = None


def layer_differences(
    ours: "Mapping[str, Tensor]", theirs: "Mapping[str, Tensor]"
) -> dict[str, float]:
    """The relative difference of each layer that both have, in the order of computation."""
    return {k: relative_difference(ours[k], theirs[k]) for k in ours if k in theirs}


def token_differences(ours: "Tensor", theirs: "Tensor") -> tuple[float, ...]:
    """The largest difference of each of N tokens in (B, N, D), to two digits.

    Like the layer's own, it is relative to the largest magnitude that `theirs` has in any token.
    Infinite where one is NaN; () for a layer that has no tokens, or other ones.
    """
    if ours.ndim != 3 or ours.shape != theirs.shape or not ours.numel():
        return ()
    apart, scale = (ours - theirs).abs().amax(dim=(0, 2)).tolist(), largest(theirs)
    return tuple(_share(absolute, scale) for absolute in apart)


def _share(absolute: float, scale: float) -> float:
    if absolute == 0:
        return 0.0
    known = math.isfinite(absolute) and 0 < scale < math.inf
    return float(f"{absolute / scale:.1e}") if known else math.inf
