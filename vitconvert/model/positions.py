"""Position tables: the fixed sine-cosine ones, and fitting learned weights to other grids."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.config.vocabularies import RELATIVE_RESAMPLINGS, RESAMPLINGS
from vitconvert.errors import ShapeMismatch, UsageError

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


def computed_positions(config: ViTConfig) -> Tensor:
    """The fixed positions of a configuration, (rows * columns, D) float32 on the CPU."""
    if config.position_embedding == "sincos2d_mae":
        return sincos2d_mae_positions(config.grid_size, config.embed_dim)
    return sincos2d_positions(config.grid_size, config.embed_dim)


def sincos2d_positions(grid: Grid, dim: int, temperature: float = 10000.0) -> Tensor:
    """Fixed positions of big_vision (`posemb_sincos_2d`) and lucidrains' SimpleViT.

    Returns:
        (rows * columns, dim) float32, always on the CPU, even inside `torch.device("meta")`:
        sin x, cos x, sin y, cos y, each with dim/4 frequencies from 1 down to 1/temperature.
    """
    frequencies = torch.arange(dim // 4, device="cpu") / (dim // 4 - 1)
    return _sines_and_cosines(grid, 1.0 / temperature**frequencies)


def sincos2d_mae_positions(grid: Grid, dim: int, temperature: float = 10000.0) -> Tensor:
    """Fixed positions of MAE (`get_2d_sincos_pos_embed`), computed in float64.

    AIMv2 for images of native size uses them too (transformers 5.23,
    `build_2d_sinusoidal_position_embedding`).

    Returns:
        As `sincos2d_positions`, but the dim/4 frequencies end before 1/temperature.
    """
    frequencies = torch.arange(dim // 4, device="cpu", dtype=torch.float64) / (dim // 4)
    return _sines_and_cosines(grid, 1.0 / temperature**frequencies).float()


def _sines_and_cosines(grid: tuple[int, int], omega: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    y = y.flatten()[:, None] * omega
    x = x.flatten()[:, None] * omega
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)


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
        rule: One of `vitconvert.config.vocabularies.RESAMPLINGS`.

    Returns:
        (1, prefix + new rows * new columns, D), in the dtype of `pos_embed`, computed in float32.
        For an unchanged grid, `pos_embed` itself.

    Raises:
        ShapeMismatch: `pos_embed` does not hold prefix + old rows * old columns positions.
        UsageError: `rule` is unknown.
    """
    _check_rule(rule, RESAMPLINGS)
    _check_positions(pos_embed, old_grid, prefix)
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
    rows, columns = (2 * size - 1 for size in old_grid)
    if table.ndim != 2 or len(table) - rows * columns not in (0, 3):
        raise ShapeMismatch(
            "The table of relative positions does not fit the grid it should come from.",
            evidence={
                "found": " ".join(map(str, table.shape)),
                "wanted": f"{rows * columns + 3} head",
            },
            meaning=f"{rows * columns + 3} = {rows}*{columns} + 3: offsets of rows times offsets "
            "of columns, and the class token's.",
        )
    if old_grid == new_grid:
        return table
    of_patches, of_class = table.tensor_split([rows * columns])
    offsets = of_patches.float().reshape(rows, columns, -1)
    fitted = (
        _bilinear(offsets, new_grid)
        if rule == "bilinear"
        else _geometric(offsets, old_grid, new_grid)
    )
    return torch.cat((fitted.flatten(0, 1).to(table.dtype), of_class))


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
    each_pixel = torch.eye(pixels, device=kernel.device).reshape(pixels, 1, *old_size)
    resized = F.interpolate(each_pixel, size=patch_size, mode="bicubic", antialias=True)
    resize = resized.flatten(1).T  # (new pixels, old pixels)
    fitted: Tensor = kernel.flatten(2).float() @ torch.linalg.pinv(resize)
    return fitted.reshape(*kernel.shape[:2], *patch_size).to(kernel.dtype)


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
    distances = torch.tensor([q**step for step in range(old - 1)], device="cpu").cumsum(0)
    offsets = torch.cat((-distances.flip(0), torch.zeros(1, device="cpu"), distances))
    wanted = torch.arange(1.0 - new, new, device="cpu")
    if old == 1:
        return torch.ones(2 * new - 1, 1, device="cpu")
    right = torch.searchsorted(offsets, wanted).clamp(1, 2 * old - 2)
    share = (wanted - offsets[right - 1]) / (offsets[right] - offsets[right - 1])
    share = share.clamp(0, 1)  # beyond the farthest offset, its own value
    shares = torch.zeros(2 * new - 1, 2 * old - 1, device="cpu")
    shares.scatter_(1, right[:, None], share[:, None])
    return shares.scatter_(1, right[:, None] - 1, 1 - share[:, None])


def _bilinear(offsets: Tensor, new_grid: Grid) -> Tensor:
    size = (2 * new_grid[0] - 1, 2 * new_grid[1] - 1)
    resized = F.interpolate(offsets.permute(2, 0, 1)[None], size=size, mode="bilinear")
    return resized[0].permute(1, 2, 0)


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
    if len(vectors) == 2 * side - 1:
        return vectors
    line = vectors.float().T[None]
    return F.interpolate(line, size=2 * side - 1, mode="linear")[0].T.to(vectors.dtype)


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
