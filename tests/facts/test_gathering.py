"""Where each field comes from, and the whole message where none or two places tell it."""

import pytest

from tests import packages
from tests.facts.header import (
    CONTRADICTED,
    examine,
    hf,
    lucidrains,
    message,
    missing,
    shapes_of,
    simple,
    timm,
)
from tests.tables.specimens import SPECIMENS
from vitconvert.config import ViTConfig
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    TensorMismatch,
)
from vitconvert.tables.architectures import architecture_in, find_architecture

HEADS = {"num_heads": 3}


def test_norms_without_biases_are_of_two_kinds():
    """torchvision's `norm_layer`, say, may be torch's RMSNorm or a LayerNorm with bias=False."""
    shapes = {n: s for n, s in hf().items() if not (n.endswith("bias") and "norm" in n)}
    line = "norm  norms without a bias are LayerNorms (layer) or RMS norms (rms)"
    said = {**HEADS, "norm_eps": 1e-6}
    assert message(MissingFact, shapes, said) == missing("hf_vit", line, "--set norm=...")
    for norm in ("layer", "rms"):
        assert examine(shapes, {**said, "norm": norm})[0].norm == norm


def test_every_origin():
    config, ledger = examine(
        hf(), {"num_heads": 3}, {"model_type": "vit", "hidden_act": "gelu_new"}
    )
    assert config.origins["num_heads"] == "user"
    assert config.origins["embed_dim"] == "tensors"
    assert (config.activation, config.origins["activation"]) == ("gelu_tanh", "config.json")
    assert config.norm_eps == 1e-12
    silent = "weights_map/hf_vit.toml, for a config.json that does not say"
    assert config.origins["norm_eps"] == silent
    assert config.origins["pooling"] == "weights_map/hf_vit.toml"
    assert config.origins["image_size"] == "assumed: 9 patches form a square grid"
    assert ledger.assumed["image_size"] == "24x24 (assumed: 9 patches form a square grid)"
    assert ledger.assumed["norm_eps"] == f"1e-12 ({silent})"
    assert "embed_dim" not in ledger.assumed and "num_heads" not in ledger.assumed
    assert set(config.origins) <= set(ViTConfig.__dataclass_fields__)


def test_the_user_comes_before_the_config_and_that_before_the_architecture():
    theirs = {"model_type": "vit", "layer_norm_eps": 1e-5, "num_attention_heads": 3}
    named = {"norm_eps": 1e-3, "pooling": "avg"}
    config, _ = examine(hf(), {"num_heads": 5}, theirs, named)
    assert (config.num_heads, config.head_dim) == (5, 6)
    assert (config.norm_eps, config.pooling) == (1e-5, "avg")
    assert config.origins["pooling"] == "architecture some_vit"


def test_nobody_tells_the_head_count():
    assert message(MissingFact, timm()) == missing(
        "timm",
        "num_heads  q has 30 rows, and the number of heads is unknown",
        "--set num_heads=...",
    )


def test_a_released_width_is_hinted_at_and_never_taken():
    shapes = {
        name: tuple({30: 192, 90: 576}.get(size, size) for size in shape)
        for name, shape in timm().items()
    }
    assert message(MissingFact, shapes) == missing(
        "timm",
        "num_heads  q has 192 rows, and the number of heads is unknown; released ViTs of "
        "width 192 have 3",
        "--set num_heads=...",
    )


def test_everything_that_is_missing_is_asked_for_at_once():
    assert message(MissingFact, simple()) == missing(
        "lucidrains_simple",
        "num_heads   q has 33 rows, and the number of heads is unknown\n"
        "  image_size  positions are not stored, so the grid is unknown",
        "--set num_heads=... --set image_size=...",
    )


@pytest.mark.parametrize("heads", [4, 0, -3])
def test_heads_that_do_not_divide(heads):
    assert message(ConflictingFact, timm(), {"num_heads": heads}) == CONTRADICTED.format(
        f"num_heads = {heads} (user) does not divide 30, the width of q"
    )


def test_a_head_width_tells_the_heads_and_both_must_agree():
    config, _ = examine(timm(), {"head_dim": 5})
    assert config.num_heads == 6
    assert message(ConflictingFact, timm(), {"num_heads": 3, "head_dim": 5}) == CONTRADICTED.format(
        "head_dim = 5 (user), but the tensors have 10"
    )


def test_a_user_cannot_contradict_the_tensors():
    user = {"depth": 3, "embed_dim": 32, "num_classes": 5, "qkv_bias": False, **HEADS}
    assert message(ConflictingFact, timm(), user) == CONTRADICTED.format(
        "qkv_bias = False (user), but the tensors have True\n"
        "  depth = 3 (user), but the tensors have 2\n"
        "  embed_dim = 32 (user), but the tensors have 30\n"
        "  num_classes = 5 (user), but the tensors have 7"
    )


def test_a_config_of_another_model_is_refused():
    theirs = {"model_type": "vit", "num_hidden_layers": 12, "hidden_size": 30}
    assert message(ConflictingFact, hf(), HEADS, theirs) == CONTRADICTED.format(
        "depth = 12 (config.json), but the tensors have 2"
    )


def test_what_fine_tuning_changes_is_noted_and_the_tensors_win():
    named = {"num_classes": 1000, "image_size": (224, 224), "in_channels": 1}
    config, ledger = examine(timm(), HEADS, None, named)
    assert (config.num_classes, config.image_size, config.in_channels) == (7, (24, 24), 3)
    assert ledger.notes == (
        "num_classes = 1000 (architecture some_vit), but the tensors have 7",
        "in_channels = 1 (architecture some_vit), but the tensors have 3",
        "image_size = 224x224 (architecture some_vit) makes 784 patches, but the tensors have "
        "10 positions",
    )


@pytest.mark.parametrize(
    ("area", "channels", "patch"), [(192, 3, (8, 8)), (64, 1, (8, 8)), (147, 3, (7, 7))]
)
def test_flattened_patches_are_assumed_square_aloud(area, channels, patch):
    config, ledger = examine(lucidrains(area), HEADS)
    assert (config.in_channels, config.patch_size) == (channels, patch)
    assumed = f"assumed: a patch of {area} values is square"
    assert config.origins["patch_size"] == config.origins["in_channels"] == assumed
    assert ledger.assumed["patch_size"] == f"{patch[0]}x{patch[1]} ({assumed})"


def test_flattened_patches_of_other_shapes_are_asked_for():
    assert message(MissingFact, lucidrains(120), HEADS) == missing(
        "lucidrains",
        "patch_size   a patch of 120 values is not a square of pixels\n  in_channels  not stated",
        "--set patch_size=... --set in_channels=...",
    )
    assert message(MissingFact, lucidrains(120), HEADS | {"in_channels": 3}) == missing(
        "lucidrains",
        "patch_size  a patch of 120 values is not a square of pixels",
        "--set patch_size=...",
    )
    config, _ = examine(lucidrains(120), HEADS | {"patch_size": (5, 6)} | {"image_size": (15, 18)})
    assert (config.in_channels, config.origins["in_channels"]) == (4, "tensors")
    config, _ = examine(lucidrains(256), HEADS | {"in_channels": 4})
    assert config.patch_size == (8, 8)


def test_a_patch_and_channels_that_do_not_make_it_up():
    user = HEADS | {"patch_size": (8, 8), "in_channels": 4}
    assert message(ConflictingFact, lucidrains(192), user) == CONTRADICTED.format(
        "patch_size and in_channels: 8x8 and 4 do not make up the 192 values of a patch"
    )


def test_a_file_name_may_begin_with_an_architecture():
    assert architecture_in("timm", "vit_base_patch16_224-finetuned") == "vit_base_patch16_224"
    assert architecture_in("timm", "vit_base_patch16_224_miil.bin") == "vit_base_patch16_224_miil"
    assert architecture_in("timm", "vit_base_patch16_2245") is None


def test_error_attention_scale_that_changed_between_releases():
    specimen = SPECIMENS["lucidrains_0_3"]
    shapes = {name: tuple(tensor.shape) for name, tensor in specimen.tensors().items()}
    stated = {field: value for field, value in specimen.stated.items() if "scale" not in field}
    assert message(MissingFact, shapes, stated) == missing(
        "lucidrains_0_3",
        "attention_scale  until 0.6.6 it is embed_dim ** -0.5, from 0.6.7 on head_dim ** -0.5",
        "--set attention_scale=...",
    )


def without_norm(shapes):
    return {name: shape for name, shape in shapes.items() if not name.startswith("norm.")}


@pytest.mark.parametrize(("dialect", "shapes"), [("timm", timm()), ("hf_vit", hf())])
def test_no_last_norm_is_asked_about(dialect, shapes):
    cut = {n: s for n, s in shapes.items() if not n.startswith(("norm.", "vit.layernorm."))}
    assert message(MissingFact, cut, HEADS | {"norm_eps": 1e-6}) == missing(
        dialect,
        "final_norm  there is no last norm, and no file states that there is none",
        "--set final_norm=...",
    )


def test_a_model_without_a_last_norm_if_somebody_says_so():
    cut = without_norm(timm())
    for user, named in (({"final_norm": False}, {}), ({}, {"final_norm": False})):
        config, _ = examine(cut, HEADS | user, None, named)
        assert not config.final_norm and not config.fc_norm
    assert message(ConflictingFact, cut, HEADS | {"final_norm": True}) == CONTRADICTED.format(
        "final_norm = True (user), but the tensors have False"
    )


def test_an_architecture_that_has_a_last_norm_does_not_say_that_there_is_none():
    named = {"final_norm": False, "fc_norm": True}
    assert "there is no last norm" in message(MissingFact, without_norm(timm()), HEADS, named=named)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("vit_pe_core_tiny_patch16_384", "timm"),
        ("vit_small_patch16_rope_ape_224", "timm_eva_rope"),
        ("vit_small_patch16_dinov3", "timm_eva"),
        ("eva02_base_patch14_224", "timm_eva_split"),
    ],
)
def test_a_file_that_looks_rotated_and_has_no_name_is_asked_about(name, dialect):
    shapes = shapes_of(packages.timm.create_model, name)
    row = find_architecture("timm", name)
    stated = {"num_heads": row["num_heads"], "image_size": row["image_size"]}
    assert message(MissingFact, shapes, stated, dialect="timm") == missing(
        dialect,
        f"rope  {name} has the same tensors and rotates q and k by their position; "
        "--architecture NAME says which model this is, --set rope=none that it is not",
        "--set rope=...",
    )
    config, _ = examine(shapes, None, None, row, dialect="timm")
    assert (config.rope, config.origins["rope"]) == (row["rope"], "architecture some_vit")
    if "pos_embed" not in shapes:  # without rotation, nothing says that there are no positions
        stated |= {"position_embedding": "none"}
    config, _ = examine(shapes, stated | {"rope": "none"}, dialect="timm")
    assert (config.rope, config.origins["rope"]) == ("none", "user")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dialect"),
    [("eva02_enormous_patch14_clip_224", "timm_eva"), ("vit_base_patch16_rpn_224", "timm")],
)
def test_a_file_that_looks_normed_after_its_branches_is_asked_about(name, dialect):
    shapes = shapes_of(packages.timm.create_model, name)
    row = find_architecture("timm", name)
    stated = {"num_heads": row["num_heads"]}
    assert message(MissingFact, shapes, stated, dialect="timm") == missing(
        dialect,
        f"block_order  {name} has the same tensors and normalises the output of a branch, not "
        "its input; --architecture NAME says which model this is, --set block_order=pre that "
        "it is not",
        "--set block_order=...",
    )
    config, _ = examine(shapes, None, None, row, dialect="timm")
    assert config.block_order == "res_post_norm"


def test_an_image_tower_that_looks_rotated_and_has_no_name_is_asked_about():
    tensors = shapes_of(packages.timm.create_model, "vit_pe_core_tiny_patch16_384")
    shapes = {f"visual.trunk.{name}": shape for name, shape in tensors.items()}
    assert message(MissingFact, shapes, {"num_heads": 3}, dialect="openclip") == missing(
        "openclip_timm",
        "rope  vit_pe_core_tiny_patch16_384 has the same tensors and rotates q and k by their "
        "position; --architecture NAME says which model this is, --set rope=none that it is not",
        "--set rope=...",
    )


def test_deit_iii_and_the_rotated_model_of_its_names_are_told_apart_by_the_user():
    shapes = shapes_of(packages.timm.create_model, "vit_small_patch16_rope_ape_224")
    with pytest.raises(AmbiguousDialect) as error:
        examine(shapes, {"num_heads": 6})
    assert error.value.evidence == {
        "deit3": "Meta DeiT III",
        "timm_eva_rope": "timm Eva, attention with one bias",
    }
    beside = {"architecture": "vit_small_patch16_rope_ape_224"}
    row = find_architecture("timm", beside["architecture"])
    config, ledger = examine(shapes, None, beside, row)
    assert (ledger.dialect, config.rope) == ("timm_eva_rope", "axial")
    config, _ = examine(shapes, {"num_heads": 6}, dialect="deit3")
    assert (config.layer_scale, config.no_embed_class, config.rope) == (True, True, "none")


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "deit3_small_patch16_224"])
def test_a_plain_vit_is_not_asked_about_a_rotation(name):
    shapes = shapes_of(packages.timm.create_model, name)
    config, _ = examine(shapes, {"num_heads": find_architecture("timm", name)["num_heads"]})
    assert config.rope == "none"


def test_branches_are_counted_and_each_is_needed():
    shapes = shapes_of(
        packages.timm.create_model,
        "vit_small_patch16_18x2_224",
        depth=11,
        embed_dim=36,
        num_heads=3,
    )
    config, _ = examine(shapes, HEADS)
    assert (config.branches, config.depth) == (2, 11)
    assert message(ConflictingFact, shapes, HEADS | {"branches": 3}) == CONTRADICTED.format(
        "branches = 3 (user), but the tensors have 2"
    )
    del shapes["blocks.10.attns.1.attn.qkv.weight"]
    with pytest.raises(TensorMismatch) as error:
        examine(shapes, HEADS)
    assert error.value.details == (
        "missing    blocks.10.attns.1.attn.qkv.weight  weights_map/timm.toml: "
        '"blocks.{i}.attns.{j}.attn.qkv.weight" = "{block}.attns.{j}.attn.qkv.weight"',
    )
