"""Numbers of patches as colours over an image, at its own size and with the crop undone.

The colours go from black over violet, red and orange to pale yellow, along a path in OKLab (Björn
Ottosson, 2020, https://bottosson.github.io/posts/oklab/), where distances are about as large as
they look: lightness grows evenly, so that a picture stays right in grey and for readers who are
colour-blind, and the 256 colours are equally far apart. Where the model saw nothing, an overlay is
darkened and a raw map transparent.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitconvert.preprocessing.transform import ImagePlacement

_FINE = 4096  # points of the path that the colours are chosen from
_DARK, _PALE = 0.13, 0.96  # lightness
_HUES = (285.0, 460.0)  # degrees: from violet over red and orange to yellow
_CHROMA = 0.17  # in the middle; less at the ends, where sRGB has less

# OKLab to cubic roots of cone responses, and these responses to linear sRGB.
_TO_ROOTS = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


@cache
def palette() -> NDArray[np.uint8]:
    """256 colours, (256, 3), for the smallest number to the largest."""
    t = np.linspace(0, 1, _FINE)
    chroma = _CHROMA * np.sin(np.pi * (0.02 + 0.9 * t)) ** 0.75
    hue = np.radians(_HUES[0] + (_HUES[1] - _HUES[0]) * t)
    light = _DARK + (_PALE - _DARK) * t
    path = np.stack([light, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    length = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.interp(np.linspace(0, length[-1], 256), length, np.arange(len(path)))
    chosen = path[np.rint(places).astype(int)]
    linear = ((chosen @ _TO_ROOTS.T) ** 3 @ _TO_LINEAR.T).clip(0, 1)
    # As sRGB stores it: IEC 61966-2-1.
    curve = 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, curve)
    colours: NDArray[np.uint8] = np.rint(255 * encoded).astype(np.uint8)
    return colours


_OPACITY = 0.6
_UNSEEN = 0.35  # of its light is left to what the model did not see


CUT = 0.02
"""Of the patches of a map, the share at either end that gets the first or the last colour."""


def bounds_of(values: NDArray[np.floating], cut: float) -> NDArray[np.floating]:
    """The numbers between which colours lie, (2, rows), of maps (rows, patches).

    Where a few patches alone differ, the smallest and the largest.
    """
    ordered = np.sort(values, axis=1)
    first = int(cut * values.shape[1])
    least, most = ordered[:, first], ordered[:, -1 - first]
    flat = least == most
    return np.stack((np.where(flat, ordered[:, 0], least), np.where(flat, ordered[:, -1], most)))


def levels(values: Tensor, *, cut: float = 0.0) -> NDArray[np.uint8]:
    """Numbers (rows, columns) as 0, for the smallest, to 255, for the largest.

    Args:
        values: The numbers.
        cut: The share of them at either end that does not count.
    """
    found = values.double().numpy()
    ((least,), (most,)) = bounds_of(found.reshape(1, -1), cut)
    scale = 255 / (most - least) if most > least else 0.0
    numbers: NDArray[np.uint8] = np.rint((found.clip(least, most) - least) * scale).astype(np.uint8)
    return numbers


def coloured(values: Tensor) -> Image.Image:
    """Numbers (rows, columns) in the colours of `palette`, a pixel each, but for `CUT`."""
    return Image.fromarray(palette()[levels(values, cut=CUT)])


def raw_map(values: Tensor, place: ImagePlacement) -> Image.Image:
    """Numbers (rows, columns) as grey levels, each patch flat; the rest is transparent ("LA")."""
    grey, corner = _stretched(Image.fromarray(levels(values)), place, Image.Resampling.NEAREST)
    size = place.original[::-1]
    light, opaque = Image.new("L", size), Image.new("L", size)
    light.paste(grey, corner)
    opaque.paste(255, (*corner, corner[0] + grey.width, corner[1] + grey.height))
    return Image.merge("LA", (light, opaque))


def raw_colours(patches: Image.Image, place: ImagePlacement) -> Image.Image:
    """A picture with a pixel for each patch, each patch flat; the rest is transparent ("RGBA")."""
    flat, corner = _stretched(patches, place, Image.Resampling.NEAREST)
    whole = Image.new("RGBA", place.original[::-1])
    whole.paste(flat, corner)  # which also makes it opaque there
    return whole


def overlaid(photograph: Image.Image, patches: Image.Image, place: ImagePlacement) -> Image.Image:
    """A picture with a pixel for each patch, smoothly over the image (RGB)."""
    smooth, (left, top) = _stretched(patches, place, Image.Resampling.BILINEAR)
    box = (left, top, left + smooth.width, top + smooth.height)
    whole = photograph.point(lambda light: round(light * _UNSEEN))
    whole.paste(Image.blend(photograph.crop(box), smooth, _OPACITY), box)
    return whole


def visible(place: ImagePlacement) -> tuple[int, int, int, int]:
    """Top, left, bottom, right: the whole pixels of the image that the patches cover.

    If they cover none, the one that lies nearest.
    """
    found = []
    for axis, side in enumerate(place.original):
        # 1e-6: a bound that is a whole number but for rounding
        first = min(max(math.ceil(place.box[axis] - 1e-6), 0), side - 1)
        found.append((first, max(min(math.floor(place.box[axis + 2] + 1e-6), side), first + 1)))
    (top, bottom), (left, right) = found
    return top, left, bottom, right


def _stretched(
    patches: Image.Image, place: ImagePlacement, resample: Image.Resampling
) -> tuple[Image.Image, tuple[int, int]]:
    """The patches where they are in the image, and the left and top of it."""
    top, left, bottom, right = visible(place)
    box = []  # the same bounds, counted in patches
    for bounds, axis, count in (
        ((left, right), 1, patches.width),
        ((top, bottom), 0, patches.height),
    ):
        least, most = place.box[axis], place.box[axis + 2]
        first, last = ((at - least) / (most - least) * count for at in bounds)
        first = min(max(first, 0.0), count - 1e-3)
        box.append((first, max(min(last, float(count)), first + 1e-3)))
    (x1, x2), (y1, y2) = box
    size = (right - left, bottom - top)
    return patches.resize(size, resample, (x1, y1, x2, y2)), (left, top)
