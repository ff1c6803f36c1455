"""The first principal components of patch tokens as colours, as DINOv2 shows them.

Oquab et al., "DINOv2", https://arxiv.org/abs/2304.07193, figures 1 and 9: the first component of
all patches tells foreground from background by a threshold; the first three of the foreground are
red, green and blue. One basis serves all images, so that one colour means the same in all.

Letters: P patches of all images, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_BINS = 256


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The axes that patches are projected on, and the threshold of the foreground.

    Attributes:
        threshold: Of the first component over all patches, scaled from 0 to 1; None: no background.
        above: Whether the foreground is above it.
        explained: The share of the foreground's variance that each of the three components has.
    """

    threshold: float | None
    above: bool
    explained: tuple[float, ...]


def principal_axes(tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (D,), the first axes (count, D) and their shares of the variance, of tokens (P, D).

    The largest entry of each axis is positive, so that colours do not depend on the processor.
    """
    tokens = tokens.double()
    mean = tokens.mean(0)
    centred = tokens - mean
    variance, vectors = torch.linalg.eigh(centred.T @ centred)
    axes = vectors.flip(1).T[:count]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    shares = variance.flip(0)[:count].clamp(min=0) / variance.clamp(min=0).sum().clamp(min=1e-300)
    return mean, axes * largest.sign(), shares


def coloured_components(
    images: Sequence[Tensor], threshold: float | None = None, *, background: bool = True
) -> tuple[Basis, list[Tensor], list[Tensor]]:
    """Patches of images, each (rows, columns, D), as colours and foreground.

    Args:
        images: Their patch tokens.
        threshold: From 0 to 1; by default Otsu's ("A Threshold Selection Method from Gray-Level
            Histograms", 1979). On which side of it the foreground lies, the borders of the
            images tell: fewer of their patches are foreground.
        background: Whether there is any; else all patches are coloured.

    Returns:
        The basis; for each image colours from 0 to 1, (rows, columns, 3), black in the
        background; and the foreground, (rows, columns).
    """
    patches = torch.cat([tokens.flatten(0, 1) for tokens in images])
    borders = [torch.ones(tokens.shape[:2], dtype=torch.bool) for tokens in images]
    for at_edge in borders:
        at_edge[1:-1, 1:-1] = False
    border = torch.cat([at_edge.flatten() for at_edge in borders])
    chosen, above = torch.ones(len(patches), dtype=torch.bool), True
    if background:
        mean, axes, _ = principal_axes(patches, 1)
        first = _scaled((patches.double() - mean) @ axes[0])
        threshold = otsu(first) if threshold is None else threshold
        inside = ~border if (~border).any() else border
        at_border, in_middle = ((first > threshold)[at].double().mean() for at in (border, inside))
        above = bool(in_middle >= at_border)
        chosen = first > threshold if above else first <= threshold
    colours, explained = _colours(patches, chosen)
    sizes = [tokens.shape[:2] for tokens in images]
    counts = [rows * columns for rows, columns in sizes]
    basis = Basis(
        threshold=threshold if background else None, above=above, explained=tuple(explained)
    )
    return (
        basis,
        [c.reshape(*size, 3) for c, size in zip(torch.split(colours, counts), sizes, strict=True)],
        [c.reshape(size) for c, size in zip(torch.split(chosen, counts), sizes, strict=True)],
    )


def otsu(values: Tensor) -> float:
    """The threshold of numbers from 0 to 1 that makes the two sides most different."""
    counts = torch.histc(values.float(), _BINS, 0, 1).double()
    centres = (torch.arange(_BINS, dtype=torch.float64) + 0.5) / _BINS
    below, sums = counts.cumsum(0), (counts * centres).cumsum(0)
    total, whole = below[-1], sums[-1]
    between = (whole * below - total * sums) ** 2 / (below * (total - below)).clamp(min=1)
    best = torch.nonzero(between == between.max()).flatten()  # equal over an empty gap
    return float(centres[best].mean() + 0.5 / _BINS)


def _colours(patches: Tensor, chosen: Tensor) -> tuple[Tensor, list[float]]:
    """Three components of the chosen patches, each from 0 to 1; the others are black."""
    if not chosen.any():
        return torch.zeros(len(patches), 3, dtype=torch.float32), [0.0] * 3
    mean, axes, explained = principal_axes(patches[chosen], 3)
    components = _scaled((patches[chosen].double() - mean) @ axes.T)
    missing = 3 - len(axes)  # of a model that is narrower than three
    found = torch.zeros(len(patches), 3, dtype=torch.float32)
    found[chosen] = F.pad(components, (0, missing)).float()
    return found, [*explained.tolist(), *[0.0] * missing]


def _scaled(values: Tensor) -> Tensor:
    """Each column from 0 to 1."""
    least, most = values.amin(0), values.amax(0)
    return (values - least) / (most - least).clamp(min=1e-300)
