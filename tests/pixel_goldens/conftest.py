from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitconvert.pixel_goldens.golden import PixelGolden, read, record
from vitconvert.preprocessing import Preprocessing

CFG = {"input_size": [3, 48, 48], "crop_pct": 0.76, "interpolation": "bicubic"}
STEPS = Preprocessing.from_timm(CFG)
MEAN, STD = np.array(STEPS.mean), np.array(STEPS.std)


@pytest.fixture(scope="session")
def golden(tmp_path_factory) -> PixelGolden:
    """Of timm's bicubic, to 63 pixels, of which 48 are kept."""
    folder = tmp_path_factory.mktemp("golden") / "vit.pixels"
    record(STEPS, folder, source="vit.pth", own=None)
    return read(folder)


@dataclass(frozen=True, kw_only=True)
class Port:
    """The same preprocessing written again, by whoever made a mistake in one step."""

    decode: Callable = lambda image: image.convert("RGB")
    cut: Callable = lambda image: image
    size: Callable = lambda height, width: shortest(63, height, width)
    filter: Callable = lambda image, size: np.asarray(image.resize(size[::-1], Image.BICUBIC))
    corner: Callable = lambda surplus: round(surplus / 2)
    normalise: Callable = lambda values: (values / 255 - MEAN) / STD

    def steps(self, file: Path) -> dict[str, np.ndarray]:
        image = self.cut(self.decode(Image.open(file)))
        resized = self.filter(image, self.size(image.height, image.width)).astype(np.float32)
        top, left = (self.corner(side - 48) for side in resized.shape[:2])
        cropped = resized[top : top + 48, left : left + 48]
        made = {
            "decoded": np.asarray(image),
            "resized": resized,
            "cropped": cropped,
            "normalised": self.normalise(cropped).astype(np.float32),
        }
        return {step: np.moveaxis(array, -1, 0) for step, array in made.items()}

    def results(self, golden: PixelGolden) -> dict[str, np.ndarray]:
        return {name: self.steps(golden.folder / name)["normalised"] for name in golden.images}


def shortest(side, height, width):
    """The size whose shortest side has so many pixels."""
    long = int(side * max(height, width) / min(height, width))
    return (long, side) if width <= height else (side, long)
