"""Every class of transformers that vitconvert reads beside ViT's kin, tiny and random.

What is expected of each is stated here from transformers' sources, not from weights_map/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.packages import transformers
from tests.small_models import randomise_calmly

DEEP = {"num_hidden_layers": 11}  # block 10 comes after block 1 in no dictionary
SIZES = {
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 24,
    "patch_size": 8,
}
MLP = {"intermediate_size": 50}
TEXT = {
    "hidden_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 30,
    "vocab_size": 50,
    "max_position_embeddings": 6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ENCODERS = ("dinov2", "dinov2_with_registers", "beit", "data2vec_vision", "vision_model")
_ENCODERS += ("vit", "deit", "ijepa")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A class, the arguments of its configuration, and what must be found out about it."""

    name: str
    arguments: Mapping[str, Any]
    dialect: str
    expected: Mapping[str, Any] = field(default_factory=dict)
    towers: bool = False  # whether the configuration is one of an image and a text tower
    ignored: tuple[str, ...] = ()  # beginnings of the names that play no part

    @property
    def config(self) -> str:
        return getattr(transformers, self.name).config_class.__name__

    def model(self) -> nn.Module:
        arguments = dict(self.arguments)
        if self.towers:
            own = {k: arguments.pop(k) for k in ("num_labels", "projection_dim") if k in arguments}
            arguments = {**own, "vision_config": arguments, "text_config": TEXT}
        torch.manual_seed(5)
        config = getattr(transformers, self.config)(**arguments)
        return randomise_calmly(getattr(transformers, self.name)(config))


def encoder(model: nn.Module) -> nn.Module:
    """The part that gives the tokens."""
    return next((getattr(model, name) for name in _ENCODERS if hasattr(model, name)), model)


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor) -> tuple[Tensor | None, Tensor]:
    """What the class gives in the end, if it is not the tokens; and its tokens."""
    given = inputs(model, images)
    tokens = encoder(model)(**given).last_hidden_state
    if hasattr(model, "get_image_features"):
        return model.get_image_features(**given).pooler_output, tokens
    found = model(**given)
    names = ("logits", "image_embeds", "pooler_output")
    final = (getattr(found, name, None) for name in names)
    return next((tensor for tensor in final if tensor is not None), None), tokens


def inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    if not type(model).__name__.startswith("Siglip2"):
        return {"pixel_values": images}
    config = getattr(model.config, "vision_config", model.config)
    side, (height, width) = config.patch_size, images.shape[-2:]
    processor = transformers.Siglip2ImageProcessor(
        patch_size=side,
        max_num_patches=(height // side) * (width // side),
        do_resize=False,
        do_rescale=False,
        do_normalize=False,
    )
    return dict(processor(list(images), return_tensors="pt"))


def _case(name: str, dialect: str, changes: Mapping[str, Any], **more: Any) -> Case:
    return Case(name=name, dialect=dialect, arguments=SIZES | changes, **more)


LABELS = {"num_labels": 7}
MASK = ("embeddings.mask_token", "dinov2.embeddings.mask_token")
MASK += ("dinov2_with_registers.embeddings.mask_token", "beit.embeddings.mask_token")
ADDED = {"num_register_tokens": 5}
REGISTERS = {
    "num_registers": 5,
    "register_positions": False,
    "no_embed_class": False,
    "position_resampling": "bicubic_antialias",
}
DINOV2: dict[str, Any] = {
    "norm_eps": 1e-6,
    "activation": "gelu",
    "layer_scale": True,
    "position_resampling": "bicubic",
    "mlp_dim": 108,
}
SWIGLU = {"gated_mlp": True, "activation": "silu", "mlp_dim": 72}
DINOV3 = {
    "rope": "dinov3",
    "rope_half": True,
    "rope_temperature": 70.0,
    "position_embedding": "none",
    "num_registers": 5,
    "norm_eps": 1e-5,
    "image_size": (24, 40),
    "patch_size": (8, 4),
    "pooling": "token",
    "layer_scale": True,
}
WIDE = {"image_size": [24, 40], "patch_size": [8, 4]}
BEIT = {"norm_eps": 1e-12, "layer_scale": True, "mlp_dim": 50, "position_resampling": "bicubic"}
MEAN = {"pooling": "avg", "fc_norm": True, "final_norm": False, "pool_include_prefix": False}
TOKEN = {"pooling": "token", "fc_norm": False, "final_norm": True}
CLIP = {
    "pre_norm": True,
    "patch_bias": False,
    "norm_eps": 1e-5,
    "final_norm": False,
    "mlp_dim": 50,
    "class_token": True,
}
SIGLIP = {"norm_eps": 1e-6, "final_norm": True, "class_token": False, "mlp_dim": 50}
NAFLEX = {
    "image_size": (24, 24),
    "patch_size": (8, 8),
    "position_resampling": "bilinear_antialias",
}
MAP = {"pooling": "map", "pool_mlp_dim": 50, "num_classes": 0}
AIMV2_POOL = {"pooling": "map", "pool_q_proj": False, "pool_mlp": False, "num_classes": 0}
TOWERS = {"towers": True}
TEXT_TOWER = ("text_model.", "logit_")

CLASSES: dict[str, Case] = {
    "DINOv2": _case(
        "Dinov2Model",
        "hf_dinov2",
        {"mlp_ratio": 3},
        expected=DINOV2 | {"pooling": "token", "num_classes": 0},
        ignored=MASK,
    ),
    "DINOv2, classes": _case(
        "Dinov2ForImageClassification",
        "hf_dinov2",
        {"mlp_ratio": 3, "hidden_act": "gelu_new", "use_mask_token": False} | LABELS,
        expected=DINOV2
        | {
            "pooling": "token_avg",
            "num_classes": 7,
            "activation": "gelu_tanh",
            "position_resampling": "bicubic",
        },
    ),
    "DINOv2, SwiGLU": _case(
        "Dinov2ForImageClassification",
        "hf_dinov2_swiglu",
        DEEP | {"mlp_ratio": 3, "use_swiglu_ffn": True, "layer_norm_eps": 1e-3} | LABELS,
        expected=DINOV2 | SWIGLU | {"pooling": "token_avg", "norm_eps": 1e-3},
        ignored=MASK,
    ),
    "DINOv2, SwiGLU, no bias of q, k, v": _case(
        "Dinov2Model",
        "hf_dinov2_swiglu",
        {"mlp_ratio": 3, "use_swiglu_ffn": True, "qkv_bias": False},
        expected=DINOV2 | SWIGLU | {"pooling": "token", "qkv_bias": False},
        ignored=MASK,
    ),
    "DINOv2, registers": _case(
        "Dinov2WithRegistersModel",
        "hf_dinov2_reg",
        {"mlp_ratio": 3} | ADDED,
        expected=DINOV2 | REGISTERS | {"pooling": "token"},
        ignored=MASK,
    ),
    "DINOv2, registers, classes": _case(
        "Dinov2WithRegistersForImageClassification",
        "hf_dinov2_reg",
        {"mlp_ratio": 3} | ADDED | LABELS,
        expected=DINOV2 | REGISTERS | {"pooling": "token_avg", "num_classes": 7},
        ignored=MASK,
    ),
    "DINOv2, registers, SwiGLU": _case(
        "Dinov2WithRegistersForImageClassification",
        "hf_dinov2_reg_swiglu",
        {"mlp_ratio": 3, "use_swiglu_ffn": True} | ADDED | LABELS,
        expected=DINOV2 | SWIGLU | REGISTERS | {"pooling": "token_avg"},
        ignored=MASK,
    ),
    "DINOv3": _case(
        "DINOv3ViTModel",
        "hf_dinov3",
        DEEP | MLP | WIDE | {"num_register_tokens": 5, "rope_theta": 70.0},
        expected=DINOV3 | {"gated_mlp": False, "activation": "gelu", "mlp_dim": 50},
        ignored=MASK,
    ),
    "DINOv3, SwiGLU, no bias": _case(
        "DINOv3ViTModel",
        "hf_dinov3",
        MLP
        | WIDE
        | {
            "num_register_tokens": 5,
            "rope_theta": 70.0,
            "use_gated_mlp": True,
            "hidden_act": "silu",
            "query_bias": False,
            "value_bias": False,
            "mlp_bias": False,
        },
        expected=DINOV3
        | {"gated_mlp": True, "activation": "silu", "qkv_bias": False, "mlp_bias": False},
        ignored=MASK,
    ),
    "DINOv3, no registers": _case(
        "DINOv3ViTModel",
        "hf_dinov3",
        MLP | {"num_register_tokens": 0},
        expected={"num_registers": 0, "class_token": True, "rope_temperature": 100.0},
        ignored=(*MASK, "embeddings.register_tokens"),
    ),
    "BEiT": _case(
        "BeitModel",
        "hf_beit",
        MLP | {"use_relative_position_bias": True},
        expected=BEIT | MEAN | {"relative_positions": "block", "position_embedding": "none"},
    ),
    "BEiT, classes": _case(
        "BeitForImageClassification",
        "hf_beit",
        DEEP | MLP | LABELS | {"use_relative_position_bias": True, "use_mask_token": True},
        expected=BEIT | MEAN | {"relative_positions": "block", "num_classes": 7},
        ignored=MASK,
    ),
    "BEiT, shared": _case(
        "BeitForImageClassification",
        "hf_beit",
        MLP | LABELS | {"use_shared_relative_position_bias": True, "layer_norm_eps": 1e-4},
        expected=BEIT | MEAN | {"relative_positions": "shared", "norm_eps": 1e-4},
    ),
    "BEiT, absolute, token": _case(
        "BeitForImageClassification",
        "hf_beit",
        MLP | LABELS | {"use_absolute_position_embeddings": True, "use_mean_pooling": False},
        expected=BEIT
        | TOKEN
        | {
            "relative_positions": "none",
            "position_embedding": "learned",
        },
    ),
    "BEiT, no layer scale": _case(
        "BeitModel",
        "hf_beit",
        MLP | {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0},
        expected=MEAN | {"layer_scale": False},
    ),
    "Data2Vec": _case(
        "Data2VecVisionModel",
        "hf_beit",
        MLP | {"use_relative_position_bias": True, "use_mean_pooling": False},
        expected=BEIT | TOKEN | {"relative_positions": "block"},
    ),
    "Data2Vec, classes": _case(
        "Data2VecVisionForImageClassification",
        "hf_beit",
        MLP | LABELS | {"use_shared_relative_position_bias": True},
        expected=BEIT | MEAN | {"relative_positions": "shared"},
    ),
    "Data2Vec, no pooler": _case(
        "Data2VecVisionModel",
        "hf_beit_bare",
        MLP | {"use_relative_position_bias": True},
        expected=BEIT | {"pooling": "none", "fc_norm": False, "final_norm": False},
    ),
    "CLIP": _case(
        "CLIPVisionModel",
        "hf_clip",
        MLP,
        expected=CLIP
        | {"fc_norm": True, "pooling": "token", "num_classes": 0, "activation": "quick_gelu"},
    ),
    "CLIP, projection": _case(
        "CLIPVisionModelWithProjection",
        "hf_clip",
        DEEP | MLP | {"projection_dim": 10, "hidden_act": "gelu"},
        expected=CLIP
        | {"fc_norm": True, "num_classes": 10, "head_bias": False, "activation": "gelu"},
    ),
    "CLIP, both towers": _case(
        "CLIPModel",
        "hf_clip",
        MLP | {"projection_dim": 10, "layer_norm_eps": 1e-3},
        expected=CLIP
        | {
            "fc_norm": True,
            "num_classes": 10,
            "head_bias": False,
            "activation": "quick_gelu",
            "norm_eps": 1e-3,
        },
        ignored=(*TEXT_TOWER, "text_projection."),
        **TOWERS,
    ),
    "CLIP, classes": _case(
        "CLIPForImageClassification",
        "hf_clip_classifier",
        MLP | LABELS | {"hidden_act": "gelu"},
        expected=CLIP
        | {"fc_norm": False, "num_classes": 7, "pooling": "avg", "pool_include_prefix": False},
        ignored=("vision_model.post_layernorm.",),
        **TOWERS,
    ),
    "SigLIP": _case(
        "SiglipVisionModel",
        "hf_siglip",
        DEEP | MLP,
        expected=SIGLIP | MAP | {"activation": "gelu_tanh"},
    ),
    "SigLIP, no head": _case(
        "SiglipVisionModel",
        "hf_siglip",
        MLP | {"vision_use_head": False, "hidden_act": "gelu"},
        expected=SIGLIP | {"pooling": "none", "activation": "gelu"},
    ),
    "SigLIP, both towers": _case(
        "SiglipModel",
        "hf_siglip",
        MLP | {"layer_norm_eps": 1e-3, "hidden_act": "relu"},
        expected=SIGLIP | MAP | {"activation": "relu", "norm_eps": 1e-3},
        ignored=TEXT_TOWER,
        **TOWERS,
    ),
    "SigLIP, classes": _case(
        "SiglipForImageClassification",
        "hf_siglip_classifier",
        MLP | LABELS,
        expected=SIGLIP | {"pooling": "avg", "num_classes": 7, "fc_norm": False},
        ignored=("vision_model.head.",),
        **TOWERS,
    ),
    "SigLIP 2": _case(
        "Siglip2VisionModel",
        "hf_siglip2",
        MLP | {"num_patches": 9},
        expected=SIGLIP | MAP | NAFLEX,
    ),
    "SigLIP 2, both towers": _case(
        "Siglip2Model",
        "hf_siglip2",
        MLP | {"num_patches": 9},
        expected=SIGLIP | MAP | NAFLEX,
        ignored=TEXT_TOWER,
        **TOWERS,
    ),
    "SigLIP 2, classes": _case(
        "Siglip2ForImageClassification",
        "hf_siglip2_classifier",
        MLP | LABELS | {"num_patches": 9},
        expected=SIGLIP | NAFLEX | {"pooling": "avg", "num_classes": 7},
        ignored=("vision_model.head.",),
        **TOWERS,
    ),
    "AIMv2": _case(
        "Aimv2VisionModel",
        "hf_aimv2",
        DEEP | MLP | {"use_head": False},
        expected={
            "norm": "rms",
            "norm_bias": False,
            "gated_mlp": True,
            "activation": "silu",
            "patch_norm": True,
            "qkv_bias": False,
            "proj_bias": False,
            "mlp_bias": False,
            "norm_eps": 1e-5,
            "pooling": "none",
        },
    ),
    "AIMv2, biases": _case(
        "Aimv2VisionModel",
        "hf_aimv2",
        MLP | {"use_head": False, "qkv_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
        expected={"qkv_bias": True, "proj_bias": True, "mlp_bias": True, "norm_eps": 1e-3},
    ),
    "AIMv2, pooled": _case(
        "Aimv2VisionModel",
        "hf_aimv2",
        DEEP | MLP,
        expected=AIMV2_POOL | {"pool_kv_bias": False, "position_embedding": "learned"},
    ),
    "AIMv2, pooled, native, biases": _case(
        "Aimv2VisionModel",
        "hf_aimv2",
        MLP | {"is_native": True, "qkv_bias": True},
        expected=AIMV2_POOL | {"pool_kv_bias": True, "position_embedding": "sincos2d_mae"},
    ),
}
