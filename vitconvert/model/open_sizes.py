"""Positions fitted to a grid whose sizes are open: symbols of `torch.export`, for a graph of any
size.

Resizing is linear in the table, and does rows and columns one after another: two products with
matrices, which hold the share of each old row (or column) in each new one. Their entries follow
from the new size by a few operations that every runtime has and rounds alike, while the `Resize` of
runtimes differ from torch and from one another (OpenVINO 2026.4 has no antialiased bicubic one).

Formulas: torch 2.14, `UpSample.h` and `UpSampleKernel.cpp`.

Letters: D width.
"""

import torch
from torch import Tensor

Grid = tuple[int, int]  # patches down and across


def is_open(grid: Grid) -> bool:
    """Whether a size is a symbol of torch.export."""
    return any(isinstance(size, torch.SymInt) for size in grid)


def counted(size: int, device: torch.device) -> Tensor:
    """(1,) float32: a size as a number that graphs compute with."""
    return torch.arange(size, device=device)[-1:].float() + 1.0


def resized(
    table: Tensor, grid: Grid, *, mode: str, square: bool = False, offset: float = 0.0
) -> Tensor:
    """What `F.interpolate` makes of a table, to the rounding of float32.

    Args:
        table: (1, rows, columns, D).
        grid: New rows and columns.
        mode: Of `axis_shares`.
        square: Whether the table is resized to a square, whose first rows and columns are taken.
        offset: Added to each new size, by which the old one is divided; not if the grid is the old
            one, which DINO's rule leaves as it is.

    Returns:
        (1, new rows, new columns, D), in the dtype of the table.
    """
    own = (table.shape[1], table.shape[2])
    counts = [counted(size, table.device) for size in grid]
    if square:
        counts = [torch.maximum(*counts)] * 2
    if offset:
        same = (counts[0] == own[0]) & (counts[1] == own[1])
        counts = [count + offset * (~same).float() for count in counts]
    down, across = (
        axis_shares(mode, old, new, count)
        for old, new, count in zip(own, grid, counts, strict=True)
    )
    rows = down @ table.float().flatten(2)[0].reshape(own[0], -1)
    rows = rows.reshape(grid[0], own[1], table.shape[3])
    return (across @ rows)[None].to(table.dtype)


def axis_shares(mode: str, old: int, new: int, count: Tensor) -> Tensor:
    """(new, old) float32: the share of each old row, or column, in each new one.

    Args:
        mode: "bicubic" or "bilinear", perhaps with "_antialias" or "_align_corners" after it.
        old, new: How many there are.
        count: (1,): the number of new ones by which they are scaled.
    """
    kind, _, how = mode.partition("_")
    places = torch.arange(new, device=count.device).float()
    if how == "antialias":
        scale = old / count
        wide = scale.clamp(min=1.0)
        centres = (places + 0.5) * scale
        middles = torch.arange(old, device=count.device).float() + 0.5
        shares = _kernel(kind, (middles - centres[:, None]) / wide, cubic=-0.5)
        return shares / shares.sum(1, keepdim=True)
    if how == "align_corners":
        at = places * ((old - 1) / (count - 1.0).clamp(min=1.0))
    else:
        at = (places + 0.5) * (old / count) - 0.5
    # The first and the last one stand for those beyond them.
    beyond = torch.arange(-2, old + 2, device=count.device)
    shares = _kernel(kind, beyond.float() - at[:, None], cubic=-0.75)
    stands_for = beyond.clamp(0, old - 1)[:, None] == torch.arange(old, device=count.device)
    return shares @ stands_for.float()


def _kernel(kind: str, distance: Tensor, *, cubic: float) -> Tensor:
    """Keys' cubic with its parameter, or a triangle."""
    x = distance.abs()
    if kind == "bilinear":
        return (1.0 - x).clamp(min=0.0)
    near = ((cubic + 2) * x - (cubic + 3)) * x * x + 1.0
    far = ((cubic * x - 5 * cubic) * x + 8 * cubic) * x - 4 * cubic
    return torch.where(x <= 1.0, near, torch.where(x < 2.0, far, torch.zeros_like(x)))
