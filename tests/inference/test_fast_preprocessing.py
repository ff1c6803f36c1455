"""Faster reading gives nearly the same pixels, of the same part of the image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitconvert.errors import InputMismatch
from vitconvert.inference.preprocessing import Preprocessing

LEVELS = {"mean": (0, 0, 0), "std": (1 / 255,) * 3}  # what comes out are levels from 0 to 255
SMALL = {"input_size": (3, 32, 48), **LEVELS}


@pytest.fixture(scope="session")
def scene() -> Callable[..., Image.Image]:
    """As smooth as photographs of many pixels are, with edges and some noise."""

    def make(width: int, height: int, channels: int = 3) -> Image.Image:
        random = np.random.default_rng(width * 1000 + height)
        coarse = Image.fromarray(random.integers(0, 256, (11, 17, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        edges = np.add.outer(np.arange(height) // 61, np.arange(width) // 83) % 2 * 60 - 30
        noise = random.normal(0, 5, smooth.shape)
        pixels = np.clip(smooth + edges[..., None] + noise, 0, 255).astype(np.uint8)
        image = Image.fromarray(pixels)
        return image if channels == 3 else image.convert("L")

    return make


def difference(p: Preprocessing, image: Image.Image | Path) -> tuple[float, float]:
    """Mean and largest difference of levels."""
    apart = np.abs(p.array(image) - p.array(image, fast=True))
    assert apart.shape == (p.channels, *p.image_size)
    return float(apart.mean()), float(apart.max())


@pytest.mark.parametrize(
    "cfg",
    [
        {"interpolation": "bicubic", "crop_pct": 0.9},
        {"interpolation": "bilinear", "crop_pct": 1.0},
        {"interpolation": "lanczos", "crop_mode": "squash"},
        {"crop_mode": "border", "mean": (0.5, 0.4, 0.3)},
        {"crop_pct": 1.5},  # the resized image is smaller, and padded
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(1203, 801), (799, 1207), (640, 480)], ids=str)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_levels_are_close(
    tmp_path: Path,
    scene: Callable[..., Image.Image],
    cfg: dict[str, Any],
    size: tuple[int, int],
    suffix: str,
) -> None:
    path = tmp_path / f"scene.{suffix}"
    scene(*size).save(path, compress_level=0) if suffix == "png" else scene(*size).save(path)
    mean, largest = difference(Preprocessing.from_timm({**SMALL, **cfg}), path)
    assert 0 < mean < 1
    assert largest < 20
