"""Checkpoints as the real packages save them: odd sizes, and every number random."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.packages import timm
from tests.parity.team import TABLE, TeamViT
from tests.small_models import randomise


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(name="randomise")
def _randomise() -> Callable[[nn.Module], nn.Module]:
    return randomise


@pytest.fixture
def table(tmp_path):
    """What a made-up team's tensors mean."""
    path = tmp_path / "team.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def weights(randomise):
    """What the team trained."""
    return randomise(TeamViT()).state_dict()


@pytest.fixture
def timm_checkpoint(randomise, tmp_path):
    """A directory as timm saves it for the Hub; 3 blocks, 4 patches down and 3 across."""

    def save(architecture: str = "vit_tiny_patch16_224", **arguments) -> Path:
        small = {"img_size": [32, 24], "patch_size": 8, "depth": 3}
        arguments = small | arguments
        model = randomise(timm.create_model(architecture, num_classes=7, **arguments))
        path = tmp_path / architecture
        timm.models.save_for_hf(model, path, model_args=arguments)
        return path

    return save


@pytest.fixture
def huggingface_checkpoint(randomise, tmp_path):
    """A directory as `save_pretrained` writes it."""

    def save(config: type, model: type, *, disk: bool = True, **arguments) -> Path:
        small = {
            "hidden_size": 30,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "image_size": (32, 24),
            "patch_size": 8,
        }
        built = randomise(model(config(**(small | arguments))))
        path = tmp_path / model.__name__
        built.save_pretrained(path, save_original_format=disk)
        return path

    return save
