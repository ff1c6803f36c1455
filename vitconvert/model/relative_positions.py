"""Relative positions: what is added to attention scores, by the offset of a key from a query.

A learned table (BEiT, https://arxiv.org/abs/2106.08254), or an MLP that makes the table of the
logarithms of offsets (Swin Transformer V2, https://arxiv.org/abs/2111.09883). Operations and their
order are those of timm 1.0.31 (`layers/pos_embed_rel.py`, with `RelPosMlp` in its mode "cr", and
`beit.py`).

Letters: N tokens, H heads.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import linear
from vitconvert.model.open_sizes import Grid
from vitconvert.model.resampling import resample_relative_positions

torch.fx.wrap("relative_position_bias")


class RelativePositions(nn.Module):
    """The table that all blocks share."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.relative_position_bias_table = unset_table(config)

    def forward(self, _offsets: Tensor | None, index: Tensor, grid: Grid) -> Tensor:
        """(1, H, N, N), to be added to attention scores."""
        table = table_of_grid(self.relative_position_bias_table, self.config, grid)
        return relative_position_bias(table, index)


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

    def forward(self, offsets: Tensor, index: Tensor, _grid: Grid | None = None) -> Tensor:
        """(1, H, N, N), to be added to attention scores; zero for the class token.

        Args:
            offsets: Of `log_offsets`.
            index: Of `relative_position_index`, without a class token.
        """
        bias = relative_position_bias(self.mlp(offsets).flatten(0, 1), index)
        return F.pad(bias, [self.prefix, 0, self.prefix, 0]) if self.prefix else bias


def shared_relative_positions(config: ViTConfig) -> RelativePositions | RelativeMlp | None:
    """What all blocks share, without weights; None where each has its own, or none."""
    if config.shared_relative_positions:
        return RelativePositions(config)
    return RelativeMlp(config) if config.shared_relative_mlp else None


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
    of_class = torch.full_like(patches[:1], 0) + offsets
    index = torch.cat((of_class, patches))
    to_class = torch.full_like(index[:, :1], 0) + offsets + 1
    to_class = torch.cat((to_class[:1] + 1, to_class[1:]))
    return torch.cat((to_class, index), dim=1)


def table_of_grid(table: Tensor, config: ViTConfig, grid: Grid | None) -> Tensor:
    """A table of the model's own size for images of another grid; None: for the model's own."""
    if grid is None:
        return table
    return resample_relative_positions(
        table, old_grid=config.grid_size, new_grid=grid, rule=config.relative_resampling
    )


def relative_position_bias(table: Tensor, index: Tensor) -> Tensor:
    """(1, H, N, N), to be added to attention scores.

    Without the first axis, fused attention on a CPU would take another path than in timm.
    """
    return table[index.to(table.device)].permute(2, 0, 1).contiguous()[None]


def log_offsets(grid: tuple[int, int]) -> Tensor:
    """(2 rows - 1, 2 columns - 1, 2) float32, always on the CPU: of rows, of columns."""
    axes = (torch.arange(2 * side - 1, device="cpu").float() - (side - 1) for side in grid)
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return offsets.sign() * torch.log(1.0 + offsets.abs())


def relative_tables(config: ViTConfig, grid: Grid) -> dict[str, Tensor]:
    """What the blocks look up or compute relative positions from, on the CPU; {} without such."""
    if not config.tabulated_positions:
        return {}
    if config.relative_mlp_dim:
        index = relative_position_index(grid, class_token=False)
        return {"relative_index": index, "relative_offsets": log_offsets(grid)}
    index = relative_position_index(grid, class_token=config.class_token)
    return {"relative_index": index}
