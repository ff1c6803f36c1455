"""Relative positions that are learned: a table of what is added to attention scores, by offset.

BEiT, https://arxiv.org/abs/2106.08254. Operations and their order are those of timm 1.0.31
(`layers/pos_embed_rel.py`, `beit.py`).

Letters: N tokens, H heads.
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


def relative_position_index(grid: tuple[int, int], *, class_token: bool = True) -> Tensor:
    """The row of the table for each pair of tokens.

    Args:
        grid: Patches down and across.
        class_token: Whether a class token comes first; without one, N is the number of patches.

    Returns:
        (N, N) int64, always on the CPU: a query's offset from a key, rows first, counted from the
        most negative; then class token to any, any to class token, class token to itself.
    """
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = (axis.flatten() for axis in torch.meshgrid(rows, columns, indexing="ij"))
    down = y[:, None] - y + grid[0] - 1
    across = x[:, None] - x + grid[1] - 1
    patches = down * (2 * grid[1] - 1) + across
    if not class_token:
        return patches
    offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    index = torch.empty((len(y) + 1, len(y) + 1), dtype=torch.int64, device="cpu")
    index[1:, 1:] = patches
    index[0, :] = offsets
    index[:, 0] = offsets + 1
    index[0, 0] = offsets + 2
    return index


def relative_position_bias(table: Tensor, index: Tensor) -> Tensor:
    """(1, H, N, N), to be added to attention scores.

    Without the first axis, fused attention on a CPU would take another path than in timm.
    """
    return table[index.to(table.device)].permute(2, 0, 1).contiguous()[None]
