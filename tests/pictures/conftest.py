"""Models of `tests/small_models.py`, and photographs for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.huggingface.conftest import save
from tests.preprocessing.conftest import photograph
from tests.small_models import randomise, small_config
from vitconvert.config import ViTConfig
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing

__all__ = ["photograph", "save"]


def squashed(config: ViTConfig, **changes: Any) -> Preprocessing:
    """All of a photograph, in the size that a model reads."""
    plain = {"mean": (0.5,) * config.in_channels, "std": (0.25,) * config.in_channels}
    size = {"image_size": config.image_size, "resize_size": config.image_size}
    steps = {"interpolation": "bilinear", "resize": "squash", "crop": False}
    arithmetic = {"backend": "torchvision", "origin": "test"}
    return Preprocessing(**(plain | size | steps | arithmetic | changes))


@pytest.fixture
def small() -> Callable[..., ViT]:
    """A random model: 4 patches down, 3 across."""

    def build(**changes: Any) -> ViT:
        torch.manual_seed(20)
        return randomise(ViT(small_config(**changes)))

    return build


@pytest.fixture
def noise() -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (53, 87, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
