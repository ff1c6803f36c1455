"""Files that timm's loaders read, spelled by hand from their projects' sources, all random."""

from math import isqrt

import torch

from tests.originals.spelling import (
    DEPTH,
    HEADS,
    HIDDEN,
    PATCHES,
    WIDTH,
    Shapes,
    Tensors,
    filled,
    pair,
    prefixed,
)

D, M = WIDTH, HIDDEN
HEAD_DIM = WIDTH // HEADS
LABELS = 7
MOBILECLIP_WIDTH = 768  # timm has no other


def patches(name: str, *, bias: bool = True, size: int = 8) -> Shapes:
    shapes = {f"{name}.weight": (D, 3, size, size), f"{name}.bias": (D,)}
    return shapes if bias else {f"{name}.weight": (D, 3, size, size)}


def without_bias(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape}


def eva02(*, clip: bool = False, packed: bool = False) -> Tensors:
    """baaivision/EVA, EVA-02/asuka/modeling_finetune.py; EVA-CLIP/rei/eva_clip/eva_vit_model.py."""
    shapes: Shapes = {"cls_token": (1, 1, D), "pos_embed": (1, PATCHES + 1, D)}
    shapes |= patches("patch_embed.proj")
    rotations = {"rope.freqs_cos": _angles().cos()}
    for i in range(DEPTH):
        block = f"blocks.{i}"
        shapes |= pair(f"{block}.norm1", D) | pair(f"{block}.norm2", D)
        shapes |= {f"{block}.attn.q_bias": (D,), f"{block}.attn.v_bias": (D,)}
        rotations[f"{block}.attn.rope.freqs_sin"] = _angles().sin()
        shapes |= pair(f"{block}.attn.proj", D, D) | pair(f"{block}.mlp.w3", D, M)
        if packed:
            shapes |= without_bias(f"{block}.attn.qkv", 3 * D, D)
            shapes |= pair(f"{block}.mlp.w12", 2 * M, D)
            continue
        for part in ("q_proj", "k_proj", "v_proj"):
            shapes |= without_bias(f"{block}.attn.{part}", D, D)
        shapes |= pair(f"{block}.mlp.w1", M, D) | pair(f"{block}.mlp.w2", M, D)
        shapes |= pair(f"{block}.mlp.ffn_ln", M)
        if clip:
            shapes |= pair(f"{block}.attn.inner_attn_ln", D)
    last = pair("norm" if clip else "fc_norm", D)
    return filled(shapes | last | pair("head", LABELS, D)) | rotations


def _angles() -> torch.Tensor:
    """(PATCHES, HEAD_DIM): of a square grid, scaled to 16 by 16."""
    side = isqrt(PATCHES)
    steps, periods = torch.arange(side) * 16 / side, 10000 ** (torch.arange(4) * 4 / HEAD_DIM)
    axis = (steps[:, None] / periods).repeat_interleave(2, dim=1)
    return torch.cat([axis.repeat_interleave(side, 0), axis.repeat(side, 1)], dim=1)


def eva01(*, clip: bool = False, relative: bool = False) -> Tensors:
    """baaivision/EVA, EVA-01/eva/modeling_finetune.py; EVA-CLIP/rei/eva_clip/eva_vit_model.py."""
    shapes: Shapes = {"cls_token": (1, 1, D)} | patches("patch_embed.proj")
    if not relative:
        shapes["pos_embed"] = (1, PATCHES + 1, D)
    for i in range(DEPTH):
        block = f"blocks.{i}"
        shapes |= pair(f"{block}.norm1", D) | pair(f"{block}.norm2", D)
        shapes |= {f"{block}.attn.q_bias": (D,), f"{block}.attn.v_bias": (D,)}
        shapes |= without_bias(f"{block}.attn.qkv", 3 * D, D) | pair(f"{block}.attn.proj", D, D)
        shapes |= pair(f"{block}.mlp.fc1", M, D) | pair(f"{block}.mlp.fc2", D, M)
        if relative:  # a grid of 3 by 3, and three ways between the class token and patches
            shapes |= {f"{block}.attn.relative_position_bias_table": (5 * 5 + 3, HEADS)}
            shapes |= {f"{block}.gamma_1": (D,), f"{block}.gamma_2": (D,)}
    last = pair("norm" if clip else "fc_norm", D)
    return filled(shapes | last | pair("head", LABELS, D))


def sapiens2() -> Tensors:
    """facebookresearch/sapiens2, sapiens/backbones/standalone/sapiens2.py."""
    shapes: Shapes = {"cls_token": (1, 1, D), "storage_tokens": (1, 8, D), "mask_token": (1, 1, D)}
    shapes |= patches("patch_embed.projection") | without_bias("ln1", D)
    for i in range(DEPTH):
        block, kv = f"blocks.{i}", HEAD_DIM if i % 2 else D  # every other block shares one head
        shapes |= without_bias(f"{block}.ln1", D) | without_bias(f"{block}.ln2", D)
        shapes |= pair(f"{block}.attn.wq", D, D) | pair(f"{block}.attn.wk", kv, D)
        shapes |= pair(f"{block}.attn.wv", kv, D) | pair(f"{block}.attn.proj", D, D)
        shapes |= without_bias(f"{block}.attn.q_norm", HEAD_DIM)
        shapes |= without_bias(f"{block}.attn.k_norm", HEAD_DIM)
        shapes |= {f"{block}.attn.gamma.weight": (D,)}
        shapes |= pair(f"{block}.ffn.w12", 2 * M, D) | pair(f"{block}.ffn.w3", D, M)
    quarter = HEAD_DIM // 4
    return filled(shapes) | {"rope_embed.periods": 100 ** (torch.arange(quarter) / quarter)}


def aimv2(*, native: bool = False) -> Tensors:
    """apple/ml-aim, aim-v2/aim/v2/torch/{models,layers}.py."""
    shapes: Shapes = patches("preprocessor.patchifier.proj")
    shapes |= without_bias("preprocessor.patchifier.norm", D)
    if not native:
        shapes["preprocessor.pos_embed"] = (1, PATCHES, D)
    for i in range(DEPTH):
        block = f"trunk.blocks.{i}"
        shapes |= without_bias(f"{block}.norm_1", D) | without_bias(f"{block}.norm_2", D)
        shapes |= without_bias(f"{block}.attn.qkv", 3 * D, D)
        shapes |= without_bias(f"{block}.attn.proj", D, D)
        shapes |= without_bias(f"{block}.mlp.fc1", M, D) | without_bias(f"{block}.mlp.fc3", M, D)
        shapes |= without_bias(f"{block}.mlp.fc2", D, M)
    return filled(shapes | without_bias("trunk.post_trunk_norm", D))


def mobileclip() -> Tensors:
    """apple/ml-mobileclip, mobileclip/models/vit.py and image_encoder.py."""
    base, width, stem = "image_encoder.model.", MOBILECLIP_WIDTH, MOBILECLIP_WIDTH // 4
    shapes: Shapes = {
        "cls_token": (1, 1, width),
        "pos_embed.pos_embed.pos_embed": (1, 1, PATCHES, width),
    }
    statistics: Tensors = {}
    torch.manual_seed(7)
    for number, (inner, side) in enumerate(((3, 4), (stem, 2))):
        name = f"{base}patch_emb.{number}.block"
        shapes |= {f"patch_emb.{number}.block.conv.weight": (stem, inner, side, side)}
        shapes |= pair(f"patch_emb.{number}.block.norm", stem)
        statistics[f"{name}.norm.running_mean"] = torch.randn(stem) * 0.1
        statistics[f"{name}.norm.running_var"] = torch.rand(stem) + 0.5
        statistics[f"{name}.norm.num_batches_tracked"] = torch.tensor(3)
    shapes |= {
        "patch_emb.2.block.conv.weight": (width, stem, 2, 2),
        "patch_emb.2.block.conv.bias": (width,),
    }
    for i in range(2):
        attention, mlp = f"transformer.{i}.pre_norm_mha", f"transformer.{i}.pre_norm_ffn"
        shapes |= pair(f"{attention}.0", width) | pair(f"{attention}.1.qkv_proj", 3 * width, width)
        shapes |= pair(f"{attention}.1.out_proj", width, width) | pair(f"{mlp}.0", width)
        shapes |= pair(f"{mlp}.1", M, width) | pair(f"{mlp}.4", width, M)
    shapes |= pair("post_transformer_norm", width) | {"classifier.proj": (width, LABELS)}
    tensors = {base + name: tensor for name, tensor in filled(shapes).items()}
    text = {"text_encoder.embedding_layer.weight": torch.ones(9, 8), "logit_scale": torch.ones(1)}
    return tensors | statistics | text


def perception(*, side: int, pooled: bool = True, scaled: bool = False) -> Tensors:
    """facebookresearch/perception_models, core/vision_encoder/pe.py; `side` patches of a pixel."""
    shapes: Shapes = {"class_embedding": (D,), "positional_embedding": (side**2 + 1, D)}
    shapes |= patches("conv1", bias=False, size=1) | pair("ln_pre", D)
    for i in range(DEPTH):
        block = f"transformer.resblocks.{i}"
        shapes |= pair(f"{block}.ln_1", D) | pair(f"{block}.ln_2", D)
        shapes |= {
            f"{block}.attn.in_proj_weight": (3 * D, D),
            f"{block}.attn.in_proj_bias": (3 * D,),
        }
        shapes |= pair(f"{block}.attn.out_proj", D, D)
        shapes |= pair(f"{block}.mlp.c_fc", M, D) | pair(f"{block}.mlp.c_proj", D, M)
        if scaled:
            shapes |= {f"{block}.ls_1.gamma": (D,), f"{block}.ls_2.gamma": (D,)}
    if pooled:
        shapes |= pair("ln_post", D) | {"proj": (D, LABELS), "attn_pool.probe": (1, 1, D)}
        shapes |= {"attn_pool.attn.in_proj_weight": (3 * D, D)}
        shapes |= {"attn_pool.attn.in_proj_bias": (3 * D,)}
        shapes |= pair("attn_pool.attn.out_proj", D, D) | pair("attn_pool.layernorm", D)
        shapes |= pair("attn_pool.mlp.c_fc", 4 * D, D) | pair("attn_pool.mlp.c_proj", D, 4 * D)
    return filled(shapes)


def beit3() -> Tensors:
    """microsoft/unilm, beit3/modeling_finetune.py; torchscale/component/multiway_network.py."""
    shapes: Shapes = {"vision_embed.cls_token": (1, 1, D), "vision_embed.mask_token": (1, 1, D)}
    shapes |= patches("vision_embed.proj") | {"text_embed.weight": (11, D)}
    shapes |= {"encoder.embed_positions.A.weight": (PATCHES + 3, D)}
    shapes |= {"encoder.embed_positions.B.weight": (20, D)}
    for i in range(DEPTH):
        for branch in "AB":
            layer, attn = f"encoder.layers.{i}", f"encoder.layers.{i}.self_attn"
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                shapes |= pair(f"{attn}.{part}.{branch}", D, D)
            shapes |= pair(f"{attn}.inner_attn_ln.{branch}", D)
            shapes |= pair(f"{layer}.self_attn_layer_norm.{branch}", D)
            shapes |= pair(f"{layer}.final_layer_norm.{branch}", D)
            shapes |= pair(f"{layer}.ffn.{branch}.fc1", M, D)
            shapes |= pair(f"{layer}.ffn.{branch}.ffn_layernorm", M)
            shapes |= pair(f"{layer}.ffn.{branch}.fc2", D, M)
    tensors = {f"beit3.{name}": tensor for name, tensor in filled(shapes).items()}
    tensors["beit3.encoder.embed_positions.A.weight"][:2] = 0  # which nothing reads or writes
    return tensors | filled(pair("fc_norm", D) | pair("head", LABELS, D))


def mmseg() -> Tensors:
    """open-mmlab/mmsegmentation, mmseg/models/backbones/vit.py, with final_norm."""
    shapes: Shapes = {"cls_token": (1, 1, D), "pos_embed": (1, PATCHES + 1, D)}
    shapes |= patches("patch_embed.projection") | pair("ln1", D)
    for i in range(DEPTH):
        layer = f"layers.{i}"
        shapes |= pair(f"{layer}.ln1", D) | pair(f"{layer}.ln2", D)
        shapes |= {f"{layer}.attn.attn.in_proj_weight": (3 * D, D)}
        shapes |= {f"{layer}.attn.attn.in_proj_bias": (3 * D,)}
        shapes |= pair(f"{layer}.attn.attn.out_proj", D, D)
        shapes |= pair(f"{layer}.ffn.layers.0.0", M, D) | pair(f"{layer}.ffn.layers.1", D, M)
    return prefixed("backbone.", filled(shapes))


def text_tower() -> Tensors:
    """What CLIP's files have beside `visual.`."""
    return filled({"positional_embedding": (5, 8), "transformer.resblocks.0.ln_1.weight": (8,)})
