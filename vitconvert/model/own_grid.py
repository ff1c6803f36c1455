"""Learned positions with a grid of their own, which the model fits to the grid of the image.

Either each place of that grid has a position, or each row and each column has one, and the two are
added. Operations and their order are those of timm 1.0.31: `NaFlexEmbeds` (naflexvit.py),
`resample_pos_embed_grid` (qwen3_vit.py) and `Gemma4PatchEmbed` (gemma4_vit.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.resampling import INTERPOLATION


class GridPositions(nn.Module):
    """A position for each place of a grid, resized like an image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.empty(1, *config.position_grid, config.embed_dim))

    def forward(self) -> Tensor:
        """(1, patches, D)."""
        return _fitted(self.table, self.config)


class GridAfterOne(nn.Module):
    """The same after a row that is not used: ViTDet keeps the position of a class token.

    detectron2, `get_abs_pos`; transformers 5.23, `VitDetEmbeddings`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        rows = config.axes()["grid_after_one"]
        self.after_one = nn.Parameter(torch.empty(1, rows, config.embed_dim))

    def forward(self) -> Tensor:
        """(1, patches, D)."""
        grid = self.after_one[:, 1:].reshape(1, *self.config.position_grid, -1)
        return _fitted(grid, self.config)


def _fitted(table: Tensor, config: ViTConfig) -> Tensor:
    """(1, rows, columns, D) of the positions' own grid to (1, patches, D) of the image's."""
    rows, columns = config.grid_size
    if not config.fitted_grid:
        return table.flatten(1, 2)
    if config.position_resampling == "first":
        return table[:, :rows, :columns].flatten(1, 2)
    grid = table.permute(0, 3, 1, 2)
    at_least = torch.promote_types(grid.dtype, torch.float32)
    how = INTERPOLATION[config.position_resampling]
    grid = F.interpolate(grid.to(at_least), size=_lengths(config), **how)  # type: ignore[arg-type]
    return grid[:, :, :rows, :columns].flatten(2).transpose(1, 2).to(table.dtype)


class AxisPositions(nn.Module):
    """A position for each row and one for each column, added."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        rows, columns = config.position_grid
        self.y = nn.Parameter(torch.empty(1, rows, config.embed_dim))
        self.x = nn.Parameter(torch.empty(1, columns, config.embed_dim))

    def forward(self) -> Tensor:
        """(1, patches, D)."""
        rows, columns = self.config.grid_size
        height, width = _lengths(self.config)
        y, x = self._fitted(self.y, height), self._fitted(self.x, width)
        return (y[:, :rows, None] + x[:, None, :columns]).flatten(1, 2)

    def _fitted(self, table: Tensor, length: int) -> Tensor:
        if table.shape[1] == length or self.config.position_resampling == "first":
            return table
        at_least = torch.promote_types(table.dtype, torch.float32)
        line = table.permute(0, 2, 1).to(at_least)
        return F.interpolate(line, size=length, mode="linear").permute(0, 2, 1).to(table.dtype)


def own_grid_of(config: ViTConfig) -> GridPositions | GridAfterOne | AxisPositions | None:
    """The positions that have a grid of their own, if the model has such."""
    if config.grid_positions:
        return GridPositions(config)
    if config.class_grid_positions:
        return GridAfterOne(config)
    return AxisPositions(config) if config.axis_positions else None


def _lengths(config: ViTConfig) -> tuple[int, int]:
    """Rows and columns to which the positions are resized."""
    return (max(config.grid_size),) * 2 if config.position_square else config.grid_size
