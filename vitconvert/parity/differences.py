"""How two implementations differ, in numbers: in their outputs, and in each layer."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outputs of two implementations for one batch of images in one dtype.

    Attributes:
        images: What was shown: "noise" or "photograph".
        dtype: Arithmetic and weights of both sides.
        absolute: Largest difference.
        relative: Largest difference over the largest magnitude of the reference.
        agreed: Rows in which the largest entry is the same one.
        rows: Rows of the output.
        bit_equal: Whether no bit differs.
        tolerance: Largest `relative` that rounding explains.
    """

    images: str
    dtype: str
    absolute: float
    relative: float
    agreed: int
    rows: int
    bit_equal: bool
    tolerance: float

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
    """The first layer whose output departs, and the change to our model that heals it."""

    layer: str
    dtype: str
    images: str
    relative: float
    cause: str  # in words; "unknown" if no known mistake explains it
