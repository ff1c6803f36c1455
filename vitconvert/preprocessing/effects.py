"""By how much each difference of a program changes an image."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import VitConvertError
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.departures import NUMBERS, each_departure
from vitconvert.preprocessing.steps import Steps, unit_mean_std
from vitconvert.preprocessing.transform import transformed


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
        if all(getattr(source, name) == getattr(theirs, name) for name in NUMBERS):
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
    for one in each_departure(source, theirs):
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
