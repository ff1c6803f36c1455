"""timm's constructors told otherwise than their architectures: the same bits, or a refusal."""

import pytest
import torch
from safetensors.torch import save_file

import vitconvert
from tests.coverage.families import random_model
from tests.packages import timm
from vitconvert.errors import MissingFact, NotRepresentable

SMALL = {"img_size": [56, 42], "patch_size": 14, "embed_dim": 48, "depth": 2, "num_heads": 3}
SMALL |= {"num_classes": 5}
PLAIN, CLIP, DISTILLED = (
    "vit_tiny_patch16_224",
    "vit_base_patch16_clip_quickgelu_224",
    "deit_tiny_distilled_patch16_224",
)
GAP = "vit_medium_patch16_reg4_gap_256"


@pytest.fixture
def saved(tmp_path):
    """timm's model, and the directory that timm saves it to."""

    def make(name, **arguments):
        model = random_model(name, **{**SMALL, **arguments}).eval()
        timm.models.save_for_hf(model, tmp_path / "timm", safe_serialization=True)
        return model, tmp_path / "timm"

    return make


def assert_same_bits(theirs, ours):
    images = torch.randn(2, ours.config.in_channels, *ours.config.image_size)
    with torch.no_grad():
        assert torch.equal(ours.forward_features(images), theirs.forward_features(images))
        assert torch.equal(ours(images), theirs(images))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        # Eva's attention pooling reads the class and register tokens, VisionTransformer's does not.
        ("vit_small_patch16_dinov3", {"global_pool": "map"}),
        ("vit_betwixt_patch16_rope_reg4_gap_256", {"global_pool": "map"}),
        ("vit_pe_lang_large_patch14_448", {"global_pool": "map"}),
        (PLAIN, {"global_pool": "map", "reg_tokens": 2}),
        (PLAIN, {"global_pool": "map", "pool_include_prefix": True}),
        (PLAIN, {"final_norm": False}),
        (GAP, {"final_norm": False}),
        (GAP, {"final_norm": True, "global_pool": "max"}),
        (PLAIN, {"attn_layer": "diff"}),
        (PLAIN, {"attn_layer": ""}),
        ("vit_dwee_patch16_reg1_gap_256", {"attn_layer": "attn"}),
        (CLIP, {"norm_layer": "layernorm"}),
        (CLIP, {"norm_layer": "rmsnorm"}),
        (CLIP, {"norm_layer": ""}),
        (CLIP, {"act_layer": ""}),
        (DISTILLED, {"num_classes": 0}),
    ],
    ids=str,
)
def test_what_the_config_says_is_computed(name, arguments, saved):
    theirs, directory = saved(name, **arguments)
    assert_same_bits(theirs, vitconvert.load_model(directory))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            *(DISTILLED, {"fc_norm": True}),
            "not (dist_token implies num_registers == 0 and not fc_norm), with dist_token = True, "
            "num_registers = 0, fc_norm = True: VisionTransformerDistilled passes",
        ),
        (
            *(DISTILLED, {"reg_tokens": 3}),
            "num_registers = 3, fc_norm = False: VisionTransformerDistilled passes",
        ),
        (
            *("vit_small_plus_patch16_dinov3", {"global_pool": "map"}),
            "not (map_pooling and pool_mlp implies activation == 'gelu'), with map_pooling = True",
        ),
        ("aimv2_large_patch14_224", {"norm_layer": "rmsnorm"}, "norm_layer"),
        (PLAIN, {"norm_layer": "simplenorm"}, "model_args.norm_layer = 'simplenorm'"),
        (PLAIN, {"embed_norm_layer": "layernorm"}, "embed_norm_layer"),
    ],
    ids=str,
)
def test_what_no_word_says_is_refused_by_name(name, arguments, words, saved):
    _, directory = saved(name, **arguments)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.load_model(directory)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "pooling", "theirs"),
    [
        ("vit_pe_core_tiny_patch16_384", "avg", "map"),
        ("vit_pe_spatial_tiny_patch16_512", "map", "avg"),
    ],
)
def test_which_tokens_are_pooled_is_asked_where_the_class_decides(name, pooling, theirs, saved):
    model, directory = saved(name, global_pool=pooling)
    with pytest.raises(MissingFact) as error:
        vitconvert.load_model(directory)
    assert str(error.value) == (
        "error: missing-fact\n"
        "  This model differs from its architecture, and pool_include_prefix is unknown.\n"
        f"  architecture  {name}, pooling = {theirs}\n"
        f"  this model    pooling = {pooling} (config.json)\n"
        "  A model of timm with rotary embeddings is an Eva, which pools class and register tokens "
        "in attention pooling and in no other, or a VisionTransformer, which does what it is told."
        "\n"
        "  hint: --set pool_include_prefix=... (in Python, overrides={...}) states it."
    )
    stated = {"pool_include_prefix": pooling == "map"}
    assert_same_bits(model, vitconvert.load_model(directory, overrides=stated))


@pytest.mark.parametrize(
    ("name", "pooling"), [(PLAIN, "avg"), (GAP, "token"), ("beit3_base_patch16_224", "token")]
)
def test_the_last_norms_of_a_bare_file_overrule_the_architectures_pooling(name, pooling, tmp_path):
    model = random_model(name, **SMALL, global_pool=pooling, class_token=True).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    fields = {"image_size": SMALL["img_size"], "patch_size": 14, "class_token": True}
    fields |= {key: SMALL[key] for key in ("embed_dim", "depth", "num_heads")}
    checkpoint = vitconvert.load_checkpoint(
        tmp_path / "model.safetensors", architecture=name, overrides=fields
    )
    assert checkpoint.config.pooling == pooling
    said = "avg" if pooling == "token" else "token"
    note = f"pooling = {said} (architecture {name}), but the tensors have other last norms"
    assert note in checkpoint.ledger.notes
    ours = vitconvert.load_model(
        tmp_path / "model.safetensors", architecture=name, overrides=fields
    )
    assert_same_bits(model, ours)


def test_the_arguments_above_are_timms():
    """A renamed argument would be refused for another reason."""
    assert timm.create_model(PLAIN, **SMALL, attn_layer="diff").blocks[0].attn.lambda_q1 is not None
