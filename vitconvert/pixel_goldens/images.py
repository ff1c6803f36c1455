"""The images of a pixel golden: each makes one kind of mistake large.

They are drawn, so that anybody may pass them on. Their sizes follow from that of the model's
images: some are reduced, one is enlarged, and odd sizes leave an odd row or column to crop.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from vitconvert.preprocessing.sample_images import sample_images
from vitconvert.preprocessing.steps import Size

_Levels = NDArray[np.uint8]  # (H, W, 3) or (H, W)
_TURNED = 6  # EXIF orientation: to be turned by 90 degrees clockwise


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A file with an image.

    Attributes:
        name: Of the file.
        about: What it is, and which mistakes it shows.
        content: Of the file.
        plain: Whether it is RGB without loss, which every decoder reads alike.
    """

    name: str
    about: str
    content: bytes
    plain: bool


def draw(image_size: Size, *, resized: bool) -> Iterator[Drawing]:
    """All images, for a model that reads images of this size; all have it, if none is resized."""

    def size(height: float, width: float) -> Size:
        """Shares of the model's size, made odd."""
        if not resized:
            return image_size
        return int(image_size[0] * height) | 1, int(image_size[1] * width) | 1

    for name, about, levels in (
        ("gradient.png", "gradients: channels, mean and std, scale", _gradient(size(1.2, 1.6))),
        ("edges.png", "edges, lines and rings: filters, antialiasing", _edges(size(2.1, 2.3))),
        ("wide.png", "more than twice as wide as high: crops", _edges(size(1.05, 2.3))),
        ("small.png", "smaller than the model's images", _edges(size(0.6, 0.45))),
        ("photograph.png", "a made-up photograph", _photograph(size(1.5, 1.1))),
    ):
        yield _drawing(name, about, Image.fromarray(levels), plain=True)
    image = Image.fromarray(_photograph(size(1.15, 1.5)))
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = _TURNED
    grey = image.convert("L")
    clear = image.copy()
    clear.putalpha(Image.fromarray(_gradient(size(1.15, 1.5))[..., 0]))
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    for name, about, drawn in (
        ("photograph.jpg", "JPEG, colours at half the size: decoders", image),
        ("turned.jpg", f"EXIF orientation {_TURNED}: the camera was turned", image),
        ("alpha.png", "transparent to the left, with colours beneath", clear),
        ("cmyk.jpg", "inks, inverted as Adobe writes them", image.convert("CMYK")),
        ("grey.png", "grey, of one channel", grey),
        ("palette.png", "a palette of 31 colours", image.quantize(31)),
        ("grey16.png", "grey of 16 bits", deep),
    ):
        exif = turned if name.startswith("turned") else None
        yield _drawing(name, about, drawn, exif=exif)


def _drawing(
    name: str, about: str, image: Image.Image, *, plain: bool = False, exif: object = None
) -> Drawing:
    file = io.BytesIO()
    how = {"exif": exif} if exif else {}
    kind = {"png": "PNG", "jpg": "JPEG"}[name.rpartition(".")[2]]
    image.save(file, kind, **how)
    return Drawing(name=name, about=about, content=file.getvalue(), plain=plain)


def _gradient(size: Size) -> _Levels:
    """Red grows to the right, green downwards, blue to the top left: no two channels are alike."""
    y, x = (np.linspace(0, 1, n) for n in size)
    channels = np.broadcast_arrays(x[None, :], y[:, None], 1 - np.add.outer(y, x) / 2)
    return _levels(np.stack(channels, axis=-1))


def _edges(size: Size) -> _Levels:
    """Rings that get narrower, a checkerboard of single pixels, and stripes in each channel."""
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    radius = ((y - size[0] / 2) ** 2 + (x - size[1] / 2) ** 2) / max(size)
    rings = 0.5 + 0.5 * np.cos(np.pi * radius)
    board = (y + x) % 2
    red = np.where(x < size[1] // 4, y % 3 == 0, rings)
    green = np.where(y < size[0] // 5, x % 7 < 3, rings)
    blue = np.where(y > size[0] * 4 // 5, board, 0.2 + 0.6 * rings)
    return _levels(np.stack([red, green, blue], axis=-1))


def _photograph(size: Size) -> _Levels:
    scenes = sample_images(batch=1, channels=3, size=size, seed=27, mean=(0.0,), std=(1.0,))
    return _levels(np.moveaxis(scenes["photograph"][0], 0, -1))


def _levels(shares: NDArray[np.float64]) -> _Levels:
    return np.round(255 * shares).astype(np.uint8)
