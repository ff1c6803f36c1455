"""MiniCPM-V's vision encoder and the merger within it, by transformers' class."""

import pytest
import torch

import vitconvert
from tests.small_models import randomise_calmly, relative
from vitconvert.errors import NotRepresentable
from vitconvert.programs.transformers.modules import places_of
from vitconvert.programs.transformers.running import class_named

SIZES = {"hidden_size": 60, "intermediate_size": 50, "num_hidden_layers": 11}
SIZES |= {"num_attention_heads": 3, "patch_size": 4, "insert_layer_id": 6}


def made(**changes):
    kind = class_named("MiniCPMV4_7VisionModel")
    torch.manual_seed(5)
    return randomise_calmly(kind(kind.config_class(**SIZES | changes))).eval()


@torch.no_grad()
def test_up_to_the_merger_tokens_are_those_of_the_class_with_it(tmp_path):
    model = made(image_size=32)
    model.save_pretrained(tmp_path)
    images = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(7))
    kept = []
    with model.vit_merger.register_forward_pre_hook(lambda _, given: kept.append(given[0])):
        model(**places_of(model).inputs(model, images) | {"use_vit_merger": True})
    ours = vitconvert.load_model(tmp_path, image_size=(32, 48))
    (found,) = ours.forward_intermediates(images, [6], output_fmt="NLC", intermediates_only=True)
    assert relative(found, kept[0].reshape(2, -1, 60)) < 1e-6
    ignored = vitconvert.load_checkpoint(tmp_path).ledger.ignored
    assert "left out" in ignored["vit_merger.self_attn.q_proj.weight"]


def test_a_grid_whose_positions_are_rounded_away_is_refused(tmp_path):
    made(image_size=76).save_pretrained(tmp_path)  # 19 patches a side
    with pytest.raises(NotRepresentable, match="position of another"):
        vitconvert.load_checkpoint(tmp_path)
