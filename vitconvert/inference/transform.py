"""A photograph through a preprocessing: convert, resize, crop, normalise."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import InputMismatch
from vitconvert.inference import pixels
from vitconvert.inference.backends import BACKENDS

if TYPE_CHECKING:
    from vitconvert.inference.preprocessing import Preprocessing


def transformed(image: Image.Image, wanted: "Preprocessing") -> NDArray[np.float32]:
    """The image as the model reads it: (C, H, W).

    Raises:
        CorruptFile: The image was opened but not read until now, and is damaged.
        InputMismatch: The image is too narrow, or of another size when nothing resizes it.
        UnsafeFile: It is so narrow that resizing would exhaust memory.
    """
    backend = BACKENDS[wanted.backend]
    image = pixels.converted(
        image,
        channels=wanted.channels,
        transparency=wanted.transparency,
        upright=backend.upright,
    )
    values = _resized(image, wanted)
    if wanted.crop:
        values = pixels.centred(values, wanted.image_size, fill=_fill(wanted), backend=backend)
    if values.shape[1:] != wanted.image_size:
        found, expected = (
            "x".join(map(str, size)) for size in (values.shape[1:], wanted.image_size)
        )
        raise InputMismatch(
            f"The image is {found}, and the model reads {expected} images that nothing resizes.",
            evidence={"from": wanted.origin},
        )
    return pixels.normalised(
        values,
        mean=wanted.mean if wanted.normalize else None,
        std=wanted.std if wanted.normalize else None,
        factor=wanted.rescale_factor,
        numbers=backend.numbers,
    )


def _resized(image: Image.Image, wanted: "Preprocessing") -> pixels.Pixels:
    backend = BACKENDS[wanted.backend]
    size = pixels.resized_size(
        (image.height, image.width),
        resize=wanted.resize,
        size=wanted.resize_size or wanted.image_size,
    )
    if backend.resize == "pil":
        return pixels.resized_on_pil(image, size, wanted.interpolation)
    values = pixels.channels_first(image)
    if backend.resize == "float":
        values = values.astype(np.float32)
    if backend.numbers == "first":
        values = values * np.float32(wanted.rescale_factor or 1)
    values = pixels.resized_on_tensor(
        values, size, wanted.interpolation, antialias=backend.antialias
    )
    return np.trunc(values) if backend.truncate else values


def _fill(wanted: "Preprocessing") -> tuple[int, ...]:
    # timm pads with the mean colour in its border mode; everyone else with black.
    if wanted.resize != "border":
        return (0,) * wanted.channels
    return tuple(round(255 * value) for value in wanted.mean)
