"""A draft says which optional parts its class has: no model that lacks one is written for it."""

import tomllib

import pytest
import torch

import vitconvert
from tests.drafting.drafting import reference
from tests.sampling import sampled
from tests.small_models import tiny_config
from vitconvert.errors import NotRepresentable
from vitconvert.tables.canonical import expected_shapes

GRID = {"class_token": False, "pooling": "avg"}
MAP = {"pooling": "map", "fc_norm": False}
# What a class has -> a model that lacks it.
PARTS = {
    "representation": ({"representation_size": 8}, {}),
    "registers": ({"num_registers": 3}, {}),
    "registers_beside_positions": ({"num_registers": 3, "register_positions": False}, {}),
    "position_of_the_class_token": ({}, {"no_embed_class": True}),
    "positions_of_patches_alone": ({"no_embed_class": True}, {}),
    "distillation": ({"dist_token": True}, {}),
    "distillation_head": ({"dist_token": True, "dist_head": True}, {"dist_token": True}),
    "class_token": ({"pooling": "avg"}, {"pooling": "avg", "class_token": False}),
    "positions": ({}, {"position_embedding": "none"}),
    "one_position": (
        {"position_embedding": "one"},
        {"position_embedding": "none"},
    ),
    "positions_of_axes": (
        {"position_embedding": "axes", "position_grid": (3, 3)},
        {"position_embedding": "none"},
    ),
    "mixed_rope": ({"rope": "mixed"}, {}),
    "relative_positions": ({"relative_positions": "block"}, {}),
    "shared_relative_positions": ({"relative_positions": "shared"}, {}),
    "decomposed_positions": (GRID | {"relative_positions": "decomposed"}, GRID),
    "qk_norm": ({"qk_norm": True}, {}),
    "whole_qk_norm": ({"whole_qk_norm": True}, {}),
    "attention_norm": ({"attention_norm": True}, {}),
    "mlp_norm": ({"mlp_norm": True}, {}),
    "layer_scale": ({"layer_scale": True}, {}),
    "layer_scale_of_mlp": ({"layer_scale": True}, {"layer_scale": True, "mlp_layer_scale": False}),
    "gated_mlp": ({"gated_mlp": True}, {}),
    "pre_norm": ({"pre_norm": True}, {}),
    "patch_norm": ({"patch_norm": True}, {}),
    "fc_norm": ({"fc_norm": True}, {}),
    "final_norm": ({}, {"final_norm": False}),
    "map_pooling": (MAP, {}),
    "mlp_of_map_pooling": (MAP, MAP | {"pool_mlp": False}),
    "sandwich": ({"block_order": "sandwich"}, {}),
    "biases": ({}, {"qkv_bias": False, "proj_bias": False, "mlp_bias": False}),
    "head": ({}, {"num_classes": 0}),
}


def _saved(folder, fields):
    config = tiny_config(image_size=(12, 12), **fields)
    generator = torch.Generator().manual_seed(0)
    shapes = expected_shapes(config).items()
    folder.mkdir()
    return reference(folder, config, {k: torch.randn(s, generator=generator) for k, s in shapes})


@pytest.mark.parametrize("part", sampled(PARTS, 11))
def test_a_model_without_a_part_of_the_class_is_not_written(part, tmp_path):
    has, lacks = PARTS[part]
    theirs, other = _saved(tmp_path / "has", has), _saved(tmp_path / "lacks", lacks)
    table = tmp_path / "team.toml"
    draft = vitconvert.draft_table(
        tmp_path / "has" / "reference.safetensors", like=theirs, output=table
    )
    only = tomllib.loads(table.read_text())["only"]
    assert not draft.unfilled
    if "representation_size" in has:
        assert only["representation_size > 0"] == "the code has pre_logits.fc"
        assert only["representation_activation"] == "tanh"
    assert len(vitconvert.plan_conversion(theirs, to="team", table=table).tensors)
    with pytest.raises(NotRepresentable, match="has no such models"):
        vitconvert.plan_conversion(other, to="team", table=table)
    # And the other way round.
    vitconvert.draft_table(
        tmp_path / "lacks" / "reference.safetensors", like=other, output=tmp_path / "less.toml"
    )
    with pytest.raises(NotRepresentable):
        vitconvert.plan_conversion(theirs, to="less", table=tmp_path / "less.toml")
