"""Models and images that hide nothing: odd sizes, and every number random."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.small_models import randomise, small_config
from vitconvert.config import ViTConfig


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(20)


@pytest.fixture
def make_config() -> Callable[..., ViTConfig]:
    return small_config


@pytest.fixture(name="randomise")
def _randomise() -> Callable[[nn.Module], nn.Module]:
    return randomise


@pytest.fixture
def images() -> Callable[[ViTConfig], Tensor]:
    """Two images for a model."""

    def draw(config: ViTConfig) -> Tensor:
        return torch.randn(2, config.in_channels, *config.image_size)

    return draw
