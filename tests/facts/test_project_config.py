"""What a project's own config.json says: in our words, or refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.facts.header import examine, hf, message, timm
from vitconvert.api import load_checkpoint
from vitconvert.errors import (
    ConflictingFact,
    NotRepresentable,
    UnknownDialect,
    VitConvertError,
)
from vitconvert.facts.project_config import facts_from_config, unknown_arguments
from vitconvert.tables.dialects import builtin_tables

HEADS = {"num_heads": 3}


def test_a_word_of_the_config_that_has_no_match():
    theirs = {"model_type": "vit", "hidden_act": "gelu_10"}
    config, _ = examine(hf(), HEADS, theirs | {"hidden_act": "gelu_new"})
    assert config.activation == "gelu_tanh"
    assert message(NotRepresentable, hf(), HEADS, theirs) == (
        "error: not-representable\n"
        "  config.json says hidden_act = 'gelu_10', which vitconvert has no word for.\n"
        "  table    weights_map/hf_vit.toml\n"
        "  problem  activation is one of gelu, gelu_tanh, quick_gelu, relu, silu, tanh\n"
        "  hint: --set activation=... states it in vitconvert's words."
    )


def test_a_value_of_the_config_of_another_kind():
    with pytest.raises(NotRepresentable) as error:
        facts_from_config(builtin_tables()["hf_vit"], {"num_attention_heads": "many"})
    assert str(error.value) == (
        "error: not-representable\n"
        "  config.json says num_attention_heads = 'many', which vitconvert has no word for.\n"
        "  table    weights_map/hf_vit.toml\n"
        "  problem  num_heads must be a whole number, not 'many'.\n"
        "  hint: --set num_heads=... states it in vitconvert's words."
    )


@pytest.mark.parametrize(("pixels", "patches"), [(112, 8), (100, 6)])
@pytest.mark.parametrize("whole", [False, True])
def test_a_side_in_pixels_is_of_whole_squares_of_patches(pixels, patches, whole):
    table = builtin_tables()["hf_qwen2_5_vl"]
    section = {"window_size": pixels, "patch_size": 14, "spatial_merge_size": 2}
    found = facts_from_config(table, {"vision_config": section} if whole else section)
    assert found["window_size"].value == patches and found["window_size"].origin == "config.json"
    del section["patch_size"]
    with pytest.raises(NotRepresentable) as error:
        facts_from_config(table, section)
    assert f"pixels of window_size = '{pixels} pixels', which vitconvert" in str(error.value)


def test_arguments_that_the_table_does_not_know():
    table = builtin_tables()["timm"]
    theirs = {"model_args": {"img_size": 24, "rope": True, "drop_rate": 0.1, "abs": [1]}}
    assert unknown_arguments(table, theirs) == ["abs", "rope"]
    assert unknown_arguments(table, {"model_args": [["rope"]]}) == []
    assert unknown_arguments(table, {}) == []


@pytest.fixture
def folder(tmp_path):
    """A folder as projects publish it: weights and a config.json."""

    def folder(shapes, **config):
        save_file({n: torch.randn(s) for n, s in shapes.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return folder


@pytest.mark.parametrize(
    ("shapes", "config", "kind"),
    [
        (timm(), {"architecture": "vitamin_base_224"}, NotRepresentable),
        (timm(), {"architecture": "vit_relpos_base_patch16_224"}, ConflictingFact),
        (timm(), {"architecture": "vit_pe_core_base_patch16_224"}, ConflictingFact),
        (timm(), {"architecture": "vit_base_patch16_rope_224"}, ConflictingFact),
        (
            timm(),
            {"architecture": "vit_base_patch16_224", "model_args": {"use_rope": True}},
            NotRepresentable,
        ),
        (timm(), {"architecture": "vit_base_patch16_224"}, ConflictingFact),
        (hf(), {"model_type": "audio-spectrogram-transformer"}, UnknownDialect),
        (hf(), {"model_type": "vit_of_others"}, UnknownDialect),
        (hf(), {"model_type": "vit", "num_attention_heads": 7}, ConflictingFact),
    ],
)
def test_tensors_of_a_plain_vit_under_another_models_config_are_refused(
    folder, shapes, config, kind
):
    with pytest.raises(VitConvertError) as error:
        load_checkpoint(folder(shapes, **config), overrides={"norm_eps": 1e-6})
    assert type(error.value) is kind


def test_a_config_that_fits_is_read(folder):
    theirs = {"model_type": "vit", "num_attention_heads": 5, "layer_norm_eps": 1e-4}
    config = load_checkpoint(folder(hf(), **theirs)).config
    assert (config.num_heads, config.norm_eps) == (5, 1e-4)
    assert config.origins["num_heads"] == "config.json"
