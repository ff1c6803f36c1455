"""What timm's models with positions on a grid of their own, or merged patches, are.

For `make_architectures.py`: what tensors cannot show of naflexvit, qwen3_vit, gemma4_vit and
deepseek_vit, and sizes.
"""

from typing import Any

import torch
from timm.layers import LayerNorm, RmsNorm, RmsNormFp32
from timm.layers.activations import GELUTanh
from timm.models.deepseek_vit import DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.gemma4_vit import Gemma4VitClassifier, Gemma4VitEncoder
from timm.models.naflexvit import NaFlexVit
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder

CLASSIFIERS = (DeepseekVitClassifier, Gemma4VitClassifier, Qwen3VitClassifier)
ENCODERS = (DeepseekVitEncoder, Gemma4VitEncoder, Qwen3VitEncoder)
MODULES = ("naflexvit", "deepseek_vit", "qwen3_vit", "gemma4_vit")


def facts(model: torch.nn.Module) -> dict[str, Any]:
    """A model's row."""
    if isinstance(model, NaFlexVit):
        return {**_common(model, model), **_naflex(model)}
    encoder = getattr(model, "encoder", model)
    kinds = {"Deepseek": _deepseek, "Qwen3Vit": _qwen3, "Gemma4Vi": _gemma4}
    found = {**_common(model, encoder), **kinds[type(model).__name__[:8]](encoder)}
    if isinstance(model, CLASSIFIERS):
        found["bare_fc_norm"] = not isinstance(model.norm, torch.nn.Identity)
    return found


def _common(model: torch.nn.Module, encoder: torch.nn.Module) -> dict[str, Any]:
    names = {name for name, _ in encoder.named_parameters()}
    patch = encoder.embeds.patch_size if isinstance(model, NaFlexVit) else _patch_size(encoder)
    attention = next(m for m in encoder.blocks.modules() if hasattr(m, "num_heads"))
    norms = [
        m for m in encoder.blocks.modules() if isinstance(m, LayerNorm | RmsNorm | RmsNormFp32)
    ]
    pooling = {"merge": "none", "align": "none", "soft": "none", "": "none"}
    return {
        "image_size": list(model.default_cfg["input_size"][1:]),
        "patch_size": list(patch),
        "embed_dim": encoder.embed_dim,
        "depth": len(encoder.blocks),
        "num_heads": attention.num_heads,
        "activation": _activation(encoder),
        "norm_eps": norms[0].eps,
        "norm": "rms" if isinstance(norms[0], RmsNorm | RmsNormFp32) else "layer",
        "pooling": pooling.get(model.global_pool, model.global_pool),
        "layer_scale": any(name.endswith(".gamma") for name in names),
    }


def _patch_size(encoder: torch.nn.Module) -> tuple[int, int]:
    return tuple(encoder.patch_embed.patch_size)


def _activation(encoder: torch.nn.Module) -> str:
    kinds = {type(m): m for m in encoder.blocks.modules()}
    if torch.nn.SiLU in kinds:
        return "silu"
    gelu = kinds.get(torch.nn.GELU)
    tanh = GELUTanh in kinds or getattr(gelu, "approximate", "none") == "tanh"
    return "gelu_tanh" if tanh else "gelu"


def _naflex(model: NaFlexVit) -> dict[str, Any]:
    embeds = model.embeds
    axes = embeds.pos_embed_type == "factorized"
    mode = embeds.pos_embed_interp_mode
    ends = {(True, False): "_antialias", (False, True): "_align_corners", (False, False): ""}
    how = ends[embeds.pos_embed_antialias, embeds.pos_embed_align_corners]
    return {
        "class_token": model.has_class_token,
        "num_registers": model.num_reg_tokens,
        "position_embedding": "axes" if axes else "grid",
        "position_square": embeds.pos_embed_ar_preserving,
        "position_resampling": "bilinear" if axes else f"{mode}{how}",
        "qkv_bias": model.blocks[0].attn.qkv.bias is not None,
        "pool_include_prefix": model.pool_include_prefix,
        "final_norm": not isinstance(model.norm, torch.nn.Identity),
        "fc_norm": not isinstance(model.fc_norm, torch.nn.Identity),
    }


def _rotated(encoder: torch.nn.Module) -> dict[str, Any]:
    found = {"class_token": False, "rope": "axial", "rope_half": True}
    return found | {"rope_temperature": float(encoder.rope.temperature)}


def _deepseek(encoder: DeepseekVitEncoder) -> dict[str, Any]:
    return {
        **_rotated(encoder),
        "position_embedding": "none",
        "gated_mlp": True,
        "mlp_bias": False,
        "merge_size": encoder.aligner.downsample_ratio if encoder.aligner else 0,
    }


def _qwen3(encoder: Qwen3VitEncoder) -> dict[str, Any]:
    return {
        **_rotated(encoder),
        "position_embedding": "grid",
        "position_resampling": "bilinear_align_corners",
        "final_norm": encoder.merger is not None,
        "merge_size": encoder.merger.merge_size if encoder.merger else 0,
    }


def _gemma4(encoder: Gemma4VitEncoder) -> dict[str, Any]:
    merges = encoder.global_pool == "soft"
    return {
        "class_token": False,
        "attention_scale": 1.0,
        "position_embedding": "axes",
        "position_resampling": "first",
        "rope": "axial",
        "rope_half": True,
        "rope_by_axis": True,
        "rope_indexing": "xy",
        "rope_temperature": float(encoder.rotary_emb.rope_theta),
        "centred_pixels": True,
        "block_order": "sandwich",
        "qkv_bias": False,
        "proj_bias": False,
        "mlp_bias": False,
        "qk_norm": True,
        "v_norm": True,
        "gated_mlp": True,
        "clipped_linears": encoder.use_clipped_linears,
        "final_norm": False,
        "merge_size": encoder.pooler.pooling_kernel_size if merges else 0,
    }
