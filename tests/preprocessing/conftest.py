from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from PIL import Image

SIZES = [(101, 57), (331, 250), (64, 203), (40, 40), (5, 3)]  # width, height


@pytest.fixture(scope="session")
def photograph():
    """Smooth shapes, hard edges and noise, different for every size."""

    def make(width: int, height: int, channels: int = 3) -> Image.Image:
        random = np.random.default_rng(width * 1000 + height)
        coarse = random.integers(0, 256, (7, 5, channels), dtype=np.uint8)
        smooth = np.stack(
            [
                np.asarray(Image.fromarray(coarse[..., c]).resize((width, height)))
                for c in range(channels)
            ],
            axis=-1,
        )
        edge = np.add.outer(np.arange(height) // 11, np.arange(width) // 7) % 2 * 90
        noise = random.integers(-30, 31, smooth.shape)
        pixels = np.clip(smooth + edge[..., None] - 45 + noise, 0, 255).astype(np.uint8)
        return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)

    return make


@pytest.fixture(scope="session")
def photographs(photograph):
    return [photograph(*size) for size in SIZES]


def sample(cases: Iterable[Any], every: int) -> list[Any]:
    """Every N-th of a matrix, which `-m coverage` makes whole."""
    return [
        pytest.param(*case, marks=() if number % every == 0 else pytest.mark.coverage)
        for number, case in enumerate(cases)
    ]
