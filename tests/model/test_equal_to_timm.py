"""On a CPU in float32 the model equals timm's to the last bit."""

import pytest
import torch
from torch import nn

from tests.packages import timm
from tests.small_models import small_timm
from vitconvert.model import ViT

# name: (fields of ViTConfig, arguments of timm's VisionTransformer)
VARIANTS = {
    "class token": ({}, {}),
    "average pooling": (
        {"pooling": "avg", "class_token": False, "final_norm": False, "fc_norm": True},
        {"global_pool": "avg", "class_token": False},
    ),
    "average pooling beside a class token": (
        {"pooling": "avg", "final_norm": False, "fc_norm": True},
        {"global_pool": "avg"},
    ),
    "average pooling behind the norm": (
        {"pooling": "avg"},
        {"global_pool": "avg", "fc_norm": False},
    ),
    "average over the prefix too": (
        {"pooling": "avg", "pool_include_prefix": True, "num_registers": 2},
        {"global_pool": "avg", "fc_norm": False, "pool_include_prefix": True, "reg_tokens": 2},
    ),
    "average and maximum": (
        {"pooling": "avgmax", "final_norm": False, "fc_norm": True},
        {"global_pool": "avgmax"},
    ),
    "maximum": (
        {"pooling": "max", "final_norm": False, "fc_norm": True},
        {"global_pool": "max"},
    ),
    "attention pooling": (
        {"pooling": "map", "class_token": False},
        {"global_pool": "map", "class_token": False},
    ),
    "attention pooling beside a class token": ({"pooling": "map"}, {"global_pool": "map"}),
    "attention pooling over the prefix": (
        {"pooling": "map", "pool_include_prefix": True},
        {"global_pool": "map", "pool_include_prefix": True},
    ),
    "no pooling": ({"pooling": "none"}, {"global_pool": ""}),
    "norm of the pooled token": (
        {"final_norm": False, "fc_norm": True},
        {"fc_norm": True},
    ),
    "no final norm": ({"final_norm": False}, {"final_norm": False}),
    "registers": ({"num_registers": 4}, {"reg_tokens": 4}),
    "positions for patches only": (
        {"num_registers": 4, "no_embed_class": True},
        {"reg_tokens": 4, "no_embed_class": True},
    ),
    "no positions": ({"position_embedding": "none"}, {"pos_embed": "none"}),
    "no head": ({"num_classes": 0}, {"num_classes": 0}),
    "layer scale": ({"layer_scale": True}, {"init_values": 0.1}),
    "qk norm": ({"qk_norm": True}, {"qk_norm": True}),
    "norm before the blocks": ({"pre_norm": True, "patch_bias": False}, {"pre_norm": True}),
    "norm of the patches": ({"patch_norm": True}, {"embed_norm_layer": "layernorm"}),
    "no bias of q, k, v": ({"qkv_bias": False}, {"qkv_bias": False}),
    "no bias of projections": (
        {"proj_bias": False, "mlp_bias": False},
        {"proj_bias": False},
    ),
    "oblong patches": (
        {"image_size": (36, 35), "patch_size": (9, 5)},
        {"img_size": (36, 35), "patch_size": (9, 5)},
    ),
    "a rest of pixels": ({"image_size": (36, 27)}, {"img_size": (36, 27)}),
    "one channel": ({"in_channels": 1}, {"in_chans": 1}),
    "four channels": ({"in_channels": 4}, {"in_chans": 4}),
    "eleven blocks": ({"depth": 11}, {"depth": 11}),
    "one head": ({"num_heads": 1, "head_dim": 30}, {"num_heads": 1}),
    "large epsilon": ({"norm_eps": 1e-2}, {"norm_layer": "eps"}),
    "tanh gelu": ({"activation": "gelu_tanh"}, {"act_layer": "gelu_tanh"}),
    "quick gelu": ({"activation": "quick_gelu"}, {"act_layer": "quick_gelu"}),
    "relu": ({"activation": "relu"}, {"act_layer": nn.ReLU}),
    "silu": ({"activation": "silu"}, {"act_layer": nn.SiLU}),
    "tanh": ({"activation": "tanh"}, {"act_layer": nn.Tanh}),
}


@pytest.mark.parametrize(("fields", "arguments"), VARIANTS.values(), ids=VARIANTS)
def test_logits_and_tokens_equal_timms(fields, arguments, make_config, randomise, images):
    config = make_config(**fields)
    theirs = randomise(_timm(**arguments))
    ours = _same_weights(config, theirs)
    x = images(config)
    assert torch.equal(ours.forward_features(x), theirs.forward_features(x))
    assert torch.equal(ours(x), theirs(x))
    tokens = theirs.forward_features(x)
    assert torch.equal(
        ours.forward_head(tokens, pre_logits=True), theirs.forward_head(tokens, pre_logits=True)
    )


@pytest.mark.parametrize("num_classes", [7, 0])
@pytest.mark.parametrize("no_embed_class", [False, True])
def test_distilled_model_averages_both_heads(
    num_classes, no_embed_class, make_config, randomise, images
):
    config = make_config(
        dist_token=True,
        dist_head=num_classes > 0,
        num_classes=num_classes,
        no_embed_class=no_embed_class,
    )
    arguments = {"num_classes": num_classes}
    theirs = _timm("VisionTransformerDistilled", **arguments)
    if no_embed_class:
        # timm's distilled model gives positions to the prefix, whatever it was told.
        theirs.no_embed_class = True
        theirs.pos_embed = nn.Parameter(theirs.pos_embed[:, 2:].clone())
    ours = _same_weights(config, randomise(theirs))
    x = images(config)
    assert torch.equal(ours.forward_features(x), theirs.forward_features(x))
    tokens = theirs.forward_features(x)
    if num_classes:
        assert torch.equal(ours(x), theirs(x))
        assert torch.equal(
            ours.forward_head(tokens, pre_logits=True), theirs.forward_head(tokens, pre_logits=True)
        )


def test_bfloat16_equals_timm(make_config, randomise, images):
    config = make_config()
    theirs = randomise(_timm()).bfloat16()
    ours = _same_weights(config, theirs)
    x = images(config).bfloat16()
    assert ours(x).dtype == torch.bfloat16
    assert torch.equal(ours(x), theirs(x))


def test_gradients_equal_timms(make_config, randomise, images):
    config = make_config(layer_scale=True)
    theirs = randomise(_timm(init_values=0.1))
    ours = _same_weights(config, theirs)
    x = images(config)
    for model in (ours, theirs):
        model(x).square().sum().backward()
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.grad, wanted[name]), name


def _timm(name="VisionTransformer", **arguments):
    if arguments.get("norm_layer") == "eps":
        arguments["norm_layer"] = lambda dim, **dd: timm.layers.LayerNorm(dim, eps=1e-2, **dd)
    return small_timm(name, **arguments)


def _same_weights(config, theirs):
    ours = ViT(config, device="meta").eval()
    ours.load_state_dict(theirs.state_dict(), strict=True, assign=True)
    return ours
