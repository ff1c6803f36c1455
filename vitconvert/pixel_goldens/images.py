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


def draw(image_size: Size, resize: str) -> Iterator[Drawing]:
    """All images, for a model that reads images of this size; all have it, if none is resized."""

    def size(height: float, width: float) -> Size:
        """Shares of the model's size, made odd."""
        if resize == "none":
            return image_size
        if resize == "patches":  # which keep the aspect ratio
            halves = round(2 * height)
            return image_size[0] * halves // 2, image_size[1] * halves // 2
        return int(image_size[0] * height) | 1, int(image_size[1] * width) | 1

    image = _photograph(size(1.15, 1.5))
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = _TURNED
    grey, clear = image.convert("L"), image.copy()
    clear.putalpha(_gradient(size(1.15, 1.5)).getchannel("R"))
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    for name, about, drawn in (
        ("gradient.png", "gradients: channels, mean and std, scale", _gradient(size(1.2, 1.6))),
        ("edges.png", "edges, lines and rings: filters, antialiasing", _edges(size(2.1, 2.3))),
        ("wide.png", "more than twice as wide as high: crops", _edges(size(1.05, 2.3))),
        ("small.png", "smaller than the model's images", _edges(size(0.6, 0.45))),
        ("photograph.png", "a made-up photograph", _photograph(size(1.5, 1.1))),
        ("photograph.jpg", "JPEG, colours at half the size: decoders", image),
        ("turned.jpg", f"EXIF orientation {_TURNED}: the camera was turned", image),
        ("alpha.png", "transparent to the left, with colours beneath", clear),
        ("cmyk.jpg", "inks, inverted as Adobe writes them", image.convert("CMYK")),
        ("grey.png", "grey, of one channel", grey),
        ("palette.png", "a palette of 31 colours", image.quantize(31)),
        ("grey16.png", "grey of 16 bits", deep),
    ):
        file, kind = io.BytesIO(), "PNG" if name.endswith(".png") else "JPEG"
        drawn.save(file, kind, **({"exif": turned} if name == "turned.jpg" else {}))
        plain = kind == "PNG" and drawn.mode == "RGB"
        yield Drawing(name=name, about=about, content=file.getvalue(), plain=plain)


def _gradient(size: Size) -> Image.Image:
    """Red grows to the right, green downwards, blue to the top left: no two channels are alike."""
    y, x = (np.linspace(0, 1, n) for n in size)
    channels = np.broadcast_arrays(x[None, :], y[:, None], 1 - np.add.outer(y, x) / 2)
    return _image(np.stack(channels, axis=-1))


def _edges(size: Size) -> Image.Image:
    """Rings that get narrower, a checkerboard of single pixels, and stripes in each channel."""
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    radius = ((y - size[0] / 2) ** 2 + (x - size[1] / 2) ** 2) / max(size)
    rings = 0.5 + 0.5 * np.cos(np.pi * radius)
    board = (y + x) % 2
    red = np.where(x < size[1] // 4, y % 3 == 0, rings)
    green = np.where(y < size[0] // 5, x % 7 < 3, rings)
    blue = np.where(y > size[0] * 4 // 5, board, 0.2 + 0.6 * rings)
    return _image(np.stack([red, green, blue], axis=-1))


def _photograph(size: Size) -> Image.Image:
    scenes = sample_images(batch=1, channels=3, size=size, seed=27, mean=(0.0,), std=(1.0,))
    return _image(np.moveaxis(scenes["photograph"][0], 0, -1))


def _image(shares: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray(np.round(255 * shares).astype(np.uint8))
