"""Image towers of BLIP and InternVL, written for their own classes, with every byte."""

import json

import pytest
from safetensors.torch import load_file

import vitconvert
from tests.packages import transformers
from tests.small_models import assert_same_tensors, randomise_calmly
from tests.towers.families import VISION

RMS = {"norm_type": "rms_norm", "use_qk_norm": True}
INTERN = {"image_size": (24, 24), "patch_size": (8, 8), "num_hidden_layers": 11}


@pytest.mark.parametrize(
    ("kind", "changes", "between", "to", "comes_back_as"),
    [
        ("Blip", {"num_hidden_layers": 11}, "timm", "hf", "Blip"),
        ("Blip2", {"qkv_bias": False}, "timm", "hf_blip_2", "Blip2"),
        ("InstructBlip", {}, "timm", "hf", "Blip"),  # one function, of which BLIP's class is first
        ("InternVL", INTERN | {"attention_bias": True}, "timm", "hf", "InternVL"),
        ("InternVL", INTERN | {"use_mean_pooling": False}, "timm", "hf", "InternVL"),
        ("InternVL", INTERN | RMS, "vit", "hf", "InternVL"),
    ],
    ids=str,
)
def test_towers_of_larger_models_come_back(kind, changes, between, to, comes_back_as, tmp_path):
    config = getattr(transformers, f"{kind}VisionConfig")(**VISION | changes)
    model = randomise_calmly(getattr(transformers, f"{kind}VisionModel")(config))
    model.save_pretrained(tmp_path / "first")
    vitconvert.convert(tmp_path / "first", to=between, output=tmp_path / between, verify=False)
    done = vitconvert.convert(tmp_path / between, to=to, output=tmp_path / "second")
    assert [o.consumer for o in done.opened] == ["transformers"]
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("first", "second"))
    assert_same_tensors(second, first)
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert written["architectures"] == [f"{comes_back_as}VisionModel"]
