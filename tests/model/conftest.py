"""Models and images that hide nothing: odd sizes, and every number random."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(20)


@pytest.fixture
def make_config() -> Callable[..., ViTConfig]:
    """A small ViT: 4 patches down, 3 across, 3 heads of 10."""

    def make(**changes: Any) -> ViTConfig:
        return ViTConfig(**(_SMALL | changes))

    return make


@pytest.fixture
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Fill parameters with noise around 0, around 1 where they are factors; returns the model."""

    def fill(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                factor = parameter.ndim == 1 and name.endswith(("weight", "gamma", "lambda1"))
                parameter.normal_(std=0.2).add_(1.0 if factor else 0.05)
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean.normal_(std=0.2)
                    module.running_var.uniform_(0.5, 2.0)
                    module.num_batches_tracked.fill_(9)
        return model.eval()

    return fill


@pytest.fixture
def images() -> Callable[[ViTConfig], Tensor]:
    """Two images for a model."""

    def draw(config: ViTConfig) -> Tensor:
        return torch.randn(2, config.in_channels, *config.image_size)

    return draw


_SMALL: dict[str, Any] = {
    "image_size": (32, 24),
    "patch_size": (8, 8),
    "in_channels": 3,
    "num_classes": 7,
    "embed_dim": 30,
    "depth": 3,
    "num_heads": 3,
    "head_dim": 10,
    "mlp_dim": 50,
    "activation": "gelu",
    "norm_eps": 1e-6,
    "pooling": "token",
}
