"""vit-pytorch's own models, small, and by hand those of its releases before 1.16.1."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from tests.packages import vit_pytorch
from tests.tables.specimens.specimen import GRID, PLAIN, USER, Shapes, Specimen, linear

LUCID: dict[str, Any] = {
    "image_size": (32, 24),
    "patch_size": 8,
    "num_classes": 7,
    "dim": 20,
    "depth": 3,
    "heads": 3,
    "dim_head": 11,
    "mlp_dim": 50,
}
LUCIDRAINS = PLAIN | {"embed_dim": 20, "depth": 12, "head_dim": 11}


def vit(**arguments: Any) -> nn.Module:
    return vit_pytorch.ViT(**arguments)


def simple_vit(**arguments: Any) -> nn.Module:
    return vit_pytorch.SimpleViT(**arguments)


def simple_vit_with_registers(**arguments: Any) -> nn.Module:
    return vit_pytorch.simple_vit_with_register_tokens.SimpleViT(**arguments)


VIT_PYTORCH = {
    "lucidrains": Specimen(
        dialect="lucidrains",
        make=partial(vit, **LUCID | {"depth": 11}),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"depth": 11, "pooling": "token", "patch_pre_norm": True},
    ),
    "lucidrains, four channels": Specimen(
        dialect="lucidrains",
        make=partial(vit, **LUCID | {"patch_size": (8, 6), "channels": 4}),
        stated=USER | GRID | {"patch_size": (8, 6)},
        expected=LUCIDRAINS | GRID | {"depth": 3, "patch_size": (8, 6), "in_channels": 4},
    ),
    "lucidrains, one channel, one head": Specimen(
        dialect="lucidrains",
        make=partial(vit, **LUCID | {"heads": 1, "dim_head": 20, "channels": 1, "image_size": 24}),
        stated={"num_heads": 1},
        expected={
            "num_heads": 1,
            "head_dim": 20,
            "attention_proj": False,
            "proj_bias": False,
            "in_channels": 1,
            "patch_size": (8, 8),
            "image_size": (24, 24),
        },
    ),
    "lucidrains mean": Specimen(
        dialect="lucidrains_mean",
        make=partial(vit, **LUCID | {"pool": "mean"}),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"depth": 3, "pooling": "avg", "class_token": False},
    ),
    "lucidrains simple": Specimen(
        dialect="lucidrains_simple",
        make=partial(simple_vit, **LUCID | {"num_classes": 2, "channels": 1}),
        stated=USER | GRID,
        expected=LUCIDRAINS
        | GRID
        | {
            "depth": 3,
            "position_embedding": "sincos2d",
            "pooling": "avg",
            "num_classes": 2,
            "proj_bias": False,
            "attention_proj": True,
            "in_channels": 1,
        },
    ),
    "lucidrains simple with registers": Specimen(
        dialect="lucidrains_simple",
        make=partial(simple_vit_with_registers, **LUCID, num_register_tokens=5),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"depth": 3, "num_registers": 5},
    ),
}


def old_lucidrains(
    *,
    attention: Callable[[int], str],
    feedforward: Callable[[int], str],
    norm1: str,
    to_qkv: str,
    to_out: str,
    norm2: str,
    fc1: str,
    fc2: str,
    embedding: str,
    head: Shapes,
    normed_patches: bool = False,
) -> Shapes:
    """vit-pytorch's ViT before 1.16.1, whose names changed with nearly every release."""
    shapes: Shapes = {"cls_token": (1, 1, 20), "pos_embedding": (1, 10, 20)}
    if normed_patches:
        shapes |= linear("to_patch_embedding.1", 192) | linear("to_patch_embedding.3", 20)
    shapes |= linear(embedding, 20, 192)
    for i in range(12):
        a, f = attention(i), feedforward(i)
        shapes |= linear(f"{a}.{norm1}", 20) | linear(f"{a}.{to_out}", 20, 33)
        shapes |= linear(f"{f}.{norm2}", 20) | {f"{a}.{to_qkv}.weight": (99, 20)}
        shapes |= linear(f"{f}.{fc1}", 50, 20) | linear(f"{f}.{fc2}", 20, 50)
    return shapes | head


def heads(**sizes: tuple[int, ...]) -> Shapes:
    """`_0=(20,)` is a layer of the head's nn.Sequential."""
    return {
        key: shape
        for number, size in sizes.items()
        for key, shape in linear(f"mlp_head.{number[1:]}", *size).items()
    }


IN_LIST = {
    "attention": "transformer.layers.{}.0".format,
    "feedforward": "transformer.layers.{}.1".format,
}
PARTS = ("norm1", "to_qkv", "to_out", "norm2", "fc1", "fc2")


def named(*parts: str) -> dict[str, Any]:
    """What the layers of a block are called."""
    return IN_LIST | dict(zip(PARTS, parts, strict=True))


FN_FN = named(
    *("fn.norm", "fn.fn.to_qkv", "fn.fn.to_out.0", "fn.norm", "fn.fn.net.0", "fn.fn.net.3")
)
FN_FN_2 = FN_FN | {"to_out": "fn.fn.to_out", "fc2": "fn.fn.net.2"}
FN = named("norm", "fn.to_qkv", "fn.to_out.0", "norm", "fn.net.0", "fn.net.3")
FLAT = {
    "attention": lambda i: f"transformer.net.{2 * i}",
    "feedforward": lambda i: f"transformer.net.{2 * i + 1}",
}


def old_simple(embedding: str, *, normed_patches: bool) -> Shapes:
    names = named("norm", "to_qkv", "to_out", "net.0", "net.1", "net.3")
    shapes = old_lucidrains(**names, embedding=embedding, head={}, normed_patches=normed_patches)
    head = linear("linear_head.0", 20) | linear("linear_head.1", 7, 20)
    absent = ("cls_token", "pos_embedding")
    return {
        name: shape
        for name, shape in (shapes | head).items()
        if name not in absent and not name.endswith("to_out.bias")
    }


TOKEN = USER | {"pooling": "token"}
NORMED = heads(_0=(20,), _1=(7, 20))
PLAIN_HEAD = {"representation_size": 50, "fc_norm": False, "final_norm": False}
NEW_LAYERS = named("norm", "to_qkv", "to_out.0", "net.0", "net.1", "net.4")
NEW_HEAD = linear("transformer.norm", 20) | linear("mlp_head", 7, 20)
# By the width of the model, not of a head.
HIDDEN = {"representation_size": 50, "representation_activation": "gelu"}
HIDDEN |= {"attention_scale": 20**-0.5, "fc_norm": True}
# Release -> the names of layers, of the patches' projection, the head, whether patches are normed
# in front of it and behind, what a user states, and what is found.
RELEASES: dict[str, tuple[dict[str, Any], str, Shapes, bool, dict[str, Any], dict[str, Any]]] = {
    "1_4": (
        *(NEW_LAYERS, "to_patch_embedding.2", NEW_HEAD, True, USER | {"pooling": "avg"}),
        {"final_norm": True, "pool_include_prefix": True},
    ),
    "1_0": (
        *(FN, "to_patch_embedding.2", NORMED, True, TOKEN),
        {"fc_norm": True, "final_norm": False, "patch_norm": True},
    ),
    "0_10": (
        *(FN, "to_patch_embedding.1", NORMED, False, TOKEN),
        {"fc_norm": True, "patch_norm": False, "patch_pre_norm": False},
    ),
    "0_7": (FN_FN, "to_patch_embedding.1", NORMED, False, TOKEN, {"fc_norm": True}),
    "0_3": (
        *(FN_FN, "patch_to_embedding", NORMED, False, USER | {"attention_scale": 20**-0.5}),
        {"fc_norm": True},
    ),
    "0_2_2": (
        *(FN_FN, "patch_to_embedding", heads(_0=(20,), _1=(50, 20), _4=(7, 50)), False, USER),
        HIDDEN,
    ),
    "0_2_0": (
        *(FN_FN_2, "patch_to_embedding", heads(_0=(20,), _1=(50, 20), _3=(7, 50)), False, USER),
        HIDDEN,
    ),
    "0_0_4": (
        *(FN_FN_2, "patch_to_embedding", heads(_0=(50, 20), _2=(7, 50)), False, USER),
        PLAIN_HEAD,
    ),
    "0_0_1": (
        *(FN_FN_2 | FLAT, "patch_to_embedding", heads(_0=(50, 20), _2=(7, 50)), False, USER),
        PLAIN_HEAD,
    ),
}
SIMPLE = {"1_0": ("to_patch_embedding.2", True), "0_35": ("to_patch_embedding.1", False)}
OLD_LUCIDRAINS = {
    f"lucidrains_{release}": Specimen(
        dialect=f"lucidrains_{release}",
        make=partial(
            old_lucidrains, **names, embedding=embedding, head=head, normed_patches=normed
        ),
        stated=stated,
        expected=LUCIDRAINS | found,
    )
    for release, (names, embedding, head, normed, stated, found) in RELEASES.items()
} | {
    f"lucidrains_simple_{release}": Specimen(
        dialect=f"lucidrains_simple_{release}",
        make=partial(old_simple, embedding, normed_patches=normed),
        stated=USER | GRID,
        expected=LUCIDRAINS
        | GRID
        | {"fc_norm": True, "patch_norm": normed, "position_embedding": "sincos2d"},
    )
    for release, (embedding, normed) in SIMPLE.items()
}
