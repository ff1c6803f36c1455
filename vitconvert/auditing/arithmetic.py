"""What loading code computes of a tensor: a resampled grid, a sum over channels, a multiple."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconvert.auditing.content import numbers

_CLOSE = 1e-4  # of the largest number, in float32: others round in another order
_FEW = 8  # rows
_MODES = ("bicubic", "bilinear", "nearest")


def computed_from(parameter: Tensor, source: Tensor) -> str | None:
    """How a parameter was computed from a tensor of the file; None if in no way that is known."""
    if not parameter.is_floating_point():
        return None
    close = max(_CLOSE, 4 * torch.finfo(parameter.dtype).eps)
    values, source = numbers(parameter, torch.float32), numbers(source, torch.float32)
    alike = values.shape == source.shape and len(values) > _FEW
    if alike and _computed(values[:_FEW], source[:_FEW], close) is None:
        return None  # of most tensors, few rows say it
    return _computed(values, source, close)


def _computed(values: Tensor, source: Tensor, close: float) -> str | None:
    for how, made in candidates(values, source):
        if made.shape == values.shape and (made - values).abs().max() <= close * values.abs().max():
            return how
    return None


def likeness(parameter: Tensor, source: Tensor) -> float:
    """The cosine of two tensors with as many numbers."""
    one, other = (numbers(tensor, torch.float32).flatten() for tensor in (parameter, source))
    return float(F.cosine_similarity(one, other, dim=0))


def candidates(values: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What may have been computed of a tensor for a parameter, and how; of any shape."""
    if values.shape == source.shape:
        yield from multiples(values, source)
    elif values.ndim == source.ndim == 4 and values.shape[0] == source.shape[0]:
        yield from kernels(values, source)
    elif values.ndim == source.ndim >= 2 and values.shape[-1] == source.shape[-1]:
        yield from positions(values, source)


def multiples(values: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensor, times a number or with one added; or its rows, each times its own."""
    at = source.abs().flatten().argmax()
    factor = values.flatten()[at] / source.flatten()[at]
    yield f"multiplied by {factor:.6g}", source * factor
    difference = (values - source).mean()
    yield f"{difference:.6g} added", source + difference
    if source.ndim > 1:
        ours, theirs = values.flatten(1), source.flatten(1)
        places = theirs.abs().argmax(1, keepdim=True)
        factors = (ours.gather(1, places) / theirs.gather(1, places)).nan_to_num()
        yield "each row multiplied by its own number", (theirs * factors).view_as(source)


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
