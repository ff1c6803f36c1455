"""timm's own models, small."""

from functools import partial
from typing import Any

from torch import nn

from tests.packages import timm
from tests.tables.specimens.specimen import GRID, PLAIN, USER, Shapes, Specimen


def timm_vit(**changes: Any) -> "timm.models.VisionTransformer":
    options = {
        "img_size": (32, 24),
        "patch_size": 8,
        "num_classes": 7,
        "embed_dim": 30,
        "depth": 2,
        "num_heads": 3,
        "mlp_ratio": 50 / 30,
    }
    return timm.models.VisionTransformer(**options | changes)


def timm_distilled() -> "timm.models.VisionTransformerDistilled":
    options = {"img_size": 24, "patch_size": 8, "num_classes": 7, "embed_dim": 30, "num_heads": 3}
    return timm.models.VisionTransformerDistilled(depth=2, mlp_ratio=2, **options)


def timm_hybrid(layers: tuple[int, ...], size: int = 32) -> "timm.models.VisionTransformer":
    conv = partial(timm.layers.StdConv2dSame, eps=1e-8)
    common = {"stem_type": "same", "preact": False, "conv_layer": conv}
    channels = tuple(128 * 2**stage for stage in range(len(layers)))
    if layers:
        backbone = timm.models.ResNetV2(
            layers=layers, channels=channels, stem_chs=32, num_classes=0, global_pool="", **common
        )
    else:
        backbone = timm.models.resnetv2.create_resnetv2_stem(3, out_chs=32, **common)
    embed = partial(timm.layers.HybridEmbed, backbone=backbone)
    return timm_vit(img_size=size, patch_size=1 if layers else 4, embed_layer=embed)


def timm_resnet_d() -> "timm.models.VisionTransformer":
    sizes = {"stem_width": 8, "channels": (16, 32), "layers": (1, 2), "num_classes": 0}
    options = {"stem_type": "deep", "avg_down": True, "global_pool": ""}
    backbone = timm.models.ResNet(timm.models.Bottleneck, **sizes, **options)
    backbone.layer3 = backbone.layer4 = nn.Identity()
    embed = partial(timm.layers.HybridEmbed, backbone=backbone)
    return timm_vit(img_size=(30, 24), patch_size=1, embed_layer=embed)


def timm_mobileclip() -> "timm.models.VisionTransformer":
    stem = {"stride": (4, 2, 2), "kernel_size": (4, 2, 2), "padding": 0, "act_layer": nn.GELU}
    embed = partial(
        timm.layers.HybridEmbed,
        backbone=timm.models.vision_transformer_hybrid.ConvStem(channels=(12, 12, 30), **stem),
        proj=False,
    )
    return timm_vit(img_size=(67, 48), patch_size=1, embed_layer=embed, no_embed_class=True)


def timm_named(name: str, patch: int, **changes: Any) -> nn.Module:
    """An architecture of timm, narrow: 4 patches down and 3 across, 3 heads of 12."""
    options = {"embed_dim": 36, "num_heads": 3, "depth": 2, "num_classes": 7}
    options["img_size"] = (4 * patch, 3 * patch)
    return timm.create_model(name, **options | changes)


def timm_beit(**changes: Any) -> "timm.models.Beit":
    options = {"img_size": 32, "patch_size": 8, "num_classes": 7, "embed_dim": 36, "num_heads": 3}
    return timm.models.Beit(**options | {"depth": 11, "mlp_ratio": 50 / 36} | changes)


def with_pre_logits() -> Shapes:
    """What timm 0.5 saved, with its `pre_logits.fc`."""
    shapes = shapes_of(timm_vit(img_size=24))
    head = {"head.weight": (7, 20), "pre_logits.fc.weight": (20, 30), "pre_logits.fc.bias": (20,)}
    return shapes | head


def shapes_of(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


TIMM = {
    "timm": Specimen(
        dialect="timm",
        make=partial(timm_vit, depth=11, in_chans=4),
        stated=USER | GRID,
        expected=PLAIN | GRID | {"in_channels": 4, "pooling": "token", "no_embed_class": False},
    ),
    "timm with one of everything": Specimen(
        dialect="timm",
        make=partial(
            timm_vit,
            reg_tokens=2,
            init_values=0.1,
            qk_norm=True,
            pre_norm=True,
            no_embed_class=True,
            global_pool="map",
            in_chans=1,
            patch_size=4,
        ),
        stated=GRID,
        expected={
            "num_heads": 3,
            "head_dim": 10,
            "num_registers": 2,
            "layer_scale": True,
            "qk_norm": True,
            "pre_norm": True,
            "patch_bias": False,
            "no_embed_class": True,
            "pooling": "map",
            "pool_heads": 0,
            "pool_mlp_dim": 50,
            "in_channels": 1,
        },
    ),
    "timm averaged, without class token or head": Specimen(
        dialect="timm",
        make=partial(
            timm_vit,
            img_size=24,
            global_pool="avg",
            class_token=False,
            num_classes=0,
            qkv_bias=False,
        ),
        stated=USER,
        expected={
            "pooling": "avg",
            "fc_norm": True,
            "final_norm": False,
            "class_token": False,
            "qkv_bias": False,
            "num_classes": 0,
            "image_size": (24, 24),
        },
    ),
    "timm distilled": Specimen(
        dialect="timm",
        make=timm_distilled,
        stated=USER,
        expected={"dist_token": True, "dist_head": True, "mlp_dim": 60, "image_size": (24, 24)},
    ),
    "timm hybrid": Specimen(
        dialect="timm",
        make=partial(timm_hybrid, (1, 2)),
        stated=USER | {"stem_style": "timm"},
        expected={"stem": True, "stem_depths": (1, 2), "stem_width": 32, "image_size": (32, 32)},
    ),
    "timm hybrid of the root alone": Specimen(
        dialect="timm_root_stem",
        make=partial(timm_hybrid, ()),
        stated=USER | {"stem_style": "timm"},
        expected={"stem": True, "stem_depths": (), "stem_width": 32, "image_size": (32, 32)},
    ),
    "timm hybrid with a ResNet-D": Specimen(
        dialect="timm_resnet_d",
        make=timm_resnet_d,
        stated=USER | {"image_size": (30, 24)},
        expected={"stem_style": "resnet_d", "stem_depths": (1, 2), "stem_width": 16},
    ),
    "timm hybrid with MobileCLIP's convolutions": Specimen(
        dialect="timm_mobileclip",
        make=timm_mobileclip,
        stated=USER | {"image_size": (67, 48)},
        expected={"stem_style": "mobileclip", "stem_depths": (), "stem_width": 12}
        | {"patch_size": (2, 2), "no_embed_class": True},
    ),
}
NARROW = {"embed_dim": 36, "depth": 2, "num_heads": 3, "head_dim": 12, "num_classes": 7}
ON_14 = {"image_size": (56, 42)}
ON_16 = {"image_size": (64, 48)}
TURNED = {
    "rope": "axial",
    "rope_temperature": 10000.0,
    "rope_indexing": "ij",
    "rope_offset": 0.0,
    "rope_half": False,
    "rope_reference": (16, 16),
}
AVERAGED = {"pooling": "avg", "final_norm": False, "fc_norm": True}
DINOV3 = TURNED | {"rope": "dinov3", "rope_temperature": 100.0, "rope_half": True}
DINOV3 |= {"rope_reference": (), "pooling": "avg", "norm_eps": 1e-5}
KEY_HEADS = (3, 1, 1, 1, 3, 1, 1, 1, 1, 1, 3)  # of keys and values, in each block
SAPIENS = DINOV3 | {"pooling": "token", "norm_eps": 1e-6}
PE = TURNED | {"rope_offset": 1.0, "rope_indexing": "xy", "norm_eps": 1e-5}
TIMM_KINDS = {
    "timm PE core, rotated": Specimen(
        dialect="timm",
        make=partial(timm_named, "vit_pe_core_base_patch16_224", 16, attn_pool_num_heads=6),
        stated=USER
        | ON_16
        | PE
        | {"rope_reference": (14, 14), "pool_heads": 6, "pool_include_prefix": True}
        | {"no_embed_class": False},
        expected=NARROW | {"pre_norm": True, "pooling": "map", "layer_scale": False},
    ),
    "timm with two branches": Specimen(
        dialect="timm",
        make=partial(timm_named, "vit_small_patch16_18x2_224", 16, depth=11),
        stated=USER | ON_16,
        expected=NARROW | {"depth": 11, "branches": 2, "layer_scale": True, "mlp_dim": 144},
    ),
    "timm with norms after the branches": Specimen(
        dialect="timm",
        make=partial(timm_named, "vit_base_patch16_rpn_224", 16),
        stated=USER | ON_16 | {"block_order": "res_post_norm"},
        expected=NARROW | {"class_token": False, "pooling": "avg", "qkv_bias": False},
    ),
    "timm BEiT 3": Specimen(
        dialect="timm",
        make=partial(timm_named, "beit3_base_patch16_224", 16),
        stated=USER | ON_16 | {"norm_eps": 1e-5},
        expected=NARROW | AVERAGED | {"attention_norm": True, "mlp_norm": True},
    ),
    "timm with RMSNorm": Specimen(
        dialect="timm",
        make=partial(timm_named, "test_vit4", 16),
        stated=USER | ON_16,
        expected=NARROW | {"norm": "rms", "norm_bias": False, "num_registers": 1},
    ),
    "timm AIMv2": Specimen(
        dialect="timm_swiglu",
        make=partial(timm_named, "aimv2_large_patch14_224", 14, depth=11),
        stated=USER | ON_14 | {"norm_eps": 1e-5},
        expected=NARROW
        | {"depth": 11, "gated_mlp": True, "activation": "silu", "norm": "rms", "mlp_dim": 99}
        | {"patch_norm": True, "mlp_bias": False, "proj_bias": False, "pooling": "avg"},
    ),
    "timm DINOv2 giant": Specimen(
        dialect="timm_swiglu_packed",
        make=partial(timm_named, "vit_giant_patch14_dinov2", 14, depth=11),
        stated=USER | ON_14,
        expected=NARROW
        | {"depth": 11, "gated_mlp": True, "activation": "silu", "mlp_dim": 96}
        | {"layer_scale": True, "pooling": "token", "mlp_bias": True},
    ),
    "timm EVA giant": Specimen(
        dialect="timm_eva",
        make=partial(timm_named, "eva_giant_patch14_224", 14),
        stated=USER | ON_14,
        expected=NARROW | AVERAGED | {"qkv_bias": True, "mlp_dim": 157, "layer_scale": False},
    ),
    "timm BEiT": Specimen(
        dialect="timm_eva",
        make=partial(timm_named, "beit_base_patch16_224", 16),
        stated=ON_16,
        expected=NARROW
        | AVERAGED
        | {"relative_positions": "block", "position_embedding": "none", "layer_scale": True},
    ),
    "timm BEiT, one table for all blocks": Specimen(
        dialect="timm_eva",
        make=partial(
            timm_beit, use_shared_rel_pos_bias=True, use_abs_pos_emb=False, init_values=0.1
        ),
        expected=NARROW
        | {"depth": 11, "relative_positions": "shared", "image_size": (32, 32), "mlp_dim": 50},
    ),
    "timm DINOv3": Specimen(
        dialect="timm_eva",
        make=partial(timm_named, "vit_small_patch16_dinov3", 16),
        stated=USER | ON_16 | DINOV3,
        expected=NARROW | {"qkv_bias": False, "num_registers": 4, "position_embedding": "none"},
    ),
    "timm DINOv3 with SwiGLU": Specimen(
        dialect="timm_eva_gated",
        make=partial(timm_named, "vit_small_plus_patch16_dinov3", 16, depth=11),
        stated=USER | ON_16 | DINOV3,
        expected=NARROW | {"depth": 11, "gated_mlp": True, "activation": "silu", "mlp_dim": 144},
    ),
    "timm EVA-02 small": Specimen(
        dialect="timm_eva_packed",
        make=partial(timm_named, "eva02_small_patch14_224", 14, depth=11),
        stated=USER | ON_14 | TURNED,
        expected=NARROW | AVERAGED | {"depth": 11, "gated_mlp": True, "mlp_dim": 96},
    ),
    "timm EVA-02 base": Specimen(
        dialect="timm_eva_split",
        make=partial(timm_named, "eva02_base_patch14_224", 14, depth=11),
        stated=USER | ON_14 | TURNED,
        expected=NARROW | AVERAGED | {"depth": 11, "gated_mlp": True, "mlp_norm": True},
    ),
    "timm Sapiens 2": Specimen(
        dialect="timm_eva_shared_kv",
        make=partial(timm_named, "vit_base_patch16_sapiens2", 16, depth=11, num_kv_heads=KEY_HEADS),
        stated=ON_16 | SAPIENS,
        expected=NARROW
        | {"depth": 11, "gated_mlp": True, "mlp_dim": 144, "norm": "rms", "num_registers": 8}
        | {"kv_heads": KEY_HEADS, "qk_norm": True, "qkv_bias": True, "class_token": True}
        | {"layer_scale": True, "mlp_layer_scale": False},
    ),
    "timm, attention and MLP from one matrix": Specimen(
        dialect="timm_parallel",
        make=partial(timm_named, "vit_base_patch16_xp_224", 16, depth=11),
        stated=ON_16,
        expected=NARROW
        | {"depth": 11, "block_order": "parallel", "norm": "rms", "qk_norm": True}
        | {"qkv_bias": False, "mlp_dim": 144, "pre_norm": True, "differential": False},
    ),
    "timm, attention and MLP from one matrix and into one": Specimen(
        dialect="timm_parallel",
        make=partial(timm_named, "vit_dpwee_patch16_reg1_gap_256", 16),
        stated=ON_16,
        expected=NARROW
        | AVERAGED
        | {"block_order": "parallel", "differential": True, "qkv_bias": True}
        | {"num_registers": 1, "class_token": False, "layer_scale": True},
    ),
    "timm, differential attention": Specimen(
        dialect="timm",
        make=partial(timm_named, "vit_dwee_patch16_reg1_gap_256", 16, depth=11),
        stated=ON_16,
        expected=NARROW
        | AVERAGED
        | {"depth": 11, "differential": True, "qkv_bias": True, "block_order": "pre"},
    ),
    "timm rope-ViT, learned frequencies and positions": Specimen(
        dialect="timm_eva_rope",
        make=partial(timm_named, "vit_small_patch16_rope_mixed_ape_224", 16, depth=11),
        stated=ON_16 | {"rope_indexing": "xy"},
        expected=NARROW | {"depth": 11, "rope": "mixed", "no_embed_class": True},
    ),
    "timm PE language": Specimen(
        dialect="timm_eva_rope",
        make=partial(timm_named, "vit_pe_lang_large_patch14_448", 14),
        stated=USER
        | ON_14
        | PE
        | {"rope_reference": (32, 32), "final_norm": False}
        | {"pooling": "avg"},
        expected=NARROW | {"pre_norm": True, "fc_norm": False, "layer_scale": True},
    ),
}
OLD_TIMM = {
    "timm before 0.6": Specimen(
        dialect="timm_2020",
        make=with_pre_logits,
        stated=USER,
        expected={"representation_size": 20, "representation_activation": "tanh", "num_classes": 7},
    ),
}
