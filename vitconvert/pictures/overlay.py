"""Numbers of patches as a picture of the photograph's own size, with the crop undone.

What the model did not see, because it was cropped away, is darkened in an overlay, and
transparent in a raw map.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitconvert.pictures.colours import palette
from vitconvert.preprocessing.transform import Placement

_OPACITY = 0.6
_UNSEEN = 0.35  # of its light is left to what the model did not see


def levels(values: Tensor) -> NDArray[np.uint8]:
    """Numbers (rows, columns) as 0, for the smallest, to 255, for the largest."""
    found = values.double().numpy()
    least, most = found.min(), found.max()
    scale = 255 / (most - least) if most > least else 0.0
    numbers: NDArray[np.uint8] = np.rint((found - least) * scale).astype(np.uint8)
    return numbers


def coloured(values: Tensor) -> Image.Image:
    """Numbers (rows, columns) in the colours of `palette`, a pixel each."""
    return Image.fromarray(palette()[levels(values)])


def raw_map(values: Tensor, place: Placement) -> Image.Image:
    """Numbers (rows, columns) as grey levels, each patch flat; the rest is transparent ("LA")."""
    grey, corner = _stretched(Image.fromarray(levels(values)), place, Image.Resampling.NEAREST)
    size = place.original[::-1]
    light, opaque = Image.new("L", size), Image.new("L", size)
    light.paste(grey, corner)
    opaque.paste(255, (*corner, corner[0] + grey.width, corner[1] + grey.height))
    return Image.merge("LA", (light, opaque))


def raw_colours(patches: Image.Image, place: Placement) -> Image.Image:
    """A picture with a pixel for each patch, each patch flat; the rest is transparent ("RGBA")."""
    flat, corner = _stretched(patches, place, Image.Resampling.NEAREST)
    whole = Image.new("RGBA", place.original[::-1])
    whole.paste(flat, corner)  # which also makes it opaque there
    return whole


def overlaid(
    photograph: Image.Image, patches: Image.Image, place: Placement, *, opacity: float = _OPACITY
) -> Image.Image:
    """A picture with a pixel for each patch, smoothly over the photograph (RGB)."""
    smooth, (left, top) = _stretched(patches, place, Image.Resampling.BILINEAR)
    box = (left, top, left + smooth.width, top + smooth.height)
    whole = photograph.point(lambda light: round(light * _UNSEEN))
    whole.paste(Image.blend(photograph.crop(box), smooth, opacity), box)
    return whole


def visible(place: Placement) -> tuple[int, int, int, int]:
    """Top, left, bottom, right: the whole pixels of the photograph that the patches cover.

    If they cover none, the one that lies nearest.
    """
    top, left, bottom, right = place.box
    rows = _whole(top, bottom, place.original[0])
    columns = _whole(left, right, place.original[1])
    return rows[0], columns[0], rows[1], columns[1]


def _whole(begin: float, end: float, side: int) -> tuple[int, int]:
    # 1e-6: a bound that is a whole number but for rounding
    first = min(max(math.ceil(begin - 1e-6), 0), side - 1)
    return first, max(min(math.floor(end + 1e-6), side), first + 1)


def _stretched(
    patches: Image.Image, place: Placement, resample: Image.Resampling
) -> tuple[Image.Image, tuple[int, int]]:
    """The patches where they are in the photograph, and the left and top of it."""
    top, left, bottom, right = visible(place)
    rows = _of_patches(top, bottom, place, 0, patches.height)
    columns = _of_patches(left, right, place, 1, patches.width)
    box = (columns[0], rows[0], columns[1], rows[1])
    return patches.resize((right - left, bottom - top), resample, box), (left, top)


def _of_patches(
    begin: int, end: int, place: Placement, axis: int, patches: int
) -> tuple[float, float]:
    """An interval of the photograph's pixels as one of patches."""
    least, most = place.box[axis], place.box[axis + 2]
    first, last = ((at - least) / (most - least) * patches for at in (begin, end))
    first = min(max(first, 0.0), patches - 1e-3)
    return first, max(min(last, float(patches)), first + 1e-3)
