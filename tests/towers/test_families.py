"""The ViT inside each larger model of transformers computes what it computes there."""

import pytest
import torch
from torch import Tensor, nn

import vitconvert
from tests.packages import transformers
from tests.sampling import sampled
from tests.towers.families import FAMILIES, Family, save, save_as_4

QUICK = ("llava", "internvl", "blip-2", "depth_anything")
# Classes whose attention is written out, as torch computes it otherwise.
WRITTEN_OUT = ("BlipModel", "GitForCausalLM", "FlavaModel", "FlavaForPreTraining")
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]


@pytest.fixture(scope="module", params=NAMES)
def made(request):
    family = FAMILIES[request.param]
    return request.param, family, family.model()


def tower_outputs(family: Family, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the ViT inside a larger model gives: its tokens, and what it pools of them."""
    tower = model.get_submodule(family.tower)
    if hasattr(tower, "get_image_features"):
        found = tower.get_image_features(pixel_values=images)
    else:
        found = tower(pixel_values=images)
    if hasattr(found, "feature_maps"):
        return found.feature_maps[-1], None
    return found.last_hidden_state, found.pooler_output if family.pooled else None


@torch.no_grad()
def check_equal(family: Family, model: nn.Module, checkpoint: vitconvert.Checkpoint) -> None:
    torch.manual_seed(1)
    images = torch.randn(2, 3, 24, 24)
    tokens, pooled = tower_outputs(family, model, images)
    ours = vitconvert.load_model(checkpoint)
    before_norm: list[Tensor] = []
    if isinstance(model.get_submodule(family.tower), transformers.BeitBackbone):
        # It has no last norm.
        ours.norm.register_forward_pre_hook(lambda _, given: before_norm.append(given[0]))
    found = ours.forward_features(images)
    if before_norm:
        found = before_norm[0]
    exact = type(model).__name__ not in WRITTEN_OUT
    limit = 0 if exact else 2e-5
    torch.testing.assert_close(found, tokens, rtol=limit, atol=limit)
    if pooled is not None:
        torch.testing.assert_close(ours(images), pooled, rtol=limit, atol=limit)


def test_equal_to_the_tower_inside_in_every_spelling(made, tmp_path):
    name, family, model = made
    folders = {
        "disk": save(model, tmp_path / "disk"),
        "memory": save(model, tmp_path / "memory", disk=False),
        "4": save_as_4(model, tmp_path / "4", name),
    }
    for spelling, folder in folders.items():
        checkpoint = vitconvert.load_checkpoint(folder)
        expected = (family.dialect_in_4 if spelling == "4" else "") or family.dialect
        assert checkpoint.dialect.removesuffix("_memory") == expected, spelling
        accounts = checkpoint.ledger
        assert accounts.read == len(accounts.used) + len(accounts.ignored)
        check_equal(family, model, checkpoint)
    prefix = vitconvert.inspect(folders["disk"]).prefix
    assert prefix == family.prefix


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(FAMILIES, 5))
def test_verified_against_the_towers_own_class(name, tmp_path):
    model = FAMILIES[name].model()
    report = vitconvert.verify(save(model, tmp_path))
    assert report.ok, report.summary()
    assert report.reference.startswith(f"transformers {transformers.__version__} ")
    exact = type(model).__name__ not in WRITTEN_OUT
    assert not exact or all(c.bit_equal for c in report.comparisons if c.dtype == "float32")
