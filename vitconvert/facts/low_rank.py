"""The arithmetic of LoRA and DoRA: a product of two small matrices added to a large one.

Sources: PEFT 0.21, tuners/lora/layer.py and dora.py; LoRA, arXiv 2106.09685; DoRA, 2402.09353.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A weight with its change, and what that did.

    Attributes:
        tensor: In the dtype of the weight, rounded once.
        change: The largest change, over the largest weight.
        rounding: The largest error of that rounding, over the largest weight.
    """

    tensor: "Tensor"
    change: float
    rounding: float


def shape_of_product(down: Shape, up: Shape, *, embedding: bool = False) -> Shape | None:
    """The shape of the weight that two matrices are for, or None if they do not fit each other.

    `down` is (r, in) or, of a convolution, (r, in, height, width); `up` is (out, r), with two
    dimensions of 1 for a convolution. Of embeddings the product is transposed: (in, out).
    """
    if len(down) < 2 or len(up) < 2 or up[1] != down[0] or any(n != 1 for n in up[2:]):
        return None
    if len(up) not in (2, len(down)):
        return None
    return (down[1], up[0]) if embedding else (up[0], *down[1:])


def product(down: "Tensor", up: "Tensor", scale: float, *, embedding: bool = False) -> "Tensor":
    """What is added to a weight, in float64."""
    matrix = scale * (up.double().flatten(1) @ down.double().flatten(1))
    return matrix.T if embedding else matrix.reshape(up.shape[0], *down.shape[1:])


def merged(weight: "Tensor", change: "Tensor", magnitude: "Tensor | None" = None) -> Merged:
    """Add a change to a weight; with a magnitude, give each output's row that length (DoRA)."""
    before = weight.double()
    exact = before + change
    if magnitude is not None:
        rows = exact.flatten(1)
        lengths = rows.norm(dim=1, keepdim=True)
        exact = (rows / lengths * magnitude.double().reshape(-1, 1)).reshape(exact.shape)
    tensor = exact.to(weight.dtype)
    largest = max(float(before.abs().max()), 1e-300)
    return Merged(
        tensor=tensor,
        change=float((exact - before).abs().max()) / largest,
        rounding=float((tensor.double() - exact).abs().max()) / largest,
    )
