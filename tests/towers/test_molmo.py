"""Molmo 2's vision encoder beside a config.json of its authors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers as t
from tests.small_models import randomise_calmly, relative
from tests.towers.families import LANGUAGE
from vitconvert.errors import ConflictingFact, TensorMismatch

HEADS = {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20}
VISION = HEADS | {"intermediate_size": 50, "num_hidden_layers": 11, "patch_size": 8}
VISION |= {"image_size": [24, 40]}
ADAPTER = HEADS | {"intermediate_size": 30, "text_hidden_size": 20}
# Of 13 blocks, as that of allenai/Molmo2-8B has 27, and its files 25: those that are read
OF_ALLEN = HEADS | {"intermediate_size": 50, "num_hidden_layers": 13, "hidden_act": "gelu"}
OF_ALLEN |= {"image_default_input_size": [24, 40], "image_patch_size": 8, "image_num_pos": 15}


@pytest.fixture(scope="module")
def molmo(tmp_path_factory):
    """transformers' class for a config.json of Allen's, and its directory."""
    folder = tmp_path_factory.mktemp("molmo")
    said = {"model_type": "molmo2", "vit_config": OF_ALLEN | {"model_type": "molmo2"}}
    said |= {"adapter_config": ADAPTER | {"vit_layers": [-3, -9]}}
    config = t.Molmo2Config(
        vit_config=dict(OF_ALLEN),
        adapter_config=dict(said["adapter_config"]),
        text_config=LANGUAGE | {"head_dim": 10},
    )
    torch.manual_seed(5)
    model = randomise_calmly(t.Molmo2ForConditionalGeneration(config)).eval()
    assert model.config.vision_config.num_hidden_layers == 11
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(said))
    return model, folder


@torch.no_grad()
def test_blocks_that_only_the_config_counts_are_not_missed(molmo):
    model, folder = molmo
    found = vitconvert.load_checkpoint(folder)
    assert (found.dialect, found.config.depth) == ("hf_molmo2_disk", 11)
    assert (found.config.image_size, found.config.activation) == ((24, 40), "gelu")
    assert any("some blocks of this ViT" in note for note in found.ledger.notes)
    images = torch.rand(2, 3, 24, 40, generator=torch.Generator().manual_seed(7))
    patches = images.unfold(2, 8, 8).unfold(3, 8, 8)  # (B, channels, rows, columns, y, x)
    patches = patches.permute(0, 2, 3, 4, 5, 1).reshape(2, 15, -1)
    wanted = model.model.vision_tower(patches).last_hidden_state
    assert relative(vitconvert.load_model(folder)(images), wanted) < 1e-6
    assert vitconvert.verify(folder).verdict == "equal"


def test_heads_that_share_keys_are_not_taken_for_others(molmo, tmp_path):
    tensors = load_file(molmo[1] / "model.safetensors")
    for name in [n for n in tensors if ".resblocks." in n and (".wk." in n or ".wv." in n)]:
        tensors[name] = tensors[name][:20].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    said = json.loads((molmo[1] / "config.json").read_text())
    said["vit_config"]["num_key_value_heads"] = 1
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises((ConflictingFact, TensorMismatch)):
        vitconvert.load_checkpoint(tmp_path)
