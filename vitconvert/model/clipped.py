"""Linear layers that clip what they read and what they give: Gemma 4's, trained for few bits.

timm 1.0.31, `Gemma4ClippableLinear`; transformers 5.23, `Gemma4ClippableLinear`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import linear


class ClippedLinear(nn.Linear):
    """A linear layer with bounds: the least and the most that it reads, and that it gives."""

    bounds: Tensor

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.register_buffer("bounds", torch.empty(4))

    def reset_parameters(self) -> None:
        """Initialise as torch does, except on the meta device; `open_bounds` makes the bounds."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def open_bounds(self) -> None:
        """Clip nothing."""
        infinite = torch.tensor([-math.inf, math.inf] * 2, device="cpu")
        self.bounds.copy_(infinite)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        least, most, least_given, most_given = self.bounds.unbind()
        return _clipped(super().forward(_clipped(x, least, most)), least_given, most_given)


def _clipped(x: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """As torch.clamp, of which torch's export to ONNX confuses several of one tensor (2.15)."""
    x = torch.where(x < least, least, x)
    return torch.where(x > most, most, x)


def linear_of(config: ViTConfig) -> Callable[..., nn.Linear]:
    """What makes the linear layers of a model's blocks."""
    return ClippedLinear if config.clipped_linears else linear
