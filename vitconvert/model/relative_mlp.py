"""Relative positions that an MLP makes of the logarithms of offsets.

Liu et al., Swin Transformer V2, https://arxiv.org/abs/2111.09883. Operations and their order are
those of timm 1.0.31 (`layers/pos_embed_rel.py`, `RelPosMlp` in its mode "cr").

Letters: N tokens, H heads.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import linear
from vitconvert.model.relative_positions import relative_position_bias


class RelativeMlp(nn.Module):
    """An MLP whose outputs, one for each head, are the table of relative positions."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.prefix = config.num_prefix_tokens
        layers = {
            "fc1": linear(2, config.relative_mlp_dim),
            "act": nn.ReLU(),
            "drop": nn.Dropout(0.125),  # timm's, which no argument changes
            "fc2": linear(config.relative_mlp_dim, config.num_heads),
        }
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, offsets: Tensor, index: Tensor) -> Tensor:
        """(1, H, N, N), to be added to attention scores; zero for the class token.

        Args:
            offsets: Of `log_offsets`.
            index: Of `relative_position_index`, without a class token.
        """
        bias = relative_position_bias(self.mlp(offsets).flatten(0, 1), index)
        return F.pad(bias, [self.prefix, 0, self.prefix, 0]) if self.prefix else bias


def log_offsets(grid: tuple[int, int]) -> Tensor:
    """(2 rows - 1, 2 columns - 1, 2) float32, always on the CPU: of rows, of columns."""
    axes = (torch.arange(1.0 - side, side, device="cpu") for side in grid)
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return offsets.sign() * torch.log(1.0 + offsets.abs())
