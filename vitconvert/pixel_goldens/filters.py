"""How a golden resizes, and every other filter that ports take in its place.

Letters: C channels, H height, W width. Levels are numbers from 0 to 255.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.preprocessing import Preprocessing, pixels
from vitconvert.preprocessing.backends import BACKENDS, INTERPOLATIONS
from vitconvert.preprocessing.pixels import Pixels
from vitconvert.preprocessing.steps import Size

Levels = NDArray[np.float32]  # (C, H, W)
Numbers = NDArray[np.floating]
Filter = Callable[[NDArray[np.uint8], Size], Pixels]


def own_filter(steps: Preprocessing) -> Filter:
    """How the golden resizes, in levels."""
    backend, name = BACKENDS[steps.backend], steps.interpolation
    antialias = backend.antialias
    found: Mapping[str, Filter] = {
        "pil": by_pillow(name),
        "weights": partial(pixels.resized_by_weights, interpolation=name, antialias=antialias),
        "uint8": partial(pixels.resized_on_tensor, interpolation=name, antialias=antialias),
        "float": on_floats(name, antialias=antialias),
    }
    return then(found[backend.resize], np.trunc) if backend.truncate else found[backend.resize]


def by_pillow(name: str) -> Filter:
    """As Pillow resizes images."""

    def resize(values: NDArray[np.uint8], size: Size) -> Pixels:
        image = Image.fromarray(np.moveaxis(values, 0, -1) if len(values) > 1 else values[0])
        return pixels.channels_first(pixels.resized_on_pil(image, size, name))

    return resize


def on_floats(interpolation: str, *, antialias: bool) -> Filter:
    """As torch resizes tensors of floats."""
    resize = partial(pixels.resized_on_tensor, interpolation=interpolation, antialias=antialias)
    return lambda values, size: resize(values.astype(np.float32), size)


def by_weights(weights_of: Callable[[int, int], Numbers]) -> Filter:
    """Weighted means of rows, then of columns, by the weights (m, n) of m that become n."""

    def resize(values: NDArray[np.uint8], size: Size) -> Levels:
        made = values.astype(np.float64)
        for axis, (m, n) in enumerate(zip(values.shape[1:], size, strict=True), start=1):
            weights = weights_of(m, n)
            made = np.tensordot(made, weights / weights.sum(axis=0), axes=(axis, 0))
            made = np.moveaxis(made, -1, axis)
        return made.astype(np.float32)

    return resize


def around(name: str, places: Numbers, m: int) -> Numbers:
    """The weights of pixels 0 to m around places between them."""
    return pixels.KERNELS[name](np.abs(places[None, :] - np.arange(m)[:, None]))


def aligned(m: int, n: int) -> Numbers:
    """Bilinear, the corners of both images on each other."""
    return around("bilinear", np.arange(n) * ((m - 1) / max(n - 1, 1)), m)


def from_corner(name: str) -> Filter:
    """Places of pixels counted from their corners, not from their middles."""
    return by_weights(lambda m, n: around(name, np.arange(n) * (m / n), m))


def floor(m: int, n: int) -> Numbers:
    """The nearest pixel, counted from the corner and not from the middle of pixels."""
    return np.eye(m)[:, np.arange(n) * m // n]


def area(m: int, n: int) -> Numbers:
    """The mean of the area that a pixel covers, as OpenCV's INTER_AREA reduces images."""
    edges, of = np.arange(n + 1) * (m / n), np.arange(m)[:, None]
    shared: Numbers = np.minimum(edges[1:], of + 1) - np.maximum(edges[:-1], of)
    return shared * (shared > 0)


def filters(steps: Preprocessing) -> dict[str, Filter]:
    """Other filters, and the golden's own with another rounding."""
    own, name, both = own_filter(steps), steps.interpolation, ("bilinear", "bicubic")
    on_tensors, by_keras = pixels.resized_on_tensor, pixels.resized_by_weights
    whole = {
        "nearest, counted from the corner of pixels": by_weights(floor),
        "nearest, counted from the middle of pixels": on_floats("nearest", antialias=False),
    }
    whole |= {f"{other} on Pillow images": by_pillow(other) for other in INTERPOLATIONS}
    for other in ("bicubic", "lanczos"):
        said = f"{other} without antialias, as TensorFlow's and Keras'"
        whole[said] = partial(by_keras, interpolation=other, antialias=False)
    for other in both:
        said = f"{other} with antialias on uint8 tensors, as torchvision's"
        whole[said] = partial(on_tensors, interpolation=other, antialias=True)
    floats = {
        "bilinear with align_corners": by_weights(aligned),
        "the mean of areas, as OpenCV's INTER_AREA": by_weights(area),
    }
    for other in both:
        plain, corner = f"{other} without antialias", "counted from the corner of pixels"
        floats[f"{other} with antialias on float tensors"] = on_floats(other, antialias=True)
        floats[f"{plain}, as OpenCV's and torch's"] = on_floats(other, antialias=False)
        floats[f"{plain}, {corner}, as sharp's affine"] = from_corner(other)
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
    return lambda values, size: function(filter_(values, size).astype(np.float32))
