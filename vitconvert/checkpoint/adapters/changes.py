"""What an adapter makes of one tensor of a model, in float64, as PEFT merges it.

LoRA, arXiv 2106.09685: W + scale * B A. DoRA, 2402.09353: and each output's row has a length of its
own. IA3, 2205.05638: outputs or inputs times a vector. LoHa, 2108.06098: the elementwise product
of two low-rank matrices is added. LoKr, 2212.10650: the Kronecker product of two matrices is added.
Sources: PEFT 0.21, layer.py of lora, ia3, loha and lokr in peft/tuners, and lora/dora.py.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    Read = Callable[[str], Tensor]


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """LoRA's or DoRA's change of one tensor: names in the adapter's file, and the scale."""

    down: str
    up: str
    rank: int
    scale: float
    magnitude: str | None = None
    embedding: bool = False

    def applied(self, weight: "Tensor", read: "Read") -> "Tensor":
        """The weight with the change."""
        down, up = read(self.down), read(self.up)
        matrix: Tensor = self.scale * (up.double().flatten(1) @ down.double().flatten(1))
        shaped = matrix.T if self.embedding else matrix.reshape(up.shape[0], *down.shape[1:])
        weight = weight + shaped
        if self.magnitude is not None:
            rows = weight.flatten(1)
            lengths = rows.norm(dim=1, keepdim=True)
            magnitudes = read(self.magnitude).double().reshape(-1, 1)
            weight = (rows / lengths * magnitudes).reshape(weight.shape)
        return weight


@dataclass(frozen=True, kw_only=True)
class Factors:
    """IA3's change of a weight or a bias: a factor for each entry of one of its axes."""

    factors: str
    axis: int

    def applied(self, weight: "Tensor", read: "Read") -> "Tensor":
        """The weight with the change."""
        shape = [1] * weight.ndim
        shape[self.axis] = -1
        return weight * read(self.factors).double().reshape(shape)


@dataclass(frozen=True, kw_only=True)
class Product:
    """LoHa's or LoKr's change of a weight: one or two factors of each of two matrices.

    The second of LoKr may be a kernel, (out, in, height, width).
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    rank: int
    scale: float
    kronecker: bool

    def applied(self, weight: "Tensor", read: "Read") -> "Tensor":
        """The weight with the change."""
        import torch

        first, second = (
            functools.reduce(torch.matmul, [read(name).double() for name in names])
            for names in (self.first, self.second)
        )
        if second.ndim > first.ndim:
            first = first[:, :, None, None]
        product = torch.kron(first, second) if self.kronecker else first * second
        return weight + self.scale * product.reshape(weight.shape)


Change = LowRank | Factors | Product
