"""Digests: a few numbers of a layer that differ as soon as the layer does.

Each number is a^T X b for the tokens X (N, D) of an image and Gaussian vectors a and b, which are
always the same ones. Its mean square over all a and b is the sum of the squares of X, so a relative
difference of digests is, within a small factor, that of the layers in the Euclidean norm. A layer
that differs by a relative d anywhere, even in a single number of a hundred thousand, differs in its
digests by d / 400: in float64, that shows for any d over 1e-9, and the mistakes of implementations
begin at 1e-7 (an epsilon). All 32 of an image miss a difference a thousand times larger than what
is allowed with a probability below 1e-70.

Such products are the sketches of Achlioptas, "Database-friendly random projections" (2003), with
the tensor structure of Rakhshan and Rabusseau, "Tensorized random projections" (2020): 64 x (N + D)
Gaussian numbers instead of 64 x N x D.
"""

import functools

import numpy as np
import torch
from torch import Tensor

NUMBERS = 32  # of an image and layer
_SEED = 14


def sketch(values: Tensor) -> Tensor:
    """The digest of each image: (B, ..., D) to (B, 32), in the same dtype, added in float64."""
    tokens = values.double().flatten(1, -2)  # (B, N, D)
    rows, columns = _vectors(tokens.shape[1], tokens.shape[2])
    mixed = torch.einsum("kn,bnd->bkd", rows, tokens)
    return torch.einsum("bkd,kd->bk", mixed, columns).to(values.dtype)


@functools.lru_cache(maxsize=8)
def _vectors(tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """Gaussian vectors for the tokens, (32, N), and for their channels, (32, D)."""
    rng = np.random.default_rng((_SEED, tokens, width))
    rows, columns = (rng.standard_normal((NUMBERS, size)) for size in (tokens, width))
    return torch.from_numpy(rows), torch.from_numpy(columns)
