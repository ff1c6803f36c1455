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
from vitconvert.model.open_sizes import axis_shares, counted, is_open, resized
from vitconvert.model.resampling import INTERPOLATION, Grid, resample_positions

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

    def forward(
        self, patches: Tensor, prefix: Sequence[Tensor], table: Tensor | None, grid: Grid
    ) -> Tensor:
        """Patches (B, P, D) of a grid and prefix tokens (B, count, D) each to (B, N, D)."""
        table = None if table is None else self.of_grid(table, grid)
        if table is not None and self.of_patches_only:
            patches = patches + table
        fitted = self.fitted(grid)
        if fitted is not None:
            patches = patches + fitted
        early = prefix[:-1] if self.late else prefix
        x = torch.cat([*early, patches], dim=1) if early else patches
        if table is not None and not self.of_patches_only:
            x = x + table
        if self.late:
            x = torch.cat([x[:, : len(early)], prefix[-1], x[:, len(early) :]], dim=1)
        return x

    def of_grid(self, table: Tensor, grid: Grid) -> Tensor:
        """The table (1, rows, D) of the model's own size, for images of another grid."""
        config = self.config
        if not is_open(grid) and grid == config.grid_size:
            return table
        if config.computed_positions:
            return computed_positions(config, grid)[None].to(table)
        return resample_positions(
            table,
            old_grid=config.grid_size,
            new_grid=grid,
            prefix=config.num_prefix_positions,
            rule=config.position_resampling,
        )

    def fitted(self, grid: Grid) -> Tensor | None:  # noqa: ARG002
        """Positions of a grid of their own, fitted to the patches, (1, P, D); None without one."""
        return None


class GridPositions(Positions):
    """A position for each place of a grid, resized like an image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(1, *config.position_grid, config.embed_dim))

    def fitted(self, grid: Grid) -> Tensor:
        """(1, P, D)."""
        return _fitted(self.table, self.config, grid)


class GridAfterOne(Positions):
    """The same after a row that is not used: ViTDet keeps the position of a class token.

    detectron2, `get_abs_pos`; transformers 5.23, `VitDetEmbeddings`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rows = config.axes()["grid_after_one"]
        self.after_one = nn.Parameter(torch.empty(1, rows, config.embed_dim))

    def fitted(self, grid: Grid) -> Tensor:
        """(1, P, D)."""
        table = self.after_one[:, 1:].reshape(1, *self.config.position_grid, -1)
        return _fitted(table, self.config, grid)


class OnePosition(Positions):
    """The same vector for every patch.

    facebookresearch/vjepa2 (204698b), `app/vjepa_2_1/models/vision_transformer.py`: which of two
    it is tells clips from images.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.one = nn.Parameter(torch.empty(1, 1, config.embed_dim))

    def fitted(self, grid: Grid) -> Tensor:  # noqa: ARG002
        """(1, 1, D)."""
        return self.one


class AxisPositions(Positions):
    """A position for each row and one for each column, added."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rows, columns = config.position_grid
        self.y = nn.Parameter(torch.empty(1, rows, config.embed_dim))
        self.x = nn.Parameter(torch.empty(1, columns, config.embed_dim))

    def fitted(self, grid: Grid) -> Tensor:
        """(1, P, D)."""
        rows, columns = grid
        rule, square = self.config.position_resampling, self.config.position_square
        if is_open(grid):
            counts = [counted(size, self.y.device) for size in grid]
            counts = [torch.maximum(*counts)] * 2 if square else counts
            y, x = (
                _open_line(table, size, count, rule)
                for table, size, count in zip((self.y, self.x), grid, counts, strict=True)
            )
        else:
            height, width = _lengths(self.config, grid)
            y, x = _line(self.y, height, rule), _line(self.x, width, rule)
        return (y[:, :rows, None] + x[:, None, :columns]).flatten(1, 2)


def positions_of(config: ViTConfig) -> Positions:
    """The positions of a configuration."""
    kinds = {"grid": GridPositions, "class_grid": GridAfterOne, "axes": AxisPositions}
    kinds["one"] = OnePosition
    return kinds.get(config.position_embedding, Positions)(config)


def _fitted(table: Tensor, config: ViTConfig, grid: Grid) -> Tensor:
    """(1, rows, columns, D) of the positions' own grid to (1, P, D) of the image's."""
    rows, columns = grid
    rule = config.position_resampling
    if is_open(grid):
        if rule not in ("first", "tile"):
            square = config.position_square
            return resized(table, grid, mode=rule, square=square).flatten(1, 2)
        y, x = (torch.arange(size, device=table.device) for size in grid)
        if rule == "tile":
            y, x = y % table.shape[1], x % table.shape[2]
        return table[:, y][:, :, x].flatten(1, 2)
    if config.position_grid == grid:
        return table.flatten(1, 2)
    if rule == "first":
        return table[:, :rows, :columns].flatten(1, 2)
    if rule == "tile":
        down, across = (-(-n // own) for n, own in zip(grid, table.shape[1:3], strict=True))
        return table.repeat(1, down, across, 1)[:, :rows, :columns].flatten(1, 2)
    image = table.permute(0, 3, 1, 2)
    at_least = torch.promote_types(image.dtype, torch.float32)
    how = INTERPOLATION[rule]
    size = _lengths(config, grid)
    image = F.interpolate(image.to(at_least), size=size, **how)  # type: ignore[arg-type]
    return image[:, :, :rows, :columns].flatten(2).transpose(1, 2).to(table.dtype)


def _line(table: Tensor, length: int, rule: str) -> Tensor:
    """(1, own length, D) to (1, length, D), or as it is if the first positions are taken."""
    if table.shape[1] == length or rule == "first":
        return table
    at_least = torch.promote_types(table.dtype, torch.float32)
    line = table.permute(0, 2, 1).to(at_least)
    return F.interpolate(line, size=length, mode="linear").permute(0, 2, 1).to(table.dtype)


def _open_line(table: Tensor, length: int, count: Tensor, rule: str) -> Tensor:
    """The same for a length that is a symbol, scaled to `count` of them."""
    if rule == "first":
        return table[:, torch.arange(length, device=table.device)]
    shares = axis_shares("bilinear", table.shape[1], length, count)
    return (shares @ table.float()).to(table.dtype)


def _lengths(config: ViTConfig, grid: Grid) -> Grid:
    """Rows and columns to which the positions are resized."""
    return (max(grid),) * 2 if config.position_square else grid


def computed_positions(config: ViTConfig, grid: Grid | None = None) -> Tensor:
    """The fixed positions of a configuration, (P, D) or (N, D), float32 on the CPU.

    By default of its own grid.
    """
    grid = grid or config.grid_size
    if config.position_embedding == "sincos1d":
        count = config.num_prefix_positions + config.time_steps * grid[0] * grid[1]
        return sincos1d_positions(count, config.embed_dim)
    if config.position_embedding == "sincos2d_mae":
        return sincos2d_mae_positions(grid, config.embed_dim)
    return sincos2d_positions(grid, config.embed_dim)


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
    parts = _sine_and_cosine(torch.arange(count, device="cpu"), frequencies)
    return torch.stack(parts, dim=-1).flatten(1).float()


def _sines_and_cosines(grid: tuple[int, int], omega: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    of_y, of_x = (_sine_and_cosine(places.flatten(), omega) for places in (y, x))
    return torch.cat((*of_x, *of_y), dim=1)


def _sine_and_cosine(places: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) and (frequencies,) to (n, frequencies) each, in the dtype of `omega`.

    Not every runtime has sines in float64. Where the number of places is open, they are those of a
    sum: of eight bits of each frequency, whose products are exact, and of the rest.
    """
    if not is_open((places.shape[0], 0)):
        angles = places[:, None] * omega
        return angles.sin(), angles.cos()
    first = omega.to(torch.bfloat16).to(omega.dtype)
    a, b = (places[:, None].float() * part.float() for part in (first, omega - first))
    sine = a.sin() * b.cos() + a.cos() * b.sin()
    return sine, a.cos() * b.cos() - a.sin() * b.sin()
