"""timm's models with positions on a grid of their own, or merged patches: there and back.

Small, with every parameter, bound and buffer random. `convert` proves each against timm's own
model, and opens what it wrote with timm.
"""

import pytest
import torch
from safetensors.torch import load_file

import vitconvert
from tests.coverage.families import random_model
from tests.packages import timm
from tests.sampling import sampled
from tests.small_models import assert_same_tensors, relative
from vitconvert.api import load_checkpoint
from vitconvert.errors import ConflictingFact, InputMismatch, NotRepresentable
from vitconvert.model.attention_maps import attentions
from vitconvert.model.fast import FastLinear
from vitconvert.model.layers import ClippedLinear
from vitconvert.model.pruning import prune_heads
from vitconvert.runtimes.export import export_checkpoint
from vitconvert.runtimes.options import ExportOptions

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": [48, 32], "patch_size": 8}
GEMMA = {"head_dim": 20, "intermediate_size": 50, "position_embedding_size": 9}
TALL = {"img_size": [72, 48]}  # squares of three patches
MODELS = {
    "naflexvit_base_patch16_gap": {"depth": 11, "pos_embed_grid_size": [5, 3], "num_classes": 5},
    "naflexvit_base_patch16_parfac_gap": {"pos_embed_grid_size": [5, 5], "num_classes": 5},
    "naflexvit_base_patch16_siglip": {"pos_embed_grid_size": [4, 4]},
    "naflexvit_base_patch16_radio_v3": {"pos_embed_grid_size": [9, 9]},
    "deepseek_vit_412m_align": {"out_features": 20, "num_classes": 5},
    "deepseek_vit_412m_enc": {"out_features": 20},
    "qwen3_vit_88m": {"pos_embed_grid_size": 5, "num_classes": 5},
    "qwen3_vit_88m_enc": {"depth": 11, "pos_embed_grid_size": 5, "out_features": 20},
    "gemma4_vit_570m": GEMMA | {"num_classes": 5},
    "gemma4_vit_167m_enc": GEMMA | TALL,
}


@pytest.fixture
def saved(tmp_path):
    """timm's model, and the directory that timm saves it to."""

    def make(name, **changes):
        arguments = {**SMALL, **MODELS[name], **changes}
        model = random_model(name, **arguments)
        told = {key: value for key, value in arguments.items() if key != "num_classes"}
        folder = tmp_path / "timm"
        timm.models.save_for_hf(model, folder, model_args=told, safe_serialization=True)
        return model, folder

    return make


@pytest.mark.parametrize("name", sampled(MODELS, 4, "slow"))
@torch.inference_mode()
def test_there_and_back(name, saved, tmp_path):
    theirs, folder = saved(name)
    ours, fast = vitconvert.load_model(folder), vitconvert.load_model(folder, fast=True)
    images = torch.rand(2, 3, *ours.config.image_size)
    wanted = theirs(images)
    assert wanted.isfinite().all() and wanted.std() > 0
    assert relative(ours(images), wanted) <= 2e-5 and relative(fast(images), wanted) <= 2e-5
    back = vitconvert.convert(folder, output=tmp_path / "back", to="timm")
    assert back.parity is not None and back.opened[0].relative is not None
    before, after = (load_file(d / "model.safetensors") for d in (folder, tmp_path / "back"))
    assert_same_tensors(after, before)


BARE = {
    "deepseek_vit_412m_enc": {"num_heads": 3, "image_size": (48, 32)},
    "qwen3_vit_88m_enc": {"num_heads": 3, "image_size": (48, 32)},
    "gemma4_vit_167m_enc": {"patch_size": (8, 8), "image_size": (72, 48)},
}


@pytest.mark.parametrize("name", BARE)
@torch.inference_mode()
def test_the_tensors_alone(name, saved, tmp_path):
    """What neither they nor a named architecture say is in the table."""
    theirs, folder = saved(name)
    file = (folder / "model.safetensors").replace(tmp_path / "alone.safetensors")
    ours = vitconvert.load_model(file, overrides=BARE[name])
    x = torch.rand(2, 3, *ours.config.image_size)
    assert relative(ours(x), theirs(x)) <= 2e-5


@torch.inference_mode()
def test_another_size_of_images_fits_the_same_tensors(saved):
    theirs, folder = saved("naflexvit_base_patch16_radio_v3")
    ours = vitconvert.load_model(folder, image_size=(24, 80))
    images = torch.rand(1, 3, 24, 80)
    assert relative(ours(images), theirs(images)) <= 2e-5
    assert ours.config.position_grid == (9, 9)
    assert torch.equal(ours.positions.table, theirs.embeds.pos_embed)
    with pytest.raises(InputMismatch):
        ours(images[..., :40])


def test_what_a_size_must_fit_is_told(saved):
    _, folder = saved("gemma4_vit_167m_enc")
    with pytest.raises(ConflictingFact, match="9x9 positions are too few for 12x6"):
        vitconvert.load_model(folder, image_size=(96, 48))
    with pytest.raises(ConflictingFact, match="7x6 patches do not divide into squares of 3 by 3"):
        vitconvert.load_model(folder, image_size=(56, 48))


@torch.inference_mode()
def test_positions_are_fitted_for_projects_without_such_a_grid(saved, tmp_path):
    _, folder = saved("naflexvit_base_patch16_siglip", img_size=[40, 40])
    with pytest.raises(NotRepresentable, match="--allow fit-positions makes it fit"):
        vitconvert.convert(folder, output=tmp_path / "hf", to="hf")
    done = vitconvert.convert(
        folder, output=tmp_path / "hf", to="hf_siglip", allow=["fit-positions"]
    )
    assert "fitted to the image's grid" in str(done.ledger.changed)
    images = torch.rand(1, 3, 40, 40)
    before, after = vitconvert.load_model(folder), vitconvert.load_model(tmp_path / "hf")
    torch.testing.assert_close(before(images), after(images), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_clipped_layers_clip_with_fast_arithmetic_too(saved):
    _, folder = saved("gemma4_vit_167m_enc")
    fast = vitconvert.load_model(folder, fast=True)
    clipped = [m for m in fast.modules() if isinstance(m, ClippedLinear)]
    assert len(clipped) == 2 * 7 and not any(isinstance(m, FastLinear) for m in clipped)
    images = torch.rand(1, 3, *fast.config.image_size)
    before = fast(images)
    for layer in clipped:
        layer.open_bounds()
    assert relative(fast(images), before) > 1e-3


@pytest.mark.slow
def test_a_clipped_layer_is_exported_for_onnx(saved, tmp_path):
    _, folder = saved("gemma4_vit_167m_enc", depth=1)
    exported = export_checkpoint(
        load_checkpoint(folder), tmp_path / "model.onnx", ExportOptions(to="onnx")
    )
    assert len(exported.comparisons) == 4


@torch.inference_mode()
def test_attentions_and_heads(saved):
    _, folder = saved("gemma4_vit_167m_enc")
    ours = vitconvert.load_model(folder)
    images = torch.rand(1, 3, *ours.config.image_size)
    seen = attentions(ours, images)
    assert seen[1].shape == (1, 3, 54, 54)
    torch.testing.assert_close(seen[1].sum(-1), torch.ones(1, 3, 54))
    masked = ours(images, head_mask=torch.tensor([[1.0, 0, 1]] * 2))
    prune_heads(ours, {0: [1], 1: [1]})
    torch.testing.assert_close(ours(images), masked, rtol=1e-4, atol=1e-4)
