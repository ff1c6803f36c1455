"""BEiT's relative positions: a learned bias on attention scores for each offset between patches.

Bao et al., https://arxiv.org/abs/2106.08254, after Swin. Numbering as in timm 1.0.31,
`models/beit.py`, `gen_relative_position_index`.

Letters: H heads, N tokens (the class token, then the patches).
"""

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig


class RelativePositions(nn.Module):
    """The table that all blocks share."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.relative_position_bias_table = unset_table(config)


def unset_table(config: ViTConfig) -> nn.Parameter:
    """(offsets, H): one row for each offset of rows and columns, three for the class token."""
    return nn.Parameter(torch.empty(config.axes()["relative"], config.num_heads))


def relative_position_index(grid: tuple[int, int]) -> Tensor:
    """The row of the table for each pair of tokens.

    Returns:
        (N, N) int64, always on the CPU: a query's offset from a key, rows first, counted from the
        most negative; then class token to any, any to class token, class token to itself.
    """
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = (axis.flatten() for axis in torch.meshgrid(rows, columns, indexing="ij"))
    down = y[:, None] - y + grid[0] - 1
    across = x[:, None] - x + grid[1] - 1
    offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    index = torch.empty((len(y) + 1, len(y) + 1), dtype=torch.int64, device="cpu")
    index[1:, 1:] = down * (2 * grid[1] - 1) + across
    index[0, :] = offsets
    index[:, 0] = offsets + 1
    index[0, 0] = offsets + 2
    return index


def relative_position_bias(table: Tensor, index: Tensor) -> Tensor:
    """(1, H, N, N), to be added to attention scores.

    Without the first axis, fused attention on a CPU would take another path than in timm.
    """
    return table[index.to(table.device)].permute(2, 0, 1).contiguous()[None]
