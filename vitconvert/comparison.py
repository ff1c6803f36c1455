"""How two arrays differ: the one place where numbers of two sides are compared.

torch is imported when the first two are compared.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 2e-5  # of max |output|, in float32 on a CPU
# Rounding in float64 is 2^-29 of that in float32. A ten-millionth leaves it a margin of fifty, and
# is still a hundred thousand times finer than the effect of a wrong epsilon in a norm.
_FLOAT64_SHARE = 1e-7
_SLICE = 2**20  # elements that are compared at once
_ROUNDINGS = ("float32", "float16", "bfloat16")  # in the order in which they are tried


def allowed(tolerance: float, dtype: str) -> float:
    """The relative difference that rounding explains, given that of float32."""
    return tolerance * _FLOAT64_SHARE if dtype == "float64" else tolerance


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


def overflows(before: "Tensor", after: "Tensor") -> bool:
    """Whether a number that was finite before a cast to another dtype is infinite after it."""
    return bool((after.isinf() & before.isfinite()).any())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outputs of two implementations for one batch of images in one dtype.

    Attributes:
        images: "noise", "photograph" or another kind of `preprocessing/sample_images.py`.
        dtype: Arithmetic and weights of both sides.
        absolute: Largest difference.
        relative: Largest difference over the largest magnitude of the reference.
        agreed: Rows in which the largest entry is the same one.
        rows: Rows of the output.
        bit_equal: Whether no bit differs.
        tolerance: Largest `relative` that rounding explains.
        output: Which of several outputs.
    """

    images: str
    dtype: str
    absolute: float
    relative: float
    agreed: int
    rows: int
    bit_equal: bool
    tolerance: float
    output: str = "output"

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.relative <= self.tolerance


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
        settings: The fields of vitconvert's configuration that undo it, if it lies there.
    """

    layer: str
    dtype: str
    images: str
    relative: float
    cause: str
    settings: Mapping[str, object] = field(default_factory=dict)


def compare_outputs(
    ours: "Tensor",
    theirs: "Tensor",
    *,
    images: str,
    dtype: str,
    tolerance: float,
    output: str = "output",
) -> Comparison:
    """Compare two outputs, whose last axis is the classes or channels."""
    import torch

    same_shape = ours.shape == theirs.shape
    agreed = (
        (ours.argmax(-1) == theirs.argmax(-1)) & ours.isfinite().all(-1)
        if same_shape
        else torch.zeros(1, dtype=torch.bool)
    )
    return Comparison(
        images=images,
        dtype=dtype,
        absolute=largest(ours - theirs) if same_shape else math.inf,
        relative=relative_difference(ours, theirs),
        agreed=int(agreed.sum()),
        rows=agreed.numel(),
        bit_equal=torch.equal(ours, theirs),
        output=output,
        tolerance=allowed(tolerance, dtype),
    )


@dataclass(frozen=True, kw_only=True)
class ValueDifference:
    """How the numbers of two tensors of one shape differ, computed in float64.

    Attributes:
        elements: Numbers in each tensor.
        differing: How many of them differ; 0 where the same numbers have other bytes.
        largest: Largest |a - b|, where both are finite.
        scale: Largest finite |a|.
        not_finite: Differing elements of which one at least is infinite or not a number.
        first: Index of the first that differs.
        equal_in: The widest of float32, float16 and bfloat16 to which both round alike, or None.
    """

    elements: int
    differing: int
    largest: float
    scale: float
    not_finite: int
    first: tuple[int, ...] | None
    equal_in: str | None

    @property
    def relative(self) -> float | None:
        """`largest` over `scale`; None where a is zero throughout."""
        return self.largest / self.scale if self.scale else None

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "elements": self.elements,
            "differing": self.differing,
            "max_abs": self.largest,
            "relative": self.relative,
            "not_finite": self.not_finite,
            "first": self.first and list(self.first),
            "equal_in": self.equal_in,
        }


def compare_values(a: "Tensor", b: "Tensor") -> ValueDifference | None:
    """How two tensors of one shape differ, or None where dtype and every bit are equal."""
    import torch

    shape, a, b = a.shape, a.reshape(-1).contiguous(), b.reshape(-1).contiguous()
    if a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return None
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    differing, not_finite, largest, scale = 0, 0, 0.0, 0.0
    first: int | None = None
    for begin in range(0, len(a), _SLICE):
        mine, theirs = (x[begin : begin + _SLICE].to(wide) for x in (a, b))
        differs = (mine != theirs) & ~(mine.isnan() & theirs.isnan())
        finite = mine.isfinite() & theirs.isfinite()
        differing += int(differs.sum())
        not_finite += int((differs & ~finite).sum())
        largest = max(largest, float((mine - theirs).abs().where(finite, 0.0).max()))
        scale = max(scale, float(mine.abs().where(mine.isfinite(), 0.0).max()))
        if first is None and differs.any():
            first = begin + int(differs.int().argmax())
    return ValueDifference(
        elements=len(a),
        differing=differing,
        largest=largest,
        scale=scale,
        not_finite=not_finite,
        first=None if first is None else tuple(int(i) for i in np.unravel_index(first, shape)),
        equal_in=_equal_in(a, b) if differing else None,
    )


def _equal_in(a: "Tensor", b: "Tensor") -> str | None:
    """The widest dtype to which both round alike, other than by overflowing."""
    import torch

    def alike(dtype: torch.dtype) -> bool:
        for begin in range(0, len(a), _SLICE):
            mine, theirs = (x[begin : begin + _SLICE].to(dtype) for x in (a, b))
            if not (torch.equal(mine, theirs) and bool(mine.isfinite().all())):
                return False
        return True

    if a.is_complex() or b.is_complex():
        return None
    return next((name for name in _ROUNDINGS if alike(getattr(torch, name))), None)


def fingerprint(tensors: "Mapping[str, Tensor]") -> str:
    """The sha256 of tensors: of names, in order, with shapes and numbers.

    Numbers are taken in float64, which holds those of all other dtypes: weights that were stored
    in half precision, and are computed with in float32, remain the same weights.
    """
    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(json.dumps([name, "float64", list(tensor.shape)]).encode() + b"\n")
        state.update(tensor.detach().cpu().double().reshape(-1).numpy().data)
    return state.hexdigest()
