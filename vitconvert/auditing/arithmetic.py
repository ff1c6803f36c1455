"""What loading code computes of a tensor: a resampled grid, a sum over channels, a multiple."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import atanh, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconvert.auditing.content import equal, numbers

_CLOSE = 1e-4  # of the largest number, in float32: others round in another order
_OF_HALF = 4 * torch.finfo(torch.float16).eps  # as dequantised weights are often computed
_FEW = 8  # rows
_PART = 2**20  # numbers that are looked at together
_LARGEST = 2**26  # numbers of positions and of kernels
_ALIKE = 0.5  # correlations
_ROUNDED = 0.8  # the cosine of a row and what few bits leave of it
_BLOCK = 32  # numbers of a row: no usual scheme has smaller blocks with a scale of their own
_SCALES = 0.03  # how far the scale of a block is rounded
_ERRORS = 12  # standard errors: bitsandbytes' fp4 of blocks with an outlier has up to 10
_GAP, _FEW_LEVELS, _LARGE_GAP = 0.25, 4, 0.5  # half of that of neighbours, of the row's largest
Holds = Callable[[Tensor, Tensor], bool]  # whether some rows are so of those of the file
_MODES = ("bicubic", "bilinear", "nearest")


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """How two tensors with as many numbers are alike.

    Attributes:
        cosine: Of the two.
        correlation: The cosine of what is left without their means (Pearson's).
        distance: Between them, against the norm of the second.
    """

    cosine: float
    correlation: float
    distance: float


def closeness(one: Tensor, other: Tensor) -> Closeness:
    """How two tensors are alike, a part at a time."""
    sums = torch.zeros(5, dtype=torch.float64)
    count = one.numel()
    for a, b in _pairs(one, other):
        a, b = a.double(), b.double()
        sums += torch.stack([a.sum(), b.sum(), a @ a, b @ b, a @ b])
    of_one, of_other, one_2, other_2, both = sums.tolist()
    centred = both - of_one * of_other / count
    spread = (one_2 - of_one**2 / count) * (other_2 - of_other**2 / count)
    apart = max(0.0, one_2 + other_2 - 2 * both)
    return Closeness(
        cosine=both / sqrt(one_2 * other_2) if one_2 * other_2 > 0 else 0.0,
        correlation=centred / sqrt(spread) if spread > 0 else 0.0,
        distance=sqrt(apart / other_2) if other_2 > 0 else float(apart > 0),
    )


def is_no_chance(correlation: float, count: int) -> bool:
    """Whether tensors of so many numbers are alike in a way that no initialisation would be.

    By Fisher's transformation a correlation has a normal distribution around 0 if there is none,
    of which 8 standard deviations are 1e-15.
    """
    if count < 4 or not correlation > _ALIKE:
        return False
    return atanh(min(correlation, 1 - 1e-12)) * sqrt(count - 3) > 8


def is_quantised_from(values: Tensor, source: Tensor) -> float | None:
    """The smallest cosine of rows, if all of them are those of a tensor but for rounding to few.

    Of each block, the scale has to be that of the tensor, and each number near its own.
    """
    if values.shape != source.shape or values.ndim < 2:
        return None
    smallest = 1.0
    least, most = source.flatten(1).aminmax(dim=1)
    # Of rows that are no multiple of a block, some blocks have numbers of the next row, too.
    largest = F.max_pool1d(torch.maximum(most, -least).float()[None], 3, stride=1, padding=1)[0]
    rows = max(1, _PART // values[0].numel())
    for at in range(0, len(values), rows):
        one, other = (t[at : at + rows].float().flatten(1) for t in (values, source))
        cosines, norms = F.cosine_similarity(one, other), other.norm(dim=1)
        ratio = one.norm(dim=1) / norms
        alike = (cosines >= _ROUNDED) & ((ratio - 1).abs() < 1 - _ROUNDED)
        if not bool((alike | (norms == 0)).all()):
            return None
        if not _are_rounded(one, other, largest[at : at + rows, None]):
            return None
        smallest = min(smallest, float(torch.where(norms > 0, cosines, 1.0).min()))
    return smallest


def _are_rounded(values: Tensor, source: Tensor, largest: Tensor) -> bool:
    """Whether rows are rounded block by block, (rows, numbers), and no scale is a wrong one.

    The factor between a block and its source is 1 but for the error of least squares, which what
    rounding leaves says. Rows may have scales of any number of blocks.
    """
    if values.shape[1] < _BLOCK:
        return True
    whole = values.shape[1] // _BLOCK * _BLOCK
    ours, theirs = (
        torch.cat([t[:, :whole], t[:, -_BLOCK:]], 1).reshape(len(t), -1, _BLOCK)
        for t in (values, source)
    )
    energy = ours.square().sum(2)
    factor = torch.where(energy > 0, (ours * theirs).sum(2) / energy, 1.0)  # (rows, blocks)
    variance = (theirs - factor[..., None] * ours).square().mean(2)
    off = factor - 1
    scaled = (off.abs() > _SCALES) & (off.square() * energy > _ERRORS**2 * variance)
    levels = int((ours[0].sort(1).values.diff(dim=1) != 0).sum(1).max()) + 1
    gap = _GAP if levels > _FEW_LEVELS else _LARGE_GAP
    return not bool(scaled.any()) and bool(((values - source).abs() <= gap * largest).all())


def _pairs(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    one, other = one.reshape(-1), other.reshape(-1)
    for at in range(0, len(one), _PART):
        yield one[at : at + _PART], other[at : at + _PART]


def computed_from(parameter: Tensor, source: Tensor, *, scaled: bool = True) -> str | None:
    """How a parameter was computed from a tensor of the file; None if in no way that is known.

    Args:
        parameter: What a model holds.
        source: What the file has.
        scaled: Whether it may be a multiple.
    """
    if not parameter.is_floating_point():
        return None
    if parameter.shape == source.shape:
        return _scaled_from(parameter, source, scaled=scaled)
    close = max(_CLOSE, 4 * torch.finfo(parameter.dtype).eps)
    if max(parameter.numel(), source.numel()) > _LARGEST:
        return None  # no positions, and no kernel
    values, source = numbers(parameter, torch.float32), numbers(source, torch.float32)
    for how, made in candidates(values, source):
        if made.shape == values.shape and _are_close(values, made, close):
            return how
    return None


def _scaled_from(values: Tensor, source: Tensor, *, scaled: bool) -> str | None:
    """Of most tensors, few rows say that they are no multiple; others are looked at in parts."""
    if not values.ndim:
        values, source = values[None], source[None]
    few = slice(0, _FEW)
    ways = list(multiples(values[few], source[few]) if scaled else roundings(_OF_HALF))
    rows = max(_FEW, _PART * len(values) // values.numel())
    for place in (few, *(slice(at, at + rows) for at in range(_FEW, len(values), rows))):
        ways = [(how, holds) for how, holds in ways if holds(values[place], source[place])]
        if not ways:
            return None
    return ways[0][0]


def _are_close(values: Tensor, made: Tensor, close: float) -> bool:
    return bool((made - values).abs().max() <= close * values.abs().max())


def candidates(values: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What may have been computed of a tensor for a parameter of another shape, and how."""
    if values.ndim == source.ndim == 4 and values.shape[0] == source.shape[0]:
        yield from kernels(values, source)
    elif values.ndim == source.ndim >= 2 and values.shape[-1] == source.shape[-1]:
        yield from positions(values, source)


def is_scaled(how: str) -> bool:
    """Whether a way is a multiple or a sum that no loader computes of weights that are not codes.

    Norms of Gemma are kept as what is added to one, or as the sum (llama.cpp).
    """
    if how in ("1 added", "-1 added"):
        return False
    return how.startswith(("multiplied by", "each row multiplied")) or how.endswith(" added")


def roundings(close: float) -> Iterator[tuple[str, Holds]]:
    """The tensor, but for the last digits: so much of the largest number, or by a shorter dtype."""
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        yield f"rounded to {name} on the way", partial(_is_rounded, dtype)
    yield (
        "rounded differently",
        lambda values, source: _are_close(values.float(), source.float(), close),
    )


def _is_rounded(dtype: torch.dtype, values: Tensor, source: Tensor) -> bool:
    return equal(values, source.to(dtype))


def multiples(values: Tensor, source: Tensor) -> Iterator[tuple[str, Holds]]:
    """The tensor, times a number or with one added; or its rows, each times its own.

    What these numbers are is seen in the rows that are given, and holds or not of others.
    """
    close = max(_CLOSE, 4 * torch.finfo(values.dtype).eps)
    yield from roundings(8 * torch.finfo(values.dtype).eps)
    values, source = values.float(), source.float()
    at = source.abs().flatten().argmax()
    factor = values.flatten()[at] / source.flatten()[at]
    difference = (values - source).mean()

    def multiplied(values: Tensor, source: Tensor) -> bool:
        return _are_close(values.float(), source.float() * factor, close)

    def added(values: Tensor, source: Tensor) -> bool:
        return _are_close(values.float(), source.float() + difference, close)

    def factors(values: Tensor, source: Tensor) -> Tensor:
        places = source.abs().argmax(1, keepdim=True)
        return (values.gather(1, places) / source.gather(1, places)).nan_to_num()

    def by_row(values: Tensor, source: Tensor) -> bool:
        ours, theirs = values.float().flatten(1), source.float().flatten(1)
        return _are_close(ours, theirs * factors(ours, theirs), close)

    # Nearly 1, and nearly 0, it is another tensor: of averaged weights, say.
    if abs(factor - 1) > close:
        yield f"multiplied by {factor:.6g}", multiplied
    if difference.abs() > close * values.abs().max():
        yield f"{difference:.6g} added", added
    if source.ndim > 1 and bool(
        ((factors(values.flatten(1), source.flatten(1)) - 1).abs() > close).any()
    ):
        yield "each row multiplied by its own number", by_row


def kernels(values: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The kernel of patches for other channels, or of another size."""
    _, channels, *size = values.shape
    if channels == 1:
        yield "summed over channels", source.sum(1, keepdim=True)
    if channels != source.shape[1]:
        yield "averaged over channels", source.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        tiled = source.repeat(1, -(-channels // source.shape[1]), 1, 1)[:, :channels]
        ratio = source.shape[1] / channels
        yield "channels repeated", tiled
        yield f"channels repeated, multiplied by {ratio:.6g}", tiled * ratio
    else:
        yield from resampled(source, (size[0], size[1]))


def positions(values: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Positions, (..., tokens, width), of square grids behind equally many other tokens."""
    width = source.shape[-1]
    flat, wanted = source.reshape(-1, width), values.numel() // width
    for special in range(6):
        if min(len(flat), wanted) <= special:
            return
        old, new = ((count - special) ** 0.5 for count in (len(flat), wanted))
        if old % 1 or new % 1:
            continue
        grid = flat[special:].T.reshape(1, width, int(old), int(old))
        for how, made in resampled(grid, (int(new), int(new))):
            tokens = torch.cat([flat[:special], made[0].flatten(1).T])
            yield how, tokens.reshape(values.shape)


def resampled(grid: Tensor, size: tuple[int, int]) -> Iterator[tuple[str, Tensor]]:
    """A grid, (B, C, rows, columns), of another size, in each of torch's ways."""
    old = " x ".join(map(str, grid.shape[2:]))
    for mode in _MODES:
        for antialias in (False, True) if mode != "nearest" else (False,):
            how = f"resampled from {old} to {size[0]} x {size[1]}, {mode}"
            aligned = None if mode == "nearest" else False
            made = F.interpolate(grid, size, mode=mode, align_corners=aligned, antialias=antialias)
            yield how + (", antialiased" if antialias else ""), made
    yield (
        f"resampled from {old} to {size[0]} x {size[1]}, bilinear, corners aligned",
        F.interpolate(grid, size, mode="bilinear", align_corners=True),
    )
