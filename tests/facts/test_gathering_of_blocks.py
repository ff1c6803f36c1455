"""Blocks of other kinds: heads that share keys, attention beside the MLP, differences."""

import pytest

from tests.facts.header import examine, shapes_of
from tests.packages import timm
from vitconvert.errors import ConflictingFact, MissingFact, TensorMismatch

SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 4, "num_classes": 7}
SAPIENS = {"rope": "dinov3", "rope_half": True, "image_size": (64, 48)}


def small(name, **arguments):
    return shapes_of(timm.create_model, name, **SMALL | arguments)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_heads_that_share_keys_are_counted_block_by_block(qk_norm):
    shapes = small("vit_base_patch16_sapiens2", num_kv_heads=(1, 4), qk_norm=qk_norm)
    config, ledger = examine(shapes, SAPIENS | {"num_heads": 4})
    assert (config.num_heads, config.head_dim, config.kv_heads) == (4, 12, (1, 4))
    assert config.layer_scale and not config.mlp_layer_scale
    assert config.origins["kv_heads"] == "tensors"
    assert ledger.dialect == "timm_eva_shared_kv"


def test_a_rotation_that_nothing_tells_is_asked_for():
    shapes = small("vit_base_patch16_sapiens2", num_kv_heads=(2, 4))
    with pytest.raises(MissingFact) as error:
        examine(shapes, {"image_size": (64, 48)})
    assert error.value.details == (
        "rope  Eva rotates q and k by their position in several ways; --architecture NAME says in "
        "which",
    )


def test_a_block_without_keys_and_values_is_named():
    shapes = small("vit_base_patch16_sapiens2", num_kv_heads=(2, 4))
    left = {
        k: s
        for k, s in shapes.items()
        if not k.startswith(("blocks.1.attn.k_proj", "blocks.1.attn.v_proj"))
    }
    with pytest.raises(TensorMismatch) as error:
        examine(left, SAPIENS)
    assert {line.split()[1] for line in error.value.details} == {
        f"blocks.1.attn.{part}.{kind}" for part in "kv" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("qk_norm", [True, False])
def test_one_matrix_for_attention_and_mlp(qk_norm):
    shapes = small("vit_base_patch16_xp_224", qk_norm=qk_norm, mlp_ratio=1.5)
    config, ledger = examine(shapes, {"num_heads": 4})
    assert (config.block_order, config.mlp_dim, config.num_heads) == ("parallel", 72, 4)
    assert (config.qkv_bias, config.mlp_bias, config.proj_bias) == (False, True, True)
    assert ledger.dialect == "timm_parallel"


def test_one_matrix_at_both_ends_tells_heads_and_width_of_the_mlp():
    shapes = small("vit_dpwee_patch16_reg1_gap_256", mlp_ratio=1.5)
    config, _ = examine(shapes, {"pooling": "avg"})
    assert (config.block_order, config.differential) == ("parallel", True)
    assert (config.mlp_dim, config.num_heads, config.head_dim) == (72, 4, 12)


def test_differential_attention_tells_its_heads():
    config, ledger = examine(small("vit_dwee_patch16_reg1_gap_256"), {"pooling": "avg"})
    assert (config.differential, config.num_heads, config.head_dim) == (True, 4, 12)
    assert (config.block_order, ledger.dialect) == ("pre", "timm")


@pytest.mark.parametrize(
    ("name", "arguments", "stated"),
    [
        ("vit_base_patch16_sapiens2", {"num_kv_heads": (1, 4)}, SAPIENS | {"num_heads": 4}),
        ("vit_dpwee_patch16_reg1_gap_256", {}, {}),
    ],
)
def test_error_heads_without_width(name, arguments, stated):
    shapes = small(name, **arguments)
    for key in shapes:
        if key.endswith(("q_norm.weight", "k_norm.weight", "sub_norm.weight")):
            shapes[key] = (0,)
    with pytest.raises(ConflictingFact, match="head_dim = 0 must be at least 1"):
        examine(shapes, stated)
