"""vit-pytorch's ViT and SimpleViT: normalised pixels, fixed positions, inner width of its own."""

import pytest
import torch
from einops import rearrange

from tests.packages import vit_pytorch
from vitconvert.model import ViT

SMALL = {
    "image_size": (32, 24),
    "patch_size": (8, 6),
    "num_classes": 7,
    "dim": 32,
    "depth": 2,
    "mlp_dim": 50,
    "channels": 2,
}
OURS = {
    "image_size": (32, 24),
    "patch_size": (8, 6),
    "in_channels": 2,
    "embed_dim": 32,
    "depth": 2,
    "norm_eps": 1e-5,
    "qkv_bias": False,
    "patch_pre_norm": True,
    "patch_norm": True,
}


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit(pool, make_config, randomise, images):
    theirs = randomise(vit_pytorch.ViT(**SMALL, heads=3, dim_head=10, pool=pool))
    pooling = {"cls": "token", "mean": "avg"}[pool]
    config = make_config(**OURS, pooling=pooling, class_token=pool == "cls")
    _assert_same_logits(config, theirs, images(config))


def test_vit_without_output_projection(make_config, randomise, images):
    theirs = randomise(vit_pytorch.ViT(**SMALL, heads=1, dim_head=32))
    config = make_config(**OURS, num_heads=1, head_dim=32, attention_proj=False, proj_bias=False)
    _assert_same_logits(config, theirs, images(config))


def test_simple_vit(make_config, randomise, images):
    theirs = randomise(vit_pytorch.SimpleViT(**SMALL, heads=3, dim_head=10))
    config = make_config(
        **OURS,
        class_token=False,
        pooling="avg",
        position_embedding="sincos2d",
        proj_bias=False,
    )
    _assert_same_logits(config, theirs, images(config))


def _assert_same_logits(config, theirs, x):
    ours = ViT(config, device="meta").eval()
    ours.load_state_dict(_canonical(theirs.state_dict()), strict=True, assign=True)
    torch.testing.assert_close(ours(x), theirs(x), rtol=2e-6, atol=2e-6)


def _canonical(state):
    return {_name(name): _value(name, tensor) for name, tensor in state.items() if tensor.numel()}


def _name(name):
    fc2 = ".1.net.4" if ".1.net.4" in name else ".1.net.3"
    for theirs, ours in (
        ("pos_embedding", "pos_embed"),
        ("to_patch_embedding.1", "patch_embed.pre_norm"),
        ("to_patch_embedding.2", "patch_embed.proj"),
        ("to_patch_embedding.3", "patch_embed.norm"),
        ("transformer.layers", "blocks"),
        ("transformer.norm", "norm"),
        (".0.norm", ".norm1"),
        (".0.to_qkv", ".attn.qkv"),
        (".0.to_out.0", ".attn.proj"),
        (".0.to_out", ".attn.proj"),
        (".1.net.0", ".norm2"),
        (".1.net.1", ".mlp.fc1"),
        (fc2, ".mlp.fc2"),
        ("mlp_head", "head"),
        ("linear_head", "head"),
    ):
        # "blocks.0.0.norm": only the second number is theirs.
        name = (
            name.replace(theirs, ours, 1)
            if not theirs.startswith(".")
            else _tail(name, theirs, ours)
        )
    return name


def _tail(name, theirs, ours):
    head, found, rest = name.rpartition(theirs)
    return head + ours + rest if found else name


def _value(name, tensor):
    pixels = {"y": 8, "x": 6}
    if name in ("cls_token", "pos_embedding"):
        return tensor[None]
    if name.startswith("to_patch_embedding.1"):
        return rearrange(tensor, "(y x c) -> (c y x)", **pixels)
    if name == "to_patch_embedding.2.weight":
        return rearrange(tensor, "d (y x c) -> d c y x", **pixels)
    return tensor
