"""Positions that are added to tokens: a learned table, fixed sines and cosines, or a grid.

Operations and their order are those of timm 1.0.31: `VisionTransformer._pos_embed`, `NaFlexEmbeds`
(naflexvit.py), `resample_pos_embed_grid` (qwen3_vit.py) and `Gemma4PatchEmbed` (gemma4_vit.py).

Letters: B images, N tokens (prefix tokens, then patches row by row), P patches, D width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.resampling import INTERPOLATION

_TEMPERATURE = 10000.0  # of fixed positions, by the sources that each of their functions names

torch.fx.wrap("_line")


class Positions(nn.Module):
    """Adds positions to patches and prefix tokens, and puts these in front of the patches.

    The table is a parameter or buffer of `ViT`, where timm has it. Subclasses have positions on a
    grid of their own, which they fit to the grid of the image.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.of_patches_only = config.no_embed_class or not config.numbered_positions
        # DINOv2 inserts its registers after the positions are added.
        self.late = 0 if config.register_positions else config.num_registers

    def forward(self, patches: Tensor, prefix: Sequence[Tensor], table: Tensor | None) -> Tensor:
        """Patches (B, P, D) and prefix tokens (B, count, D) each to (B, N, D)."""
        if table is not None and self.of_patches_only:
            patches = patches + table
        fitted = self.fitted()
        if fitted is not None:
            patches = patches + fitted
        early = prefix[:-1] if self.late else prefix
        x = torch.cat([*early, patches], dim=1) if early else patches
        if table is not None and not self.of_patches_only:
            x = x + table
        if self.late:
            x = torch.cat([x[:, : len(early)], prefix[-1], x[:, len(early) :]], dim=1)
        return x

    def fitted(self) -> Tensor | None:
        """Positions of a grid of their own, fitted to the patches, (1, P, D); None without one."""
        return None


class GridPositions(Positions):
    """A position for each place of a grid, resized like an image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(1, *config.position_grid, config.embed_dim))

    def fitted(self) -> Tensor:
        """(1, P, D)."""
        return _fitted(self.table, self.config)


class GridAfterOne(Positions):
    """The same after a row that is not used: ViTDet keeps the position of a class token.

    detectron2, `get_abs_pos`; transformers 5.23, `VitDetEmbeddings`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rows = config.axes()["grid_after_one"]
        self.after_one = nn.Parameter(torch.empty(1, rows, config.embed_dim))

    def fitted(self) -> Tensor:
        """(1, P, D)."""
        grid = self.after_one[:, 1:].reshape(1, *self.config.position_grid, -1)
        return _fitted(grid, self.config)


class AxisPositions(Positions):
    """A position for each row and one for each column, added."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rows, columns = config.position_grid
        self.y = nn.Parameter(torch.empty(1, rows, config.embed_dim))
        self.x = nn.Parameter(torch.empty(1, columns, config.embed_dim))

    def fitted(self) -> Tensor:
        """(1, P, D)."""
        rows, columns = self.config.grid_size
        height, width = _lengths(self.config)
        rule = self.config.position_resampling
        y, x = _line(self.y, height, rule), _line(self.x, width, rule)
        return (y[:, :rows, None] + x[:, None, :columns]).flatten(1, 2)


def positions_of(config: ViTConfig) -> Positions:
    """The positions of a configuration."""
    kinds = {"grid": GridPositions, "class_grid": GridAfterOne, "axes": AxisPositions}
    return kinds.get(config.position_embedding, Positions)(config)


def _fitted(table: Tensor, config: ViTConfig) -> Tensor:
    """(1, rows, columns, D) of the positions' own grid to (1, P, D) of the image's."""
    rows, columns = config.grid_size
    if not config.fitted_grid:
        return table.flatten(1, 2)
    if config.position_resampling == "first":
        return table[:, :rows, :columns].flatten(1, 2)
    if config.position_resampling == "tile":
        down, across = (
            -(-n // own) for n, own in zip(config.grid_size, table.shape[1:3], strict=True)
        )
        return table.repeat(1, down, across, 1)[:, :rows, :columns].flatten(1, 2)
    grid = table.permute(0, 3, 1, 2)
    at_least = torch.promote_types(grid.dtype, torch.float32)
    how = INTERPOLATION[config.position_resampling]
    grid = F.interpolate(grid.to(at_least), size=_lengths(config), **how)  # type: ignore[arg-type]
    return grid[:, :, :rows, :columns].flatten(2).transpose(1, 2).to(table.dtype)


def _line(table: Tensor, length: int, rule: str) -> Tensor:
    """(1, own length, D) to (1, length, D), or as it is if the first positions are taken."""
    if table.shape[1] == length or rule == "first":
        return table
    at_least = torch.promote_types(table.dtype, torch.float32)
    line = table.permute(0, 2, 1).to(at_least)
    return F.interpolate(line, size=length, mode="linear").permute(0, 2, 1).to(table.dtype)


def _lengths(config: ViTConfig) -> tuple[int, int]:
    """Rows and columns to which the positions are resized."""
    return (max(config.grid_size),) * 2 if config.position_square else config.grid_size


def computed_positions(config: ViTConfig) -> Tensor:
    """The fixed positions of a configuration, (P, D) or (N, D), float32 on the CPU."""
    if config.position_embedding == "sincos1d":
        return sincos1d_positions(config.num_positions, config.embed_dim)
    if config.position_embedding == "sincos2d_mae":
        return sincos2d_mae_positions(config.grid_size, config.embed_dim)
    return sincos2d_positions(config.grid_size, config.embed_dim)


def sincos2d_positions(grid: tuple[int, int], dim: int) -> Tensor:
    """Fixed positions of big_vision (`posemb_sincos_2d`) and lucidrains' SimpleViT.

    Returns:
        (rows * columns, dim) float32, always on the CPU, even inside `torch.device("meta")`:
        sin x, cos x, sin y, cos y, each with dim/4 frequencies from 1 down to 1/10000.
    """
    frequencies = torch.arange(dim // 4, dtype=torch.float32, device="cpu") / (dim // 4 - 1)
    return _sines_and_cosines(grid, 1.0 / _TEMPERATURE**frequencies)


def sincos2d_mae_positions(grid: tuple[int, int], dim: int) -> Tensor:
    """Fixed positions of MAE (`get_2d_sincos_pos_embed`), computed in float64.

    AIMv2 for images of native size uses them too (transformers 5.23,
    `build_2d_sinusoidal_position_embedding`).

    Returns:
        As `sincos2d_positions`, but the dim/4 frequencies end before 1/10000.
    """
    frequencies = torch.arange(dim // 4, device="cpu", dtype=torch.float64) / (dim // 4)
    return _sines_and_cosines(grid, 1.0 / _TEMPERATURE**frequencies).float()


def sincos1d_positions(count: int, dim: int) -> Tensor:
    """Fixed positions of a sequence (Vaswani et al. 2017, section 3.5), computed in float64.

    Tutorials count the class token as the first; MAE-pytorch and VideoMAE, patches alone
    (`get_sinusoid_encoding_table`).

    Returns:
        (count, dim) float32, on the CPU: the sine and the cosine of each of dim/2 frequencies.
    """
    frequencies = _TEMPERATURE ** -(torch.arange(0, dim, 2, device="cpu").double() / dim)
    angles = torch.arange(count, device="cpu")[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


def _sines_and_cosines(grid: tuple[int, int], omega: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    y = y.flatten()[:, None] * omega
    x = x.flatten()[:, None] * omega
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)
