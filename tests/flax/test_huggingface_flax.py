"""Hugging Face's Flax classes: files that transformers 4 wrote, and what it computed.

`make_files.py` made them. That transformers 4 opens what is written here was seen with the same
script, in an environment of its own: every output was bit-equal to that of the file it came from.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitconvert
from tests.packages import transformers
from vitconvert.errors import NotRepresentable
from vitconvert.formats import open_container

FILES = Path(__file__).parent / "files"
DIALECTS = {
    "vit": "hf_flax_vit",
    "vit_shards": "hf_flax_vit",
    "vit_bfloat16": "hf_flax_vit_pooler",
    "beit": "hf_flax_beit",
    "beit_bare": "hf_flax_beit",
    "dinov2": "hf_flax_dinov2",
    "dinov2_chunks": "hf_flax_dinov2",
    "clip_vision": "hf_flax_clip",
    "clip": "hf_flax_clip",
}


def difference(found: torch.Tensor, expected: np.ndarray) -> float:
    return float(np.abs(found.numpy() - expected).max())


@pytest.mark.parametrize("name", DIALECTS)
@torch.no_grad()
def test_the_same_function(name):
    checkpoint = vitconvert.load_checkpoint(FILES / name)
    assert checkpoint.dialect == DIALECTS[name]
    expected = np.load(FILES / name / "expected.npz")
    images = torch.from_numpy(expected["images"])
    for fast in (False, True):
        model = vitconvert.load_model(FILES / name, fast=fast)
        assert difference(model(images), expected["output"]) <= 2e-6
        if "tokens" in expected and not fast:
            assert difference(model.forward_features(images), expected["tokens"]) <= 4e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DIALECTS.keys() - {"clip"}))
def test_back_again_every_tensor_has_its_bytes(name, tmp_path):
    there = vitconvert.convert(FILES / name, to="vit", output=tmp_path / "vit", verify=False)
    size = "2KB" if "shards" in name else None
    back = vitconvert.convert(
        there.output, to="hf_flax", output=tmp_path / "back", max_shard_size=size
    )
    assert back.opened[0].summary() == "msgpack.unpackb: every tensor as it was written"
    assert len(list(back.output.glob("*.msgpack"))) == (2 if size else 1)
    before = vitconvert.load_checkpoint(FILES / name).weights.container
    after = vitconvert.load_checkpoint(back.output).weights.container
    names = {key for key in before.manifest if "mask_token" not in key}
    assert after.manifest.keys() == names
    for key in names:
        assert after.read(key).dtype == before.read(key).dtype
        assert torch.equal(after.read(key), before.read(key)), key


def test_a_vit_of_torch_is_written_for_a_class_of_its_own_family(tmp_path):
    vitconvert.convert(FILES / "vit", to="hf", output=tmp_path / "hf", verify=False)
    plan = vitconvert.plan_conversion(tmp_path / "hf", to="hf_flax")
    assert not [note for note in plan.ledger.notes if "another family" in note]


def test_what_flax_has_no_class_for(tmp_path):
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(FILES / "clip", to="hf_flax_clip", output=tmp_path / "out")
    assert "FlaxCLIPVisionModel has no projection" in str(error.value)
    bare = vitconvert.convert(
        FILES / "vit", to="vit", output=tmp_path / "bare", verify=False, num_classes=0
    )
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(bare.output, to="hf_flax_vit", output=tmp_path / "out")
    assert "FlaxViTModel makes up a pooler where a file has none" in str(error.value)


def test_the_text_tower_goes_along(tmp_path):
    """Into the torch class of release 4's names: with dots, and kernels the other way round."""
    done = vitconvert.convert(FILES / "clip", to="hf", output=tmp_path / "hf")
    assert done.opened[-1].relative is None and "no Flax classes" in str(done.opened[-1].to_dict())
    written = load_file(tmp_path / "hf" / "model.safetensors")
    with open_container(FILES / "clip" / "flax_model.msgpack") as file:
        texts = [name for name in file.manifest if name.startswith(("text_", "logit_scale"))]
        for name in texts:
            tensor = file.read(name)
            theirs = re.sub("/(kernel|embedding|scale)$", ".weight", name).replace("/", ".")
            expected = tensor.T if name.endswith("kernel") else tensor
            assert torch.equal(written[theirs].reshape(expected.shape), expected)
    assert len(texts) == 22 and not [name for name in written if "position_ids" in name]
    found, missing = transformers.CLIPModel.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not missing["missing_keys"] and not missing["unexpected_keys"]
    assert found.config.text_config.num_hidden_layers == 1
