"""Checkpoints as the real packages save them: odd sizes, and every number random."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.packages import timm, torchvision
from tests.parity.team import STATED, TABLE, TeamViT
from tests.small_models import randomise
from vitconvert.api import load_checkpoint, record_golden


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(name="randomise")
def _randomise() -> Callable[[nn.Module], nn.Module]:
    return randomise


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A directory of the made-up team: its weights, its table, and golden outputs."""
    folder = tmp_path_factory.mktemp("team")
    torch.manual_seed(20)
    torch.save(randomise(TeamViT()).state_dict(), folder / "team.pth")
    (folder / "team.toml").write_text(TABLE)
    checkpoint = load_checkpoint(folder / "team.pth", table=folder / "team.toml", overrides=STATED)
    record_golden(checkpoint, folder / "team.golden")
    return folder


@pytest.fixture
def table(trained):
    """What the team's tensors mean."""
    return trained / "team.toml"


@pytest.fixture
def weights(trained):
    """What the team trained."""
    return torch.load(trained / "team.pth", weights_only=True)


@pytest.fixture
def checkpoint(trained, table):
    """The team's weights as a file of its own spelling."""
    return load_checkpoint(trained / "team.pth", table=table, overrides=STATED)


@pytest.fixture
def golden(trained):
    """Of the team's weights, which no package can load: so it is not verified."""
    return trained / "team.golden"


def save_timm(folder, architecture="vit_tiny_patch16_224", *, change=None, **arguments) -> Path:
    """A directory as timm saves it for the Hub; 3 blocks, 4 patches down and 3 across."""
    small = {"img_size": [32, 24], "patch_size": 8, "depth": 3, "num_classes": 7}
    arguments = small | arguments
    model = randomise(timm.create_model(architecture, **arguments))
    if change:
        with torch.no_grad():
            change(model)
    timm.models.save_for_hf(model, folder / architecture, model_args=arguments)
    return folder / architecture


@pytest.fixture
def timm_checkpoint(tmp_path):
    return partial(save_timm, tmp_path)


@pytest.fixture
def plain(tmp_path):
    """timm's tensors alone; width 30, 3 heads, 3 x 3 patches."""
    model = timm.models.VisionTransformer(
        img_size=24, patch_size=8, embed_dim=30, depth=2, num_heads=3, num_classes=5
    )
    torch.save(randomise(model).state_dict(), tmp_path / "plain.pth")
    return tmp_path / "plain.pth"


@pytest.fixture
def torchvision_file(tmp_path):
    """A state dict of torchvision; width 30, 3 heads, 4 x 4 patches."""
    model = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=30, mlp_dim=50
    )
    torch.save(randomise(model).state_dict(), tmp_path / "torchvision.pth")
    return tmp_path / "torchvision.pth"


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
