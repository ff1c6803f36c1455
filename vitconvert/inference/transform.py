"""A photograph through a preprocessing: convert, resize, crop, normalise."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import InputMismatch
from vitconvert.inference import pixels
from vitconvert.inference.backends import BACKENDS, Size

if TYPE_CHECKING:
    from vitconvert.inference.preprocessing import Preprocessing


_PLAIN_MODES = ("L", "RGB")  # which may be converted before or after they are resized


def transformed(
    image: Image.Image | Path, wanted: "Preprocessing", *, fast: bool = False
) -> NDArray[np.float32]:
    """The image, open or a file, as the model reads it: (C, H, W).

    Raises:
        SourceError, CorruptFile: The file cannot be read, or not as an image.
        InputMismatch: The image is too narrow, or of another size when nothing resizes it.
        UnsafeFile: It is so large, or so narrow, that it would exhaust memory.
    """
    backend = BACKENDS[wanted.backend]
    values = (
        _nearly_resized(image, wanted) if fast and _shrinks(wanted) else _resized(image, wanted)
    )
    if wanted.crop:
        values = pixels.centred(values, wanted.image_size, fill=_fill(wanted), backend=backend)
    if values.shape[1:] != wanted.image_size:
        raise _wrong_size(values.shape[1:], wanted)
    rescaled = backend.numbers == "first" and values.dtype == np.uint8
    return pixels.normalised(
        values,
        mean=wanted.mean if wanted.normalize else None,
        std=wanted.std if wanted.normalize else None,
        factor=wanted.rescale_factor,
        numbers="fused" if rescaled else backend.numbers,
    )


def _wrong_size(found: tuple[int, ...], wanted: "Preprocessing") -> InputMismatch:
    made, read = ("x".join(map(str, size)) for size in (found, wanted.image_size))
    if wanted.resize == "patches":
        return InputMismatch(
            f"The image keeps its shape: it becomes {made}, and the model reads {read} here.",
            evidence={"from": wanted.origin},
            hint=f"`vitconvert file MODEL --image-size {made} -o DIR` makes a model for such ones.",
        )
    return InputMismatch(
        f"The image is {made}, and the model reads {read} images that nothing resizes.",
        evidence={"from": wanted.origin},
    )


def _resized(image: Image.Image | Path, wanted: "Preprocessing") -> pixels.Pixels:
    """With the operations of the source project, on all pixels: uint8 or float32."""
    backend = BACKENDS[wanted.backend]
    image = image if isinstance(image, Image.Image) else pixels.open_image(image)
    if not backend.converts_last:
        image = _converted(image, wanted)
    size = _size(wanted, (image.height, image.width))
    if backend.resize == "pil":
        image = pixels.resized_on_pil(image, size, wanted.interpolation)
        if backend.converts_last:
            image = _converted(pixels.padded_on_pil(image, wanted.image_size), wanted)
        return pixels.channels_first(image)
    values = pixels.channels_first(image)
    if backend.resize == "float":
        values = values.astype(np.float32)
    if backend.numbers == "first":
        values = values * np.float32(wanted.rescale_factor or 1)
    values = pixels.resized_on_tensor(
        values, size, wanted.interpolation, antialias=backend.antialias
    )
    return np.trunc(values) if backend.truncate else values


def _shrinks(wanted: "Preprocessing") -> bool:
    """Whether an image may be shrunk before it is resized.

    Without antialias, or to the nearest pixel, other pixels entirely would come out.
    """
    antialias = BACKENDS[wanted.backend].antialias and wanted.interpolation != "nearest"
    return antialias and wanted.resize_size is not None


def _nearly_resized(image: Image.Image | Path, wanted: "Preprocessing") -> pixels.Pixels:
    """Only what the crop keeps, with fewer pixels read and averaged in two steps: uint8."""
    backend = BACKENDS[wanted.backend]
    source = None
    if not isinstance(image, Image.Image):
        at_least = pixels.MARGIN * max(wanted.resize_size or wanted.image_size)
        image, source = pixels.open_shrunk(image, at_least, upright=backend.upright)
    if backend.converts_last and image.mode not in _PLAIN_MODES:
        return _resized(image, wanted)
    image = _converted(image, wanted)
    source = source or (image.height, image.width)
    height, width = size = _size(wanted, source)
    kept = min(height, wanted.image_size[0]), min(width, wanted.image_size[1])
    return pixels.resized_middle(
        image,
        source,
        size,
        wanted.interpolation,
        kept=kept if wanted.crop else size,
        backend=backend,
    )


def _converted(image: Image.Image, wanted: "Preprocessing") -> Image.Image:
    return pixels.converted(
        image,
        channels=wanted.channels,
        transparency=wanted.transparency,
        upright=BACKENDS[wanted.backend].upright,
    )


def _size(wanted: "Preprocessing", source: Size) -> Size:
    if wanted.patch_size and wanted.max_patches:
        return pixels.size_in_patches(
            source, patch_size=wanted.patch_size, max_patches=wanted.max_patches
        )
    size = wanted.resize_size or wanted.image_size
    return pixels.resized_size(source, resize=wanted.resize, size=size)


def _fill(wanted: "Preprocessing") -> tuple[int, ...]:
    # Only timm pads with the mean colour, in its border mode.
    if wanted.resize != "border" or BACKENDS[wanted.backend].black_border:
        return (0,) * wanted.channels
    return tuple(round(255 * value) for value in wanted.mean)
