"""Resizing as Keras computes it: a matrix of weights along each side, and whole numbers after.

Source: keras 3.15, `keras/src/backend/numpy/image.py`, which follows JAX; TensorFlow's kernels are
the same. Only on PyTorch, and without antialias, is Keras' cubic another one (a = -0.75).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitconvert.preprocessing.values import Size

Numbers = NDArray[np.float64]


def largest_middle(source: Size, ratio_of: Size) -> tuple[Size, Size]:
    """The largest middle of an image with the aspect ratio of another: its corner and its size."""
    (height, width), (their_height, their_width) = source, ratio_of
    size = (
        max(min(height, int(width * their_height / their_width)), 1),
        max(min(width, int(height * their_width / their_height)), 1),
    )
    return ((height - size[0]) // 2, (width - size[1]) // 2), size


def resized_by_weights(
    pixels: NDArray[np.uint8], size: Size, interpolation: str, *, antialias: bool
) -> NDArray[np.uint8]:
    """Resize (C, H, W), rounded to whole numbers once, half to even."""
    if interpolation == "nearest":
        rows, columns = (
            ((np.arange(n, dtype=np.float32) + 0.5) * m / n).astype(np.int64)
            for m, n in zip(pixels.shape[1:], size, strict=True)
        )
        return pixels[:, rows[:, None], columns]
    values = pixels.astype(np.float32)
    for axis, (m, n) in enumerate(zip(pixels.shape[1:], size, strict=True), start=1):
        if m != n:
            weights = _weights(m, n, _KERNELS[interpolation], antialias).astype(np.float32)
            values = np.moveaxis(np.tensordot(values, weights, axes=(axis, 0)), -1, axis)
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _weights(m: int, n: int, kernel: Callable[[Numbers], Numbers], antialias: bool) -> Numbers:
    """(m, n): what each of m pixels gives to each of n, of which every column sums to 1."""
    spread = max(m / n, 1.0) if antialias else 1.0
    places = (np.arange(n) + 0.5) * (m / n) - 0.5
    weights = kernel(np.abs(places[None, :] - np.arange(m)[:, None]) / spread)
    sums: Numbers = weights.sum(axis=0, keepdims=True)
    return weights / sums


def _triangle(x: Numbers) -> Numbers:
    return np.maximum(0, 1 - x)


def _cubic(x: Numbers) -> Numbers:
    """Keys' cubic convolution with a = -0.5."""
    near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: Numbers) -> Numbers:
    return np.where(x <= 3, np.sinc(x) * np.sinc(x / 3), 0)


_KERNELS = {"bilinear": _triangle, "bicubic": _cubic, "lanczos": _lanczos}
