"""RADIO in transformers, and in its authors' names as timm reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitconvert
from tests.packages import timm, transformers
from tests.small_models import randomise, relative
from vitconvert.errors import NotRepresentable

ROUNDING = 2e-5
SIDE, TOKENS = 40, 5  # of the image that the positions are for; class tokens and registers


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Eleven blocks, every number random."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 11, "num_attention_heads": 3, "mlp_ratio": 2.0}
    config = transformers.RadioConfig(
        **sizes, patch_size=8, max_img_size=SIDE, num_cls_tokens=2, num_registers=TOKENS - 2
    )
    torch.manual_seed(3)
    return randomise(transformers.RadioModel(config))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("radio")
    model.save_pretrained(path)
    return path


def normalised(images: Tensor) -> Tensor:
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    return (images - mean) / torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)


@pytest.mark.parametrize("size", [(SIDE, SIDE), (24, 40), (56, 24), (80, 80)])
@torch.no_grad()
def test_computes_what_transformers_does_at_any_size(size, model, folder):
    """Positions are fitted to a square, whose upper left is used."""
    images = torch.rand(2, 3, *size)
    theirs = model(images).last_hidden_state
    for fast in (False, True):
        ours = vitconvert.load_model(folder, image_size=size, fast=fast)
        assert relative(ours.forward_features(normalised(images)), theirs) <= ROUNDING
        assert relative(ours(normalised(images)), theirs[:, 0]) <= ROUNDING


def test_every_tensor_is_accounted_for(folder):
    checkpoint = vitconvert.load_checkpoint(folder)
    assert (checkpoint.dialect, checkpoint.config.num_registers) == ("hf_radio", TOKENS - 1)
    assert {name.rpartition(".")[2] for name in checkpoint.ledger.ignored} == {
        *("norm_mean", "norm_std", "summary_idxs")
    }


@pytest.mark.parametrize("to", ["timm", "vit"])
def test_goes_to_timm_and_comes_back(to, folder, tmp_path):
    there = vitconvert.convert(folder, to=to, output=tmp_path / "there")
    back = vitconvert.convert(tmp_path / "there", to="hf", output=tmp_path / "back")
    assert all(opened.relative <= ROUNDING for opened in (*there.opened, *back.opened))
    wanted, found = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert found.keys() == wanted.keys()
    indices = "radio_model.summary_idxs"  # of class tokens, of which one is read
    assert all(torch.equal(found[name], wanted[name]) for name in wanted if name != indices)
    assert found[indices].dtype == torch.int64 and found[indices].tolist() == [0]


def original(folder: Path, **changes: Tensor) -> dict[str, Tensor]:
    """In the names of its authors, who call LayerScale's weight so that nothing renames it."""
    tensors = load_file(folder / "model.safetensors") | changes
    return {
        name.replace("layer_scale", "ls").replace("lambda1", "grandma"): tensor
        for name, tensor in tensors.items()
    }


@torch.no_grad()
def test_computes_what_timm_makes_of_its_authors_names(folder, tmp_path):
    tensors = original(folder)
    save_file(tensors, tmp_path / "model.safetensors")
    sizes: dict[str, Any] = {"img_size": (24, 40), "patch_size": 8, "embed_dim": 48, "depth": 11}
    theirs = timm.create_model(
        "vit_base_patch16_radio_v3", num_heads=3, mlp_ratio=2, num_classes=0, reg_tokens=4, **sizes
    )
    source = timm.models.vision_transformer
    fit = {"interpolation": "bilinear", "antialias": False}
    theirs.load_state_dict(source.checkpoint_filter_fn(tensors, theirs, **fit))
    ours = vitconvert.load_model(
        tmp_path / "model.safetensors", overrides={"num_heads": 3}, image_size=(24, 40)
    )
    images = torch.randn(2, 3, 24, 40)
    assert relative(ours(images), theirs.eval()(images)) <= ROUNDING


def test_images_that_are_normalised_otherwise_are_refused(folder, tmp_path):
    other = {"radio_model.input_conditioner.norm_mean": torch.zeros(3, 1, 1)}
    save_file(original(folder, **other), tmp_path / "model.safetensors")
    checkpoint = vitconvert.load_checkpoint(
        tmp_path / "model.safetensors", overrides={"num_heads": 3}
    )
    with pytest.raises(NotRepresentable, match="always the same is another one here"):
        dict(checkpoint.tensors)


def test_photographs_are_normalised_once(folder, tmp_path):
    """By RadioModel itself, so that its processor leaves it; by ours before the model."""
    vitconvert.convert(folder, to="hf", output=tmp_path / "hf", verify=False)
    processor = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert processor["do_normalize"] is False
    (tmp_path / "hf" / "vitconvert.json").unlink()
    found = vitconvert.load_checkpoint(tmp_path / "hf").preprocessing
    assert found.normalize and found.mean == (0.48145466, 0.4578275, 0.40821073)
    vitconvert.convert(tmp_path / "hf", to="timm", output=tmp_path / "timm", verify=False)
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert config["pretrained_cfg"]["mean"] == [0.48145466, 0.4578275, 0.40821073]
