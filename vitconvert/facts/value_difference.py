"""How the numbers of two tensors differ. torch is imported when the first two are compared."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SLICE = 2**20  # elements that are compared at once
_ROUNDINGS = ("float32", "float16", "bfloat16")  # in the order in which they are tried


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

    def to_dict(self) -> dict[str, Any]:
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


def compare_values(a: "torch.Tensor", b: "torch.Tensor") -> ValueDifference | None:
    """How two tensors of one shape differ, or None where dtype and every bit are equal."""
    import torch

    shape, a, b = a.shape, a.reshape(-1).contiguous(), b.reshape(-1).contiguous()
    if a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return None
    differing, not_finite, largest, scale = 0, 0, 0.0, 0.0
    first: int | None = None
    for begin, mine, theirs in _slices(a, b):
        mine, theirs = _wide(mine), _wide(theirs)
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
        first=None if first is None else _index(first, shape),
        equal_in=_equal_in(a, b) if differing else None,
    )


def _slices(
    a: "torch.Tensor", b: "torch.Tensor"
) -> "Iterator[tuple[int, torch.Tensor, torch.Tensor]]":
    for begin in range(0, len(a), _SLICE):
        yield begin, a[begin : begin + _SLICE], b[begin : begin + _SLICE]


def _wide(x: "torch.Tensor") -> "torch.Tensor":
    import torch

    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    for size in reversed(shape):
        place, step = divmod(place, size)
        found = (step, *found)
    return found


def _equal_in(a: "torch.Tensor", b: "torch.Tensor") -> str | None:
    import torch

    if a.is_complex() or b.is_complex():
        return None
    for name in _ROUNDINGS:
        dtype = getattr(torch, name)
        if all(_round_alike(mine.to(dtype), theirs.to(dtype)) for _, mine, theirs in _slices(a, b)):
            return name
    return None


def _round_alike(a: "torch.Tensor", b: "torch.Tensor") -> bool:
    """Whether both are equal, and not because both overflowed."""
    import torch

    return torch.equal(a, b) and bool(a.isfinite().all())
