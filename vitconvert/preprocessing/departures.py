"""How a program treats images differently from a checkpoint's own library, step by step."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import VitConvertError
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.steps import Steps, unit_mean_std
from vitconvert.preprocessing.transform import transformed

_RESIZED = {
    "pil": "Pillow images",
    "uint8": "uint8 tensors",
    "float": "float tensors",
    "weights": "arrays by weights",
}
_TRANSPARENCY = {
    "drop": "ignores transparency",
    "white": "puts transparent images on white",
    "key": "puts images with one transparent colour (GIF, PNG) on white",
}
_OPENS = {
    "pillow": "opens 16-bit and CMYK images with Pillow, not with OpenCV",
    "opencv": "opens 16-bit and CMYK images with OpenCV, not with Pillow",
}
# Fields that sentences below put into words
_IN_WORDS = ("backend", "transparency", "patch_size", "max_patches", "pad")
# Fields that only make sense together; others stand for themselves.
_SIZES = ("image_size", "resize", "resize_size", "crop", "pad", "patch_size", "max_patches")
_NUMBERS = ("mean", "std", "rescale_factor", "normalize")
_RESIZING = ("resize", "antialias", "truncate", "interpolations", "numbers")


@dataclass(frozen=True, kw_only=True)
class Departure:
    """One difference of a program.

    Attributes:
        text: The difference in words; without its subject, unless it names a field.
        field: Whether it names one.
        backend: Fields of the source's backend that differ.
        steps: Fields of the source's steps that differ.
    """

    text: str
    backend: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    field: bool = False


def departures_of(program: str, source: Steps, theirs: Steps) -> tuple[str, ...]:
    """The differences of a program, one sentence each; rounding of the last bit is left out.

    Args:
        program: Its name, which begins each sentence.
        source: The steps of the checkpoint's own project.
        theirs: The steps that the program takes.
    """
    return tuple(f"{program} {one.text}" for one in _departures(source, theirs))


def _departures(source: Steps, theirs: Steps) -> Iterator[Departure]:
    ours, other = BACKENDS[source.backend], BACKENDS[theirs.backend]
    if other.resize != ours.resize:
        text = f"resizes {_RESIZED[other.resize]}, not {_RESIZED[ours.resize]}"
        yield Departure(text=text, backend=_RESIZING)
    if other.antialias != ours.antialias:
        text = f"resizes {'with' if other.antialias else 'without'} antialiasing"
        yield Departure(text=text, backend=_RESIZING)
    if source.cuts and other.crop_rounding != ours.crop_rounding:
        text = "shifts the crop by one pixel where it cuts 3, 7, 11, ... rows or columns"
        yield Departure(text=text, backend=("crop_rounding",))
    if other.upright != ours.upright:
        text = f"{'applies' if other.upright else 'ignores'} the EXIF orientation"
        yield Departure(text=text, backend=("upright",))
    if source.resize == "patches" != theirs.resize:
        yield Departure(text="gives all images one aspect ratio", steps=_SIZES)
    if other.converts_last != ours.converts_last:
        order = "after" if other.converts_last else "before"
        text = f"converts images that are neither grey nor RGB {order} resizing"
        yield Departure(text=text, backend=("converts_last",))
    if source.resize == theirs.resize == "border" and other.black_border != ours.black_border:
        text = f"pads with {'black' if other.black_border else 'the mean colour'}"
        yield Departure(text=text, backend=("black_border",))
    if source.pad != theirs.pad:
        text = "pads at the right and below" if theirs.pad else "pads nothing"
        yield Departure(text=text, steps=_SIZES)
    if other.opens != ours.opens:
        yield Departure(text=_OPENS[other.opens], backend=("opens",))
    if theirs.transparency != source.transparency:
        yield Departure(text=_TRANSPARENCY[theirs.transparency], steps=("transparency",))
    for difference in source.differences(theirs):
        field = difference.partition(" ")[0]
        if field not in _IN_WORDS:
            together = next((group for group in (_SIZES, _NUMBERS) if field in group), (field,))
            yield Departure(text=difference, steps=together, field=True)


@dataclass(frozen=True, kw_only=True)
class PixelScale:
    """In what pixels of two preprocessings are compared.

    Attributes:
        factor: What numbers of the model's input are multiplied with: (C, 1, 1).
        unit: What they are then.
    """

    factor: NDArray[np.float32]
    unit: str

    @classmethod
    def of(cls, source: Steps, theirs: Steps) -> "PixelScale":
        """Levels of 255 if both normalise alike; else the numbers that the model reads."""
        std = np.array(unit_mean_std(source)[1], np.float32)
        if all(getattr(source, name) == getattr(theirs, name) for name in _NUMBERS):
            return cls(factor=255 * std[:, None, None], unit="levels of 255")
        return cls(factor=np.ones_like(std)[:, None, None], unit="in the normalised input")

    def largest(self, difference: NDArray[np.float32]) -> float:
        """The largest difference of an image's (C, H, W)."""
        return float(np.abs(difference * self.factor).max())


def effects(
    image: Path | Image.Image, source: Steps, theirs: Steps, *, max_pixels: int | None = None
) -> dict[str, float]:
    """What changes an image: differences in words -> how much each of them alone, in `PixelScale`.

    Those that change nothing are left out, as EXIF of an image that states no orientation. One that
    cannot be tried alone, as it makes another size, is infinite.
    """
    found: dict[str, float] = {}
    other, scale = BACKENDS[theirs.backend], PixelScale.of(source, theirs)
    as_it_is = transformed(image, source, max_pixels=max_pixels)
    for one in _departures(source, theirs):
        how = {name: getattr(other, name) for name in one.backend}
        backend = dataclasses.replace(BACKENDS[source.backend], **how)
        values = {name: getattr(theirs, name) for name in one.steps}
        text = one.text if one.field else f"the other side {one.text}"
        try:
            tried = dataclasses.replace(source, **values)
            changed = transformed(image, tried, max_pixels=max_pixels, backend=backend)
        except VitConvertError:
            changed = as_it_is[:, :0]
        if changed.shape != as_it_is.shape:
            found[text] = float("inf")
        elif apart := scale.largest(changed - as_it_is):
            found[text] = apart
    return found
