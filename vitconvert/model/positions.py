"""Position tables: the fixed sine-cosine one, and resampling a learned one to another grid."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconvert.errors import ShapeMismatch, UsageError

# How each project fits a grid of positions to another image size, by the names of
# ViTConfig.position_resampling.
INTERPOLATION: dict[str, dict[str, str | bool]] = {
    "bicubic_antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
    "bicubic": {"mode": "bicubic", "align_corners": False},
    "bicubic_align_corners": {"mode": "bicubic", "align_corners": True},
    # scipy.ndimage.zoom(order=1) puts the corners of both grids on each other.
    "bilinear_align_corners": {"mode": "bilinear", "align_corners": True},
}


def sincos2d_positions(grid: tuple[int, int], dim: int, temperature: float = 10000.0) -> Tensor:
    """Fixed positions of big_vision (`posemb_sincos_2d`) and lucidrains' SimpleViT.

    Returns:
        (rows * columns, dim) float32, always on the CPU, also inside `torch.device("meta")`:
        sin x, cos x, sin y, cos y, each with dim/4 frequencies from 1 down to 1/temperature.
    """
    frequencies = torch.arange(dim // 4, device="cpu") / (dim // 4 - 1)
    omega = 1.0 / temperature**frequencies
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    y = y.flatten()[:, None] * omega
    x = x.flatten()[:, None] * omega
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)


def resample_positions(
    pos_embed: Tensor,
    *,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    prefix: int,
    rule: str,
) -> Tensor:
    """Fit learned positions to another grid of patches, by the rule of the project they come from.

    Args:
        pos_embed: (1, prefix + old rows * old columns, D), rows of the grid one after another.
        old_grid: Patches down and across that `pos_embed` was made for.
        new_grid: Patches down and across to fit.
        prefix: Leading positions that belong to no patch; they are kept as they are.
        rule: One of `vitconvert.config.RESAMPLINGS`.

    Returns:
        (1, prefix + new rows * new columns, D), in the dtype of `pos_embed`, computed in float32.
        For an unchanged grid, `pos_embed` itself.

    Raises:
        ShapeMismatch: `pos_embed` does not hold prefix + old rows * old columns positions.
        UsageError: `rule` is none of the known ones.
    """
    if rule not in INTERPOLATION:
        raise UsageError(
            f"{rule!r} is no rule for resampling positions.",
            evidence={"known": ", ".join(INTERPOLATION)},
        )
    _check_positions(pos_embed, old_grid, prefix)
    if old_grid == new_grid:
        return pos_embed
    grid = pos_embed[:, prefix:].float().reshape(1, *old_grid, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=new_grid, **INTERPOLATION[rule])  # type: ignore[arg-type]
    patches = grid.permute(0, 2, 3, 1).flatten(1, 2).to(pos_embed.dtype)
    return torch.cat((pos_embed[:, :prefix], patches), dim=1)


def _check_positions(pos_embed: Tensor, grid: tuple[int, int], prefix: int) -> None:
    rows, columns = grid
    wanted = prefix + rows * columns
    if pos_embed.ndim == 3 and pos_embed.shape[:2] == (1, wanted):
        return
    raise ShapeMismatch(
        "The position table does not fit the grid that it is said to come from.",
        evidence={
            "found": " ".join(map(str, pos_embed.shape)),
            "wanted": f"1 {wanted} width",
        },
        meaning=f"{wanted} = {prefix} + {rows}*{columns}: prefix tokens, rows times columns.",
    )
