"""Fits learned positions and patch kernels to other sizes, by the rules of their projects."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconvert.config.buckets import buckets
from vitconvert.config.vocabularies import RELATIVE_RESAMPLINGS, RESAMPLINGS
from vitconvert.errors import ShapeMismatch, UsageError, size_text
from vitconvert.model.open_sizes import axis_shares, counted, is_open, resized

# How each project fits a grid of positions to another image size; keys are the values of
# ViTConfig.position_resampling.
INTERPOLATION: dict[str, dict[str, str | bool]] = {
    "bicubic_antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
    "bicubic": {"mode": "bicubic", "align_corners": False},
    "bicubic_align_corners": {"mode": "bicubic", "align_corners": True},
    "bicubic_offset": {"mode": "bicubic", "align_corners": False},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bilinear_antialias": {"mode": "bilinear", "align_corners": False, "antialias": True},
    # scipy.ndimage.zoom(order=1) aligns the corners of both grids.
    "bilinear_align_corners": {"mode": "bilinear", "align_corners": True},
}
# Added to the new size, which is then divided by the old one to give torch a scale factor. DINO did
# so against rounding (https://github.com/facebookresearch/dino/issues/8); it shifts every sample a
# little.
OFFSET = {"bicubic_offset": 0.1}

Grid = tuple[int, int]  # patches down and across


def resample_positions(
    pos_embed: Tensor,
    *,
    old_grid: Grid,
    new_grid: Grid,
    prefix: int,
    rule: str,
) -> Tensor:
    """Fit learned positions to another grid of patches, by the rule of the project they come from.

    Args:
        pos_embed: (1, prefix + old rows * old columns, D), rows of the grid one after another.
        old_grid: Patches down and across that `pos_embed` was made for.
        new_grid: Patches down and across to fit.
        prefix: Leading positions that belong to no patch; they are not changed.
        rule: One of `vitconvert.config.vocabularies.RESAMPLINGS`; or "first", which takes the first
            rows and columns (M2D, https://arxiv.org/abs/2406.02032, `LocalViT`); or "bucketed" (see
            `vitconvert.config.buckets`).

    Returns:
        (1, prefix + new rows * new columns, D), in the dtype of `pos_embed`, computed in float32.
        For an unchanged grid, `pos_embed` itself.

    Raises:
        ShapeMismatch: `pos_embed` does not hold prefix + old rows * old columns positions.
        UsageError: `rule` is unknown, or takes the first of fewer positions than are needed.
    """
    if rule not in ("first", "bucketed"):
        _check_rule(rule, RESAMPLINGS)
    _check_positions(pos_embed, old_grid, prefix)
    if rule == "first" and not is_open(new_grid) and new_grid != old_grid:
        return _first_positions(pos_embed, old_grid, new_grid, prefix)
    if rule == "bucketed" and not is_open(new_grid) and new_grid != old_grid:
        grid = pos_embed[:, prefix:].reshape(1, *old_grid, -1)
        y, x = (list(buckets(*sizes)) for sizes in zip(old_grid, new_grid, strict=True))
        return torch.cat((pos_embed[:, :prefix], grid[:, y][:, :, x].flatten(1, 2)), dim=1)
    if is_open(new_grid):
        table = pos_embed[:, prefix:].reshape(1, *old_grid, -1)
        mode, offset = rule.removesuffix("_offset"), OFFSET.get(rule, 0.0)
        fitted = resized(table, new_grid, mode=mode, offset=offset).flatten(1, 2)
        return torch.cat((pos_embed[:, :prefix], fitted), dim=1)
    if old_grid == new_grid:
        return pos_embed
    grid = pos_embed[:, prefix:].float().reshape(1, *old_grid, -1).permute(0, 3, 1, 2)
    size: dict[str, tuple[float, ...]] = {"size": new_grid}
    if rule in OFFSET:
        sizes = zip(new_grid, old_grid, strict=True)
        size = {"scale_factor": tuple((new + OFFSET[rule]) / old for new, old in sizes)}
    grid = F.interpolate(grid, **size, **INTERPOLATION[rule])  # type: ignore[arg-type]
    patches = grid.permute(0, 2, 3, 1).flatten(1, 2).to(pos_embed.dtype)
    return torch.cat((pos_embed[:, :prefix], patches), dim=1)


def _first_positions(pos_embed: Tensor, old_grid: Grid, new_grid: Grid, prefix: int) -> Tensor:
    (rows, columns), (old_rows, old_columns) = new_grid, old_grid
    if rows > old_rows or columns > old_columns:
        raise UsageError(
            f"{size_text(old_grid)} positions are too few for {size_text(new_grid)} patches.",
            hint="position_resampling = 'first' takes the first of them: choose a smaller image.",
        )
    grid = pos_embed[:, prefix:].reshape(1, *old_grid, -1)[:, :rows, :columns]
    return torch.cat((pos_embed[:, :prefix], grid.flatten(1, 2)), dim=1)


def resample_relative_positions(
    table: Tensor, *, old_grid: Grid, new_grid: Grid, rule: str
) -> Tensor:
    """Fit a BEiT table of relative positions to another grid of patches.

    "geometric": the offsets of the old grid are spread over those of the new one, in steps that
    grow geometrically, so that near patches keep their offsets. Values between them are
    interpolated linearly. timm 1.0.31, `resize_rel_pos_bias_table`, after BEiT's fine-tuning (cubic
    there).

    "bilinear": the table is resized as an image. transformers 5.23, `BeitRelativePositionBias`,
    after MiDaS 3.1, https://arxiv.org/abs/2307.14460.

    Args:
        table: (offsets, heads): (2 rows - 1)(2 columns - 1) of them, then three of the class token
            if there is one.
        old_grid: Patches down and across that `table` was made for.
        new_grid: Patches down and across to fit.
        rule: One of `vitconvert.config.vocabularies.RELATIVE_RESAMPLINGS`.

    Returns:
        (offsets, heads), in the dtype of `table`, computed in float32. For an unchanged grid,
        `table` itself.

    Raises:
        ShapeMismatch: `table` does not have the offsets of the old grid.
        UsageError: `rule` is unknown.
    """
    _check_rule(rule, RELATIVE_RESAMPLINGS)
    _check_relative_positions(table, old_grid)
    rows, columns = (2 * size - 1 for size in old_grid)
    of_patches, of_class = table.tensor_split([rows * columns])
    if is_open(new_grid) and rule == "bilinear":
        wanted = (2 * new_grid[0] - 1, 2 * new_grid[1] - 1)
        spread = resized(of_patches.reshape(1, rows, columns, -1), wanted, mode=rule)
        return torch.cat((spread.flatten(0, 2), of_class))
    if old_grid == new_grid:
        return table
    offsets = of_patches.float().reshape(rows, columns, -1)
    fitted = (
        _bilinear(offsets, new_grid)
        if rule == "bilinear"
        else _geometric(offsets, old_grid, new_grid)
    )
    return torch.cat((fitted.flatten(0, 1).to(table.dtype), of_class))


def _geometric(offsets: Tensor, old_grid: Grid, new_grid: Grid) -> Tensor:
    down, across = (_spread(*sizes) for sizes in zip(old_grid, new_grid, strict=True))
    return torch.einsum("Yy,Xx,yxh->YXh", down.to(offsets), across.to(offsets), offsets)


def _spread(old: int, new: int) -> Tensor:
    """(2 new - 1, 2 old - 1) float32: the share of each old offset in each new one."""
    # The farthest old offset, 1 + q + q^2 + ..., must fall on the farthest new one.
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if (1 - q ** (old - 1)) / (1 - q) > new - 1 else (q, high)
    plain: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the defaults are
    distances = torch.tensor([q**step for step in range(old - 1)], **plain).cumsum(0)
    offsets = torch.cat((-distances.flip(0), torch.zeros(1, **plain), distances))
    wanted = torch.arange(1.0 - new, new, **plain)
    if old == 1:
        return torch.ones(2 * new - 1, 1, **plain)
    right = torch.searchsorted(offsets, wanted).clamp(1, 2 * old - 2)
    share = (wanted - offsets[right - 1]) / (offsets[right] - offsets[right - 1])
    share = share.clamp(0, 1)  # beyond the farthest offset, its own value
    shares = torch.zeros(2 * new - 1, 2 * old - 1, **plain)
    shares.scatter_(1, right[:, None], share[:, None])
    return shares.scatter_(1, right[:, None] - 1, 1 - share[:, None])


def _bilinear(offsets: Tensor, new_grid: Grid) -> Tensor:
    size = (2 * new_grid[0] - 1, 2 * new_grid[1] - 1)
    resized = F.interpolate(offsets.permute(2, 0, 1)[None], size=size, mode="bilinear")
    return resized[0].permute(1, 2, 0)


def resample_decomposed_positions(vectors: Tensor, *, side: int) -> Tensor:
    """Fit vectors of the offsets of rows, or of columns, to another number of them.

    timm 1.0.31, segment-anything and transformers, `get_rel_pos`: linear interpolation.

    Args:
        vectors: (2 S - 1, K).
        side: Patches down or across that attention is to see at once.

    Returns:
        (2 side - 1, K), in the dtype of `vectors`, computed in float32. For an unchanged length,
        `vectors` itself.
    """
    if isinstance(side, torch.SymInt):
        count = counted(2 * side - 1, vectors.device)
        shares = axis_shares("bilinear", len(vectors), 2 * side - 1, count)
        return (shares @ vectors.float()).to(vectors.dtype)
    if len(vectors) == 2 * side - 1:
        return vectors
    line = vectors.float().T[None]
    return F.interpolate(line, size=2 * side - 1, mode="linear")[0].T.to(vectors.dtype)


def resample_patch_kernel(kernel: Tensor, *, patch_size: tuple[int, int]) -> Tensor:
    """Fit the patch convolution to patches of another size.

    On images resized by the same factor, the new kernel gives the least-squares approximation of
    the old outputs, and exactly the old outputs for larger patches: Beyer et al., FlexiViT,
    https://arxiv.org/abs/2212.08013. timm 1.0.31, `resample_patch_embed` (bicubic, antialias).

    Args:
        kernel: (D, C, rows, columns).
        patch_size: Rows and columns of the new kernel.

    Returns:
        (D, C, *patch_size), in the dtype of `kernel`, computed in float32. For an unchanged size,
        `kernel` itself.
    """
    old_size = (kernel.shape[2], kernel.shape[3])
    if old_size == patch_size:
        return kernel
    pixels = old_size[0] * old_size[1]
    each_pixel = torch.eye(pixels, dtype=torch.float32, device=kernel.device)
    each_pixel = each_pixel.reshape(pixels, 1, *old_size)
    resized = F.interpolate(each_pixel, size=patch_size, mode="bicubic", antialias=True)
    resize = resized.flatten(1).T  # (new pixels, old pixels)
    fitted: Tensor = kernel.flatten(2).float() @ torch.linalg.pinv(resize)
    return fitted.reshape(*kernel.shape[:2], *patch_size).to(kernel.dtype)


def _check_rule(rule: str, known: tuple[str, ...]) -> None:
    if rule not in known:
        raise UsageError(
            f"There is no rule {rule!r} for resampling positions.",
            evidence={"known": ", ".join(known)},
        )


def _check_positions(pos_embed: Tensor, grid: Grid, prefix: int) -> None:
    rows, columns = grid
    wanted = prefix + rows * columns
    if pos_embed.ndim == 3 and pos_embed.shape[:2] == (1, wanted):
        return
    raise ShapeMismatch(
        "The position table does not fit the grid it should come from.",
        evidence={
            "found": " ".join(map(str, pos_embed.shape)),
            "wanted": f"1 {wanted} width",
        },
        meaning=f"{wanted} = {prefix} + {rows}*{columns}: prefix tokens, rows times columns.",
    )


def _check_relative_positions(table: Tensor, grid: Grid) -> None:
    rows, columns = (2 * size - 1 for size in grid)
    if table.ndim == 2 and len(table) - rows * columns in (0, 3):
        return
    wanted = rows * columns + 3
    raise ShapeMismatch(
        "The table of relative positions does not fit the grid it should come from.",
        evidence={"found": " ".join(map(str, table.shape)), "wanted": f"{wanted} head"},
        meaning=f"{wanted} = {rows}*{columns} + 3: offsets of rows times offsets of columns, and "
        "the class token's.",
    )
