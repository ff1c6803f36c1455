"""Small checkpoints of every dialect, with every number random.

Those of timm, transformers, torchvision and vit-pytorch are the packages' own models. The others
are spelled here by hand from their projects' sources, without looking into weights_map/.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import timm
import torch
import transformers
import vit_pytorch
from timm.layers import HybridEmbed, StdConv2dSame
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.resnet import Bottleneck, ResNet
from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from vit_pytorch.simple_vit_with_register_tokens import SimpleViT as SimpleViTWithRegisters

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
USER = {"num_heads": 3}
GRID = {"image_size": (32, 24)}  # 4 patches down, 3 across: nothing shows that but a statement


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """A checkpoint, what a user must say about it and what must be found out."""

    dialect: str
    make: Callable[[], nn.Module | Shapes]
    stated: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    rename: Callable[[str], str] = str  # a name as it is in the file
    written: str = ""  # the dialect that writes it back, if another
    rewritten: Callable[[str], str] = str  # a name of the file as writing spells it
    squeezed: bool = False  # whether writing drops dimensions of 1
    outputs: Callable[[Any], Tensor] = lambda found: found

    def model(self) -> nn.Module:
        torch.manual_seed(5)
        return randomise(self.make())

    def tensors(self) -> Tensors:
        torch.manual_seed(5)
        made = self.make()
        state = randomise(made).state_dict() if isinstance(made, nn.Module) else fill(made)
        return {self.rename(name): tensor for name, tensor in state.items()}


def fill(shapes: Shapes) -> Tensors:
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def randomise(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2).add_(0.5 if parameter.ndim == 1 else 0.05)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.2)
                module.running_var.uniform_(0.5, 2.0)
                module.num_batches_tracked.fill_(9)
    return model.eval()


# timm


def timm_vit(**changes: Any) -> VisionTransformer:
    options = {
        "img_size": (32, 24),
        "patch_size": 8,
        "num_classes": 7,
        "embed_dim": 30,
        "depth": 2,
        "num_heads": 3,
        "mlp_ratio": 50 / 30,
    }
    return VisionTransformer(**options | changes)


def timm_distilled() -> VisionTransformerDistilled:
    options = {"img_size": 24, "patch_size": 8, "num_classes": 7, "embed_dim": 30, "num_heads": 3}
    return VisionTransformerDistilled(depth=2, mlp_ratio=2, **options)


def timm_hybrid(layers: tuple[int, ...], size: int = 32) -> VisionTransformer:
    conv = partial(StdConv2dSame, eps=1e-8)
    common = {"stem_type": "same", "preact": False, "conv_layer": conv}
    channels = tuple(128 * 2**stage for stage in range(len(layers)))
    if layers:
        backbone = ResNetV2(
            layers=layers, channels=channels, stem_chs=32, num_classes=0, global_pool="", **common
        )
    else:
        backbone = create_resnetv2_stem(3, out_chs=32, **common)
    embed = partial(HybridEmbed, backbone=backbone)
    return timm_vit(img_size=size, patch_size=1 if layers else 4, embed_layer=embed)


def timm_resnet_d() -> VisionTransformer:
    sizes = {"stem_width": 8, "channels": (16, 32), "layers": (1, 2), "num_classes": 0}
    options = {"stem_type": "deep", "avg_down": True, "global_pool": ""}
    backbone = ResNet(Bottleneck, **sizes, **options)
    backbone.layer3 = backbone.layer4 = nn.Identity()
    embed = partial(HybridEmbed, backbone=backbone)
    return timm_vit(img_size=(30, 24), patch_size=1, embed_layer=embed)


def timm_mobileclip() -> VisionTransformer:
    stem = {"stride": (4, 2, 2), "kernel_size": (4, 2, 2), "padding": 0, "act_layer": nn.GELU}
    embed = partial(HybridEmbed, backbone=ConvStem(channels=(12, 12, 30), **stem), proj=False)
    return timm_vit(img_size=(67, 48), patch_size=1, embed_layer=embed, no_embed_class=True)


def timm_named(name: str, patch: int, **changes: Any) -> nn.Module:
    """An architecture of timm, narrow: 4 patches down and 3 across, 3 heads of 12."""
    options = {"embed_dim": 36, "num_heads": 3, "depth": 2, "num_classes": 7}
    options["img_size"] = (4 * patch, 3 * patch)
    return timm.create_model(name, **options | changes)


def timm_beit(**changes: Any) -> Beit:
    options = {"img_size": 32, "patch_size": 8, "num_classes": 7, "embed_dim": 36, "num_heads": 3}
    return Beit(**options | {"depth": 11, "mlp_ratio": 50 / 36} | changes)


def with_pre_logits() -> Shapes:
    """What timm 0.5 saved, with its `pre_logits.fc`."""
    shapes = shapes_of(timm_vit(img_size=24))
    head = {"head.weight": (7, 20), "pre_logits.fc.weight": (20, 30), "pre_logits.fc.bias": (20,)}
    return shapes | head


def shapes_of(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


# transformers

HF_SIZES = {
    "hidden_size": 30,
    "num_hidden_layers": 11,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "image_size": 24,
    "patch_size": 8,
}
HF_STATED = {"num_heads": 3, "norm_eps": 1e-12}


def hf(family: str, task: str, **changes: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**HF_SIZES | changes)
    return getattr(transformers, family + task)(config)


def hf_disk_name(name: str) -> str:
    """transformers' names before version 5, which it still writes; from its documentation."""
    for new, old in (
        ("layers.", "encoder.layer."),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ):
        name = name.replace(new, old)
    return name


# torchvision


def torchvision_vit(**changes: Any) -> TorchvisionViT:
    options = {
        "image_size": 24,
        "patch_size": 8,
        "num_layers": 11,
        "num_heads": 3,
        "hidden_dim": 30,
        "mlp_dim": 50,
        "num_classes": 7,
    }
    return TorchvisionViT(**options | changes)


def torchvision_old_name(name: str) -> str:
    return name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2")


# vit-pytorch

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
    """vit-pytorch's ViT before 1.4, whose names changed with nearly every release."""
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


def linear(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


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
FN_FN = {
    **IN_LIST,
    "norm1": "fn.norm",
    "to_qkv": "fn.fn.to_qkv",
    "to_out": "fn.fn.to_out.0",
    "norm2": "fn.norm",
    "fc1": "fn.fn.net.0",
    "fc2": "fn.fn.net.3",
}
FN = {
    **IN_LIST,
    "norm1": "norm",
    "to_qkv": "fn.to_qkv",
    "to_out": "fn.to_out.0",
    "norm2": "norm",
    "fc1": "fn.net.0",
    "fc2": "fn.net.3",
}


def old_simple(embedding: str, *, normed_patches: bool) -> Shapes:
    names = {"norm1": "norm", "to_qkv": "to_qkv", "to_out": "to_out"}
    names |= {"norm2": "net.0", "fc1": "net.1", "fc2": "net.3"}
    shapes = old_lucidrains(
        **IN_LIST, **names, embedding=embedding, head={}, normed_patches=normed_patches
    )
    head = linear("linear_head.0", 20) | linear("linear_head.1", 7, 20)
    absent = ("cls_token", "pos_embedding")
    return {
        name: shape
        for name, shape in (shapes | head).items()
        if name not in absent and not name.endswith("to_out.bias")
    }


# Google, big_vision, jeonsworld


def google_block(block: str, numbers: tuple[int, int, int, int]) -> Shapes:
    """Width 30, 3 heads of 10, MLP 50."""
    norm1, attention, norm2, mlp = numbers
    mha, dense = f"{block}/MultiHeadDotProductAttention_{attention}", f"{block}/MlpBlock_{mlp}"
    shapes: Shapes = {}
    for number in (norm1, norm2):
        shapes |= scale(f"{block}/LayerNorm_{number}", 30)
    for part in ("query", "key", "value"):
        shapes |= {f"{mha}/{part}/kernel": (30, 3, 10), f"{mha}/{part}/bias": (3, 10)}
    shapes |= kernel(f"{mha}/out", (3, 10, 30))
    return shapes | kernel(f"{dense}/Dense_0", (30, 50)) | kernel(f"{dense}/Dense_1", (50, 30))


def scale(name: str, *shape: int) -> Shapes:
    return {f"{name}/scale": shape, f"{name}/bias": shape}


def kernel(name: str, shape: tuple[int, ...]) -> Shapes:
    return {f"{name}/kernel": shape, f"{name}/bias": shape[-1:]}


OLD, LINEN = (0, 1, 2, 3), (0, 0, 1, 0)


def google(
    numbers: tuple[int, int, int, int] = OLD,
    *,
    depth: int = 11,
    cls: bool = True,
    pre_logits: bool = False,
    patch: tuple[int, ...] = (8, 6, 4),
) -> Shapes:
    shapes = kernel("embedding", (*patch, 30))
    if cls:
        shapes["cls"] = (1, 1, 30)
    shapes["Transformer/posembed_input/pos_embedding"] = (1, 9 + cls, 30)
    for i in range(depth):
        shapes |= google_block(f"Transformer/encoderblock_{i}", numbers)
    shapes |= scale("Transformer/encoder_norm", 30)
    if pre_logits:
        shapes |= kernel("pre_logits", (30, 20))
    return shapes | kernel("head", (20 if pre_logits else 30, 7))


def google_hybrid(ones: tuple[int, ...]) -> Shapes:
    """A stem of two stages, 1 and 2 units deep. `ones`: (1, 1, 1) for the old files."""
    shapes = google(patch=(1, 1, 256), depth=2)
    shapes["conv_root/kernel"] = (7, 7, 3, 32)
    shapes |= scale("gn_root", *ones, 32)
    reads = {(1, 1): 32, (2, 1): 128, (2, 2): 256}
    for (stage, unit), width in reads.items():
        name, mid = f"block{stage}/unit{unit}", 32 * stage
        shapes |= {f"{name}/conv1/kernel": (1, 1, width, mid)}
        shapes |= {f"{name}/conv2/kernel": (3, 3, mid, mid)}
        shapes |= {f"{name}/conv3/kernel": (1, 1, mid, 4 * mid)}
        shapes |= scale(f"{name}/gn1", *ones, mid) | scale(f"{name}/gn2", *ones, mid)
        shapes |= scale(f"{name}/gn3", *ones, 4 * mid)
        if unit == 1:
            shapes |= {f"{name}/conv_proj/kernel": (1, 1, width, 4 * mid)}
            shapes |= scale(f"{name}/gn_proj", *ones, 4 * mid)
    return shapes


def big_vision(
    prefix: str = "",
    *,
    cls: bool = False,
    pool: bool = False,
    pool_hidden: int = 55,
    positions: str = "pos_embedding",
) -> Shapes:
    shapes = kernel("embedding", (8, 8, 3, 32))
    if cls:
        shapes["cls"] = (1, 1, 32)
    if positions:
        shapes[positions] = (1, 9, 32)
    for i in range(11):
        block = google_block(f"Transformer/encoderblock_{i}", LINEN)
        shapes |= {name: widened(shape) for name, shape in block.items()}
    shapes |= scale("Transformer/encoder_norm", 32)
    if pool:
        mha = "MAPHead_0/MultiHeadDotProductAttention_0"
        shapes["MAPHead_0/probe"] = (1, 1, 32)
        for part in ("query", "key", "value"):
            shapes |= {f"{mha}/{part}/kernel": (32, 4, 8), f"{mha}/{part}/bias": (4, 8)}
        shapes |= kernel(f"{mha}/out", (4, 8, 32)) | scale("MAPHead_0/LayerNorm_0", 32)
        shapes |= kernel("MAPHead_0/MlpBlock_0/Dense_0", (32, pool_hidden))
        shapes |= kernel("MAPHead_0/MlpBlock_0/Dense_1", (pool_hidden, 32))
    shapes |= kernel("head", (32, 7))
    return {prefix + name: shape for name, shape in shapes.items()}


def widened(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Width 32 with 4 heads of 8."""
    return tuple({30: 32, 3: 4, 10: 8}.get(size, size) for size in shape)


def scanned(shapes: Shapes) -> Shapes:
    """The arrays of eleven blocks as one."""
    stacked = {}
    for name, shape in shapes.items():
        if "encoderblock_0/" in name:
            stacked[name.replace("encoderblock_0/", "encoderblock/")] = (11, *shape)
        elif "encoderblock_" not in name:
            stacked[name] = shape
    return stacked


def jeonsworld(*, hybrid: bool = False) -> Shapes:
    base = "transformer.embeddings"
    patch = (30, 256, 1, 1) if hybrid else (30, 4, 8, 6)
    shapes = {f"{base}.cls_token": (1, 1, 30), f"{base}.position_embeddings": (1, 10, 30)}
    shapes |= linear(f"{base}.patch_embeddings", *patch)
    shapes[f"{base}.patch_embeddings.bias"] = (30,)
    if hybrid:
        shapes |= jeonsworld_stem(f"{base}.hybrid_model")
    for i in range(2 if hybrid else 11):
        layer = f"transformer.encoder.layer.{i}"
        shapes |= linear(f"{layer}.attention_norm", 30) | linear(f"{layer}.ffn_norm", 30)
        for part in ("query", "key", "value", "out"):
            shapes |= linear(f"{layer}.attn.{part}", 30, 30)
        shapes |= linear(f"{layer}.ffn.fc1", 50, 30) | linear(f"{layer}.ffn.fc2", 30, 50)
    return shapes | linear("transformer.encoder.encoder_norm", 30) | linear("head", 7, 30)


def jeonsworld_stem(base: str) -> Shapes:
    shapes: Shapes = {f"{base}.root.conv.weight": (32, 3, 7, 7), **linear(f"{base}.root.gn", 32)}
    for (stage, unit), width in {(1, 1): 32, (2, 1): 128, (2, 2): 256}.items():
        name, mid = f"{base}.body.block{stage}.unit{unit}", 32 * stage
        shapes |= {f"{name}.conv1.weight": (mid, width, 1, 1)}
        shapes |= {f"{name}.conv2.weight": (mid, mid, 3, 3)}
        shapes |= {f"{name}.conv3.weight": (4 * mid, mid, 1, 1)}
        shapes |= linear(f"{name}.gn1", mid) | linear(f"{name}.gn2", mid)
        shapes |= linear(f"{name}.gn3", 4 * mid)
        if unit == 1:
            shapes |= {f"{name}.downsample.weight": (4 * mid, width, 1, 1)}
            shapes |= linear(f"{name}.gn_proj", 4 * mid)
    return shapes


PLAIN = {
    "embed_dim": 30,
    "depth": 11,
    "num_heads": 3,
    "head_dim": 10,
    "mlp_dim": 50,
    "image_size": (24, 24),
    "patch_size": (8, 8),
    "in_channels": 3,
    "num_classes": 7,
}
LUCIDRAINS = {
    "embed_dim": 20,
    "depth": 12,
    "num_heads": 3,
    "head_dim": 11,
    "mlp_dim": 50,
    "image_size": (24, 24),
    "patch_size": (8, 8),
    "in_channels": 3,
    "num_classes": 7,
}
GOOGLE = PLAIN | {"image_size": (24, 18), "patch_size": (8, 6), "in_channels": 4}
BIG_VISION = PLAIN | {"embed_dim": 32, "num_heads": 4, "head_dim": 8}
STEM = {"stem": True, "stem_width": 32, "depth": 2, "patch_size": (1, 1)}

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
        stated=USER | ON_16 | {"block_order": "post"},
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
TRANSFORMERS = {
    "hf ViT classifier": Specimen(
        dialect="hf_vit_memory",
        make=partial(hf, "ViT", "ForImageClassification", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"pooling": "token", "representation_size": 0},
        outputs=lambda found: found.logits,
    ),
    "hf ViT classifier on disk, four channels, no bias": Specimen(
        dialect="hf_vit",
        make=partial(
            hf,
            "ViT",
            "ForImageClassification",
            num_labels=2,
            num_channels=4,
            image_size=[24, 32],
            qkv_bias=False,
        ),
        stated=HF_STATED | {"image_size": (24, 32)},
        expected=PLAIN
        | {"num_classes": 2, "in_channels": 4, "image_size": (24, 32), "qkv_bias": False},
        rename=hf_disk_name,
        outputs=lambda found: found.logits,
    ),
    "hf ViT with pooler": Specimen(
        dialect="hf_vit_pooler_memory",
        make=partial(hf, "ViT", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"num_classes": 0, "representation_size": 30},
        outputs=lambda found: found.pooler_output,
    ),
    "hf ViT with pooler on disk": Specimen(
        dialect="hf_vit_pooler",
        make=partial(hf, "ViT", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"num_classes": 0, "representation_activation": "tanh"},
        rename=hf_disk_name,
        outputs=lambda found: found.pooler_output,
    ),
    "hf DeiT with teacher": Specimen(
        dialect="hf_deit_teacher_memory",
        make=partial(hf, "DeiT", "ForImageClassificationWithTeacher", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "dist_head": True},
        outputs=lambda found: found.logits,
    ),
    "hf DeiT with teacher on disk": Specimen(
        dialect="hf_deit_teacher",
        make=partial(hf, "DeiT", "ForImageClassificationWithTeacher", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "dist_head": True},
        rename=hf_disk_name,
        outputs=lambda found: found.logits,
    ),
    "hf DeiT classifier on disk": Specimen(
        dialect="hf_vit",
        make=partial(hf, "DeiT", "ForImageClassification", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "dist_head": False, "pooling": "token"},
        rename=hf_disk_name,
        written="hf_deit",
        outputs=lambda found: found.logits,
    ),
    "hf I-JEPA on disk": Specimen(
        dialect="hf_vit",
        make=partial(hf, "IJepa", "ForImageClassification", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"class_token": False, "pooling": "avg"},
        rename=hf_disk_name,
        written="hf_ijepa",
        outputs=lambda found: found.logits,
    ),
    "hf MSN": Specimen(
        dialect="hf_vit_memory",
        make=partial(hf, "ViTMSN", "ForImageClassification", num_labels=7),
        stated=HF_STATED | {"norm_eps": 1e-6},
        expected=PLAIN,
        outputs=lambda found: found.logits,
    ),
    "hf MAE encoder": Specimen(
        dialect="hf_vit_memory",
        make=partial(hf, "ViTMAE", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"num_classes": 0},
        outputs=lambda found: None,  # it shuffles and drops patches
    ),
}
TORCHVISION = {
    "torchvision": Specimen(
        dialect="torchvision",
        make=torchvision_vit,
        stated=USER,
        expected=PLAIN | {"pooling": "token"},
    ),
    "torchvision with representation": Specimen(
        dialect="torchvision",
        make=partial(torchvision_vit, representation_size=20),
        stated=USER,
        expected=PLAIN | {"representation_size": 20, "representation_activation": "tanh"},
    ),
    "torchvision, older names": Specimen(
        dialect="torchvision",
        make=torchvision_vit,
        stated=USER,
        expected=PLAIN,
        rename=torchvision_old_name,
        rewritten=lambda name: name.replace("linear_1", "0").replace("linear_2", "3"),
    ),
}
VIT_PYTORCH = {
    "lucidrains": Specimen(
        dialect="lucidrains",
        make=partial(vit_pytorch.ViT, **LUCID | {"depth": 11}),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"depth": 11, "pooling": "token", "patch_pre_norm": True},
    ),
    "lucidrains, four channels": Specimen(
        dialect="lucidrains",
        make=partial(vit_pytorch.ViT, **LUCID | {"patch_size": (8, 6), "channels": 4}),
        stated=USER | GRID | {"patch_size": (8, 6)},
        expected=LUCIDRAINS | GRID | {"depth": 3, "patch_size": (8, 6), "in_channels": 4},
    ),
    "lucidrains, one channel, one head": Specimen(
        dialect="lucidrains",
        make=partial(
            vit_pytorch.ViT, **LUCID | {"heads": 1, "dim_head": 20, "channels": 1, "image_size": 24}
        ),
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
        make=partial(vit_pytorch.ViT, **LUCID | {"pool": "mean"}),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"depth": 3, "pooling": "avg", "class_token": False},
    ),
    "lucidrains simple": Specimen(
        dialect="lucidrains_simple",
        make=partial(vit_pytorch.SimpleViT, **LUCID | {"num_classes": 2, "channels": 1}),
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
        make=partial(SimpleViTWithRegisters, **LUCID, num_register_tokens=5),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"depth": 3, "num_registers": 5},
    ),
}
OLD_LUCIDRAINS = {
    "lucidrains_1_0": Specimen(
        dialect="lucidrains_1_0",
        make=partial(
            old_lucidrains,
            **FN,
            embedding="to_patch_embedding.2",
            head=heads(_0=(20,), _1=(7, 20)),
            normed_patches=True,
        ),
        stated=USER,
        expected=LUCIDRAINS | {"fc_norm": True, "final_norm": False, "patch_norm": True},
    ),
    "lucidrains_0_10": Specimen(
        dialect="lucidrains_0_10",
        make=partial(
            old_lucidrains,
            **FN,
            embedding="to_patch_embedding.1",
            head=heads(_0=(20,), _1=(7, 20)),
        ),
        stated=USER,
        expected=LUCIDRAINS | {"fc_norm": True, "patch_norm": False, "patch_pre_norm": False},
    ),
    "lucidrains_0_7": Specimen(
        dialect="lucidrains_0_7",
        make=partial(
            old_lucidrains,
            **FN_FN,
            embedding="to_patch_embedding.1",
            head=heads(_0=(20,), _1=(7, 20)),
        ),
        stated=USER,
        expected=LUCIDRAINS | {"fc_norm": True},
    ),
    "lucidrains_0_3": Specimen(
        dialect="lucidrains_0_3",
        make=partial(
            old_lucidrains,
            **FN_FN,
            embedding="patch_to_embedding",
            head=heads(_0=(20,), _1=(7, 20)),
        ),
        stated=USER | {"attention_scale": 20**-0.5},
        expected=LUCIDRAINS | {"fc_norm": True},
    ),
    "lucidrains_0_2_2": Specimen(
        dialect="lucidrains_0_2_2",
        make=partial(
            old_lucidrains,
            **FN_FN,
            embedding="patch_to_embedding",
            head=heads(_0=(20,), _1=(50, 20), _4=(7, 50)),
        ),
        stated=USER,
        expected=LUCIDRAINS
        | {
            "representation_size": 50,
            "representation_activation": "gelu",
            "attention_scale": 20**-0.5,  # by the width of the model, not of a head
        },
    ),
    "lucidrains_0_2_0": Specimen(
        dialect="lucidrains_0_2_0",
        make=partial(
            old_lucidrains,
            **FN_FN | {"to_out": "fn.fn.to_out", "fc2": "fn.fn.net.2"},
            embedding="patch_to_embedding",
            head=heads(_0=(20,), _1=(50, 20), _3=(7, 50)),
        ),
        stated=USER,
        expected=LUCIDRAINS | {"representation_size": 50, "fc_norm": True},
    ),
    "lucidrains_0_0_4": Specimen(
        dialect="lucidrains_0_0_4",
        make=partial(
            old_lucidrains,
            **FN_FN | {"to_out": "fn.fn.to_out", "fc2": "fn.fn.net.2"},
            embedding="patch_to_embedding",
            head=heads(_0=(50, 20), _2=(7, 50)),
        ),
        stated=USER,
        expected=LUCIDRAINS | {"representation_size": 50, "fc_norm": False, "final_norm": False},
    ),
    "lucidrains_0_0_1": Specimen(
        dialect="lucidrains_0_0_1",
        make=partial(
            old_lucidrains,
            **FN_FN
            | {"to_out": "fn.fn.to_out", "fc2": "fn.fn.net.2"}
            | {
                "attention": lambda i: f"transformer.net.{2 * i}",
                "feedforward": lambda i: f"transformer.net.{2 * i + 1}",
            },
            embedding="patch_to_embedding",
            head=heads(_0=(50, 20), _2=(7, 50)),
        ),
        stated=USER,
        expected=LUCIDRAINS | {"representation_size": 50},
    ),
    "lucidrains_simple_1_0": Specimen(
        dialect="lucidrains_simple_1_0",
        make=partial(old_simple, "to_patch_embedding.2", normed_patches=True),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"fc_norm": True, "position_embedding": "sincos2d"},
    ),
    "lucidrains_simple_0_35": Specimen(
        dialect="lucidrains_simple_0_35",
        make=partial(old_simple, "to_patch_embedding.1", normed_patches=False),
        stated=USER | GRID,
        expected=LUCIDRAINS | GRID | {"fc_norm": True, "patch_norm": False},
    ),
}
BY_HAND = {
    "timm before 0.6": Specimen(
        dialect="timm_2020",
        make=with_pre_logits,
        stated=USER,
        expected={"representation_size": 20, "representation_activation": "tanh", "num_classes": 7},
    ),
    "google": Specimen(
        dialect="google_jax",
        make=google,
        expected=GOOGLE | {"pooling": "token", "activation": "gelu_tanh", "no_embed_class": False},
    ),
    "google with pre_logits": Specimen(
        dialect="google_jax",
        make=partial(google, pre_logits=True),
        expected=GOOGLE | {"representation_size": 20},
    ),
    "google, mean of patches": Specimen(
        dialect="google_jax",
        make=partial(google, cls=False),
        expected=GOOGLE | {"pooling": "avg", "class_token": False},
    ),
    "google, counted by class": Specimen(
        dialect="google_jax_linen",
        make=partial(google, LINEN),
        expected=GOOGLE | {"pooling": "token"},
    ),
    "google hybrid": Specimen(
        dialect="google_jax",
        make=partial(google_hybrid, ()),
        expected=STEM | {"stem_depths": (1, 2), "stem_style": "google", "image_size": (24, 24)},
    ),
    "google hybrid, old norms": Specimen(
        dialect="google_jax",
        make=partial(google_hybrid, (1, 1, 1)),
        expected=STEM | {"stem_depths": (1, 2)},
        squeezed=True,
    ),
    "big_vision token": Specimen(
        dialect="big_vision",
        make=partial(big_vision, "params/", cls=True),
        expected=BIG_VISION | {"pooling": "token", "no_embed_class": True},
    ),
    "big_vision mean": Specimen(
        dialect="big_vision",
        make=partial(big_vision, positions="Transformer/pos_embedding"),
        expected=BIG_VISION | {"pooling": "avg", "class_token": False},
        rewritten=lambda name: "params/" + name.replace("Transformer/pos_", "pos_"),
    ),
    "big_vision pooled by attention": Specimen(
        dialect="big_vision",
        make=partial(big_vision, "opt/target/", pool=True),
        expected=BIG_VISION | {"pooling": "map", "pool_heads": 4, "pool_mlp_dim": 55},
        rewritten=lambda name: name.replace("opt/target/", "params/"),
    ),
    "big_vision, computed positions": Specimen(
        dialect="big_vision",
        make=partial(big_vision, "params/", positions=""),
        stated={"image_size": (24, 40)},
        expected=BIG_VISION | {"position_embedding": "sincos2d", "image_size": (24, 40)},
    ),
    "big_vision scanned": Specimen(
        dialect="big_vision_scan",
        make=lambda: scanned(big_vision("params/", pool=True)),
        expected=BIG_VISION | {"pooling": "map", "depth": 11},
    ),
    "jeonsworld": Specimen(
        dialect="jeonsworld",
        make=jeonsworld,
        stated=USER,
        expected=GOOGLE | {"activation": "gelu", "pooling": "token"},
    ),
    "jeonsworld hybrid": Specimen(
        dialect="jeonsworld",
        make=partial(jeonsworld, hybrid=True),
        stated=USER,
        expected=STEM | {"stem_depths": (1, 2), "stem_style": "jeonsworld"},
    ),
}
MODELS = {**TIMM, **TIMM_KINDS, **TRANSFORMERS, **TORCHVISION, **VIT_PYTORCH}
SPECIMENS = {**MODELS, **OLD_LUCIDRAINS, **BY_HAND}
