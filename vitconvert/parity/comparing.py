"""Comparing outputs and layers of two implementations."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from vitconvert.parity.differences import Comparison
from vitconvert.programs.agreement import largest, relative_difference
from vitconvert.programs.taps import position

# Rounding in float64 is 2^-29 of that in float32. A ten-millionth leaves it a margin of fifty, and
# is still a hundred thousand times finer than the effect of a wrong epsilon in a norm.
_FLOAT64_SHARE = 1e-7


def allowed(tolerance: float, dtype: str) -> float:
    """The relative difference that rounding explains, given that of float32."""
    return tolerance * _FLOAT64_SHARE if dtype == "float64" else tolerance


def layer_differences(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, float]:
    """The relative difference of each layer that both have, in the order of computation."""
    both = sorted(ours.keys() & theirs.keys(), key=position)
    return {layer: relative_difference(ours[layer], theirs[layer]) for layer in both}


def compare_outputs(
    ours: Tensor, theirs: Tensor, *, images: str, dtype: str, tolerance: float
) -> Comparison:
    """Compare two outputs, the last axis of which is that of the classes or channels."""
    same_shape = ours.shape == theirs.shape
    agreed = (
        ours.argmax(-1) == theirs.argmax(-1) if same_shape else torch.zeros(1, dtype=torch.bool)
    )
    return Comparison(
        images=images,
        dtype=dtype,
        absolute=largest(ours - theirs) if same_shape else math.inf,
        relative=relative_difference(ours, theirs),
        agreed=int(agreed.sum()),
        rows=agreed.numel(),
        bit_equal=torch.equal(ours, theirs),
        tolerance=allowed(tolerance, dtype),
    )
