"""How a golden resizes, and every other filter that ports take in its place.

Letters: C channels, H height, W width. Levels are numbers from 0 to 255.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.preprocessing import Preprocessing, pixels
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.steps import Size

Levels = NDArray[np.float32]  # (C, H, W)
Filter = Callable[[NDArray[np.uint8], Size], Levels]


def own_filter(steps: Preprocessing) -> Filter:
    """How the golden resizes, in levels."""
    backend, name = BACKENDS[steps.backend], steps.interpolation
    if backend.resize == "pil":
        return by_pillow(name)
    if backend.resize == "weights":
        return by_keras(name, antialias=backend.antialias)
    whole = backend.resize == "uint8"
    resize = by_torch(name, antialias=backend.antialias, whole=whole)
    return then(resize, np.trunc) if backend.truncate else resize


def by_pillow(name: str) -> Filter:
    """As Pillow resizes images."""

    def resize(values: NDArray[np.uint8], size: Size) -> Levels:
        image = Image.fromarray(np.moveaxis(values, 0, -1) if len(values) > 1 else values[0])
        return pixels.channels_first(pixels.resized_on_pil(image, size, name)).astype(np.float32)

    return resize


def by_torch(name: str, *, antialias: bool, whole: bool = False) -> Filter:
    """As torch resizes tensors of floats, or of `whole` numbers."""

    def resize(values: NDArray[np.uint8], size: Size) -> Levels:
        of = values if whole else values.astype(np.float32)
        return pixels.resized_on_tensor(of, size, name, antialias=antialias).astype(np.float32)

    return resize


def by_keras(name: str, *, antialias: bool = False) -> Filter:
    """As Keras resizes arrays."""

    def resize(values: NDArray[np.uint8], size: Size) -> Levels:
        return pixels.resized_by_weights(values, size, name, antialias=antialias).astype(np.float32)

    return resize


def aligned(values: NDArray[np.uint8], size: Size) -> Levels:
    """Bilinear, the corners of both images on each other."""
    import torch

    of = torch.from_numpy(values.astype(np.float32))[None]
    made = torch.nn.functional.interpolate(of, size, mode="bilinear", align_corners=True)
    return made[0].numpy()


def floor(values: NDArray[np.uint8], size: Size) -> Levels:
    """The nearest pixel, counted from the corner and not from the middle of pixels."""
    rows, columns = (np.arange(n) * m // n for m, n in zip(values.shape[1:], size, strict=True))
    return values[:, rows[:, None], columns].astype(np.float32)


def from_corner(name: str) -> Filter:
    """Places of pixels counted from their corners, not from their middles."""

    def resize(values: NDArray[np.uint8], size: Size) -> Levels:
        made = values.astype(np.float64)
        for axis, (m, n) in enumerate(zip(values.shape[1:], size, strict=True), start=1):
            apart = np.abs(np.arange(n)[None, :] * (m / n) - np.arange(m)[:, None])
            weights = pixels.KERNELS[name](apart)
            made = np.tensordot(made, weights / weights.sum(axis=0), axes=(axis, 0))
            made = np.moveaxis(made, -1, axis)
        return made.astype(np.float32)

    return resize


def area(values: NDArray[np.uint8], size: Size) -> Levels:
    """The mean of the area that a pixel covers, as OpenCV's INTER_AREA reduces images."""
    made = values.astype(np.float64)
    for axis, (m, n) in enumerate(zip(values.shape[1:], size, strict=True), start=1):
        line = np.moveaxis(made, axis, -1)
        sums = np.concatenate([np.zeros_like(line[..., :1]), line.cumsum(-1)], axis=-1)
        places = np.arange(n + 1) * (m / n)
        before = np.minimum(places.astype(int), m - 1)
        at = sums[..., before] + line[..., before] * (places - before)
        made = np.moveaxis(np.diff(at) / (m / n), -1, axis)
    return made.astype(np.float32)


def filters(steps: Preprocessing) -> dict[str, Filter]:
    """Other filters, and the golden's own with another rounding."""
    own, name = own_filter(steps), steps.interpolation
    whole = {
        "nearest, counted from the corner of pixels": floor,
        "nearest, counted from the middle of pixels": by_torch("nearest", antialias=False),
    }
    floats: dict[str, Filter] = {
        "bilinear with align_corners": aligned,
        "the mean of areas, as OpenCV's INTER_AREA": area,
    }
    for other in ("bilinear", "bicubic", "lanczos", "nearest", "box", "hamming"):
        whole[f"{other} on Pillow images"] = by_pillow(other)
    for other in ("bicubic", "lanczos"):
        whole[f"{other} without antialias, as TensorFlow's and Keras'"] = by_keras(other)
    for other in ("bilinear", "bicubic"):
        on_levels = by_torch(other, antialias=True, whole=True)
        whole[f"{other} with antialias on uint8 tensors, as torchvision's"] = on_levels
        floats |= {
            f"{other} with antialias on float tensors": by_torch(other, antialias=True),
            f"{other} without antialias, as OpenCV's and torch's": by_torch(other, antialias=False),
            f"{other} without antialias, counted from the corner of pixels, as sharp's affine": (
                from_corner(other)
            ),
        }
    found = {f"resized by {said}, not as the golden's {name}": one for said, one in whole.items()}
    for how, function in _ROUNDINGS.items():
        for said, one in floats.items():
            words = f"resized by {said}{how and f', {how}'}, not as the golden's {name}"
            found[words] = then(one, function)
        if how:
            found[f"{how} after resizing"] = then(own, function)
    return found


_ROUNDINGS: dict[str, Callable[[Levels], Levels]] = {
    "": lambda levels: levels,
    "clipped to 0 to 255": lambda levels: np.clip(levels, 0, 255),
    "rounded to whole numbers": lambda levels: np.rint(np.clip(levels, 0, 255)),
    "truncated to whole numbers": lambda levels: np.trunc(np.clip(levels, 0, 255)),
}


def then(filter_: Filter, function: Callable[[Levels], Levels]) -> Filter:
    """A filter, and what becomes of its levels."""
    return lambda values, size: function(filter_(values, size))
