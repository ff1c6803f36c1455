"""What timm's models with windows, or with relative positions of an MLP, are.

For `make_architectures.py`: what tensors cannot show of vision_transformer_relpos and
vision_transformer_sam, and sizes.
"""

from typing import Any

import torch
from timm.layers import RelPosMlp
from timm.models.vision_transformer_relpos import ResPostRelPosBlock, VisionTransformerRelPos
from timm.models.vision_transformer_sam import VisionTransformerSAM

MODULES = ("vision_transformer_relpos", "vision_transformer_sam")


def facts(model: torch.nn.Module) -> dict[str, Any]:
    """A model's row."""
    kinds = {VisionTransformerRelPos: _relpos, VisionTransformerSAM: _sam}
    return {**_common(model), **kinds[type(model)](model)}


def _common(model: torch.nn.Module) -> dict[str, Any]:
    block = model.blocks[0]
    return {
        "image_size": list(model.patch_embed.img_size),
        "patch_size": list(model.patch_embed.patch_size),
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        "activation": {torch.nn.GELU: "gelu"}[type(block.mlp.act)],
        "norm_eps": block.norm1.eps,
        "pooling": model.global_pool,
        "class_token": getattr(model, "cls_token", None) is not None,
        "qkv_bias": block.attn.qkv.bias is not None,
        "layer_scale": hasattr(getattr(block, "ls1", None), "gamma"),
    }


def _relpos(model: VisionTransformerRelPos) -> dict[str, Any]:
    shared = model.shared_rel_pos is not None
    positions = model.shared_rel_pos if shared else model.blocks[0].attn.rel_pos
    assert isinstance(positions, RelPosMlp)
    assert positions.mode == "cr"
    return {
        "position_embedding": "none",
        "relative_positions": "shared_mlp" if shared else "block_mlp",
        "relative_mlp_dim": positions.mlp.fc1.out_features,
        "block_order": "res_post_norm"
        if isinstance(model.blocks[0], ResPostRelPosBlock)
        else "pre",
        "final_norm": not isinstance(model.norm, torch.nn.Identity),
        "fc_norm": not isinstance(model.fc_norm, torch.nn.Identity),
    }


def _sam(model: VisionTransformerSAM) -> dict[str, Any]:
    sides = [block.window_size for block in model.blocks]
    convolutions = isinstance(model.neck, torch.nn.Sequential)
    eps = {} if convolutions else {"final_norm_eps": model.neck.eps}
    return {
        "position_embedding": "none" if model.pos_embed is None else "grid",
        "relative_positions": "decomposed",
        "window_size": max(sides),
        "global_blocks": [i for i, side in enumerate(sides) if not side],
        "final_norm": not convolutions,
        **eps,
        "neck_dim": model.num_features if convolutions else 0,
    }
