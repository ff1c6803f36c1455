"""No field of a configuration changes the function in silence, and what is written says them all.

Every field that decides the function, or seems to, is set to another value than the class's own.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import vitconvert
from tests.huggingface.classes import CLASSES, LABELS, MLP, SIZES, Case, outputs
from tests.packages import transformers
from tests.sampling import sampled
from tests.small_models import randomise_calmly, relative
from vitconvert.api import verify
from vitconvert.config.vocabularies import ACTIVATIONS
from vitconvert.errors import NotRepresentable

ROUNDING = 1e-5  # a convolution against a linear layer, or another kernel of attention


def kin(name: str, **more: Any) -> Case:
    return Case(name=name, dialect="", arguments={**SIZES, **MLP, **more})


POOLER = {"pooler_output_size": 20, "pooler_act": "gelu_new"}
CASES = CLASSES | {
    "ViT": kin("ViTModel", **POOLER),
    "ViT, classes": kin("ViTForImageClassification", **LABELS),
    "DeiT": kin("DeiTModel", **POOLER),
    "DeiT, classes": kin("DeiTForImageClassification", **LABELS),
    "DeiT, teacher": kin("DeiTForImageClassificationWithTeacher", **LABELS),
    "MSN": kin("ViTMSNModel"),
    "MSN, classes": kin("ViTMSNForImageClassification", **LABELS),
    "I-JEPA": kin("IJepaModel"),
    "I-JEPA, classes": kin("IJepaForImageClassification", **LABELS),
}
OTHER = {
    "hidden_act": "gelu_accurate",
    "layer_norm_eps": 0.03,
    "rms_norm_eps": 0.03,
    "num_attention_heads": 9,
    "num_channels": 4,
    "patch_size": 4,
    "image_size": 20,
    "num_patches": 25,
    "num_hidden_layers": 2,
    "num_register_tokens": 1,
    "rope_theta": 30.0,
    "hidden_dropout_prob": 0.4,
    "attention_probs_dropout_prob": 0.4,
    "attention_dropout": 0.4,
    "drop_path_rate": 0.4,
    "initializer_range": 0.5,
    "encoder_stride": 4,
    "layerscale_value": 0.3,
    "pos_embed_shift": 0.5,
    "pos_embed_jitter": 1.5,
    "pos_embed_rescale": 3.0,
    "apply_layernorm": False,
    "reshape_hidden_states": False,
    "problem_type": "regression",
}


def perturbed(case: Case) -> Case:
    vision = case.config if not case.towers else case.config.replace("Config", "VisionConfig")
    known = getattr(transformers, vision)().to_dict()
    changes = {name: value for name, value in OTHER.items() if name in known}
    return replace(case, arguments={**case.arguments, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(CASES, 3))
@torch.no_grad()
def test_a_perturbed_class_computes_the_same_and_is_written_so(name, tmp_path):
    theirs = perturbed(CASES[name]).model()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitconvert.load_model(tmp_path / "theirs")
    assert (ours.config.in_channels, ours.config.norm_eps) == (4, 0.03)
    images = torch.randn(2, 4, *ours.config.image_size)
    final, tokens = outputs(theirs, images)
    assert relative(ours.forward_features(images), tokens) <= ROUNDING
    if final is not None:
        assert relative(ours(images), final) <= ROUNDING

    vitconvert.convert(tmp_path / "theirs", to="hf", output=tmp_path / "again", verify=False)
    again = vitconvert.load_checkpoint(tmp_path / "again")
    assert again.config.function() == ours.config.function()
    kind = json.loads((tmp_path / "again" / "config.json").read_text())["architectures"][0]
    opened = getattr(transformers, kind).from_pretrained(tmp_path / "again", dtype="float32")
    for first, second in zip(outputs(opened.eval(), images), (final, tokens), strict=True):
        assert first is None or second is None or relative(first, second) <= ROUNDING


THEIR_ACTIVATIONS = (
    *("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh"),
    *("gelu_python_tanh", "gelu_accurate", "hardswish", "laplace", "leaky_relu", "linear", "mish"),
    *("quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh"),
    *("prelu", "xielu"),
)


def test_every_activation_of_transformers_is_listed():
    assert set(THEIR_ACTIVATIONS) == set(transformers.activations.ACT2FN)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *(("hidden_act", name) for name in THEIR_ACTIVATIONS),
        *(("pooler_act", name) for name in ("gelu", "gelu_10", "linear", "relu2", "tanh", "xielu")),
    ],
)
@torch.no_grad()
def test_every_activation_is_the_same_or_refused_by_name(name, field, tmp_path):
    config = transformers.ViTConfig(**SIZES | MLP | POOLER | {field: name})
    theirs = randomise_calmly(transformers.ViTModel(config))
    theirs.save_pretrained(tmp_path)
    try:
        ours = vitconvert.load_model(tmp_path)
    except NotRepresentable as error:
        assert f"config.json says {field} = {name!r}" in error.fact
        x = torch.linspace(-20, 20, 99)
        for word in ACTIVATIONS:  # none of ours is it
            same = transformers.activations.ACT2FN[{"gelu_tanh": "gelu_new"}.get(word, word)]
            assert not torch.allclose(transformers.activations.ACT2FN[name](x), same(x), atol=1e-6)
        return
    images = torch.randn(2, 3, 24, 24)
    assert relative(ours(images), theirs(images).pooler_output) <= ROUNDING


def test_a_pooler_that_takes_a_patch_for_a_class_token(tmp_path):
    config = transformers.IJepaConfig(**SIZES | MLP)
    randomise_calmly(transformers.IJepaModel(config, add_pooling_layer=True)).save_pretrained(
        tmp_path
    )
    with pytest.raises(NotRepresentable) as error:
        vitconvert.load_model(tmp_path)
    assert "not class_token: IJepaModel's pooler takes the first patch for a" in str(error.value)


HEADLESS = {
    "DINOv2, SwiGLU": "hf_dinov2_swiglu",
    "DINOv2, registers, classes": "hf_dinov2_reg",
    "DINOv2, registers, SwiGLU": "hf_dinov2_reg_swiglu",
    "CLIP, classes": "hf_clip",
    "DeiT, teacher": "hf_vit",
}


@pytest.mark.parametrize("name", HEADLESS)
def test_a_classifier_without_classes_that_pools_as_no_encoder_does(name, tmp_path):
    case = CASES[name]
    replace(case, arguments={**case.arguments, "num_labels": 0}).model().save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.load_model(tmp_path)
    assert str(error.value) == (
        "error: not-representable\n"
        f"  config.json says architectures = ['{case.name}'].\n"
        f"  file   {tmp_path}/config.json\n"
        f"  table  weights_map/{HEADLESS[name]}.toml\n"
        "  Of a model without the tensors that the file lacks, this class makes another function "
        "than the table says.\n"
        "  hint: without that line, the file is read as the encoder that it holds."
    )
    assert str(vitconvert.inspect(tmp_path).problem) == str(error.value)
    say(tmp_path, {"architectures": None})
    assert vitconvert.load_model(tmp_path).config.num_classes == 0


STRAY = {"hidden_act": "relu", "layer_norm_eps": 0.5, "num_attention_heads": 9, "image_size": 32}


@pytest.mark.parametrize("name", [name for name, case in CLASSES.items() if case.towers])
def test_what_a_configuration_of_two_towers_says_at_its_top_is_not_the_images(name, save):
    folder, _ = save(CLASSES[name])
    before = vitconvert.load_checkpoint(folder).config
    say(folder, STRAY)
    assert vitconvert.load_checkpoint(folder).config == before


@torch.no_grad()
def test_clips_older_section_of_the_image_tower_counts_alone(save):
    """transformers 5.23, configuration_clip.py: what it leaves out is the class's own."""
    case = CLASSES["CLIP, both towers"]
    folder, _ = save(case)
    section = {**case.arguments, "hidden_act": "relu"}
    del section["layer_norm_eps"], section["projection_dim"]
    say(folder, {"vision_config_dict": section})
    theirs = transformers.CLIPModel.from_pretrained(folder, dtype="float32").eval()
    ours = vitconvert.load_model(folder)
    assert (ours.config.activation, ours.config.norm_eps) == ("relu", 1e-5)
    images = torch.randn(2, 3, 24, 24)
    assert relative(ours(images), outputs(theirs, images)[0]) <= ROUNDING
    report = verify(folder)
    assert report.ok, report.summary()


def say(folder, values: Mapping[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
