"""open_clip's image towers: its own, which OpenAI's weights fit too, and timm's models."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.facts.project_config import look_up
from vitconvert.programs.reference import Reference, check_size, load_strictly, own_tensors, package
from vitconvert.programs.taps import Tap, block_taps
from vitconvert.programs.timm.reference import TOLD, timm_taps, vision_transformer

_POOL_TYPES = {"token": "tok", "none": "none"}


def openclip_reference(checkpoint: Checkpoint) -> Reference:
    """Build open_clip's image tower, without the text tower.

    open_clip 3.3: `transformer.py`, VisionTransformer, from the configuration; `timm_model.py`,
    TimmModel, from the architecture that open_clip_config.json names.

    Raises:
        MissingPackage: open_clip is not installed.
        NotRepresentable: The tower has no argument for a part of it, or nothing names it.
    """
    open_clip = package("open_clip", install="open-clip-torch")
    tensors = {n.removeprefix("visual."): t for n, t in own_tensors(checkpoint).items()}
    build = _own_tower if "class_embedding" in tensors else _timm_tower
    return build(open_clip, checkpoint, tensors)


def _own_tower(open_clip: Any, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Reference:
    config = checkpoint.config
    name = f"open_clip {open_clip.__version__} VisionTransformer"
    model: nn.Module = open_clip.transformer.VisionTransformer(
        **_arguments(config), act_layer=_activation(config, open_clip)
    )
    notes = _fit(model, config)
    load_strictly(model, tensors, name)
    block = "transformer.resblocks.{i}"
    taps = block_taps(config.depth, block=block, norm2="ln_2", norm="ln_post")
    del taps["norm"]  # it norms all tokens, and our fc_norm the pooled one
    return Reference(
        name=name,
        model=model.eval(),
        taps={"patch_embed": Tap("conv1"), **taps},
        notes=notes,
        told=("image_size", "num_heads", "activation", "norm_eps", "pooling"),
    )


def _timm_tower(open_clip: Any, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Reference:
    config = checkpoint.config
    name = f"open_clip {open_clip.__version__} TimmModel"
    told: tuple[str, ...] = TOLD
    if look_up(checkpoint.their_config, "model_cfg.vision_cfg.timm_model_name"):
        told = ()
        vision_cfg = look_up(checkpoint.their_config, "model_cfg.vision_cfg")
        model = _named_tower(open_clip, vision_cfg, config.num_classes, tensors)
    else:
        model = _nameless_tower(open_clip, config)
        name += f" around timm's {type(model.trunk).__name__}"
    load_strictly(model, tensors, name)
    trunk: Any = model.trunk
    taps = dict(timm_taps(trunk, config))
    taps.pop("features", None)  # the head is a sequence, empty without a projection
    return Reference(
        name=name,
        model=model.eval(),
        taps={layer: replace(tap, module=f"trunk.{tap.module}") for layer, tap in taps.items()},
        told=told,
    )


def _named_tower(
    open_clip: Any, vision_cfg: Mapping[str, Any], classes: int, tensors: Mapping[str, Tensor]
) -> nn.Module:
    """As open_clip builds it, without what it might download."""
    vision_cfg = {**vision_cfg, "timm_model_pretrained": False}

    def build() -> nn.Module:
        tower: nn.Module = open_clip.model._build_vision_tower(classes, vision_cfg)
        return tower

    with torch.device("meta"):
        model = build()
    check_size(model, tensors, "TimmModel")
    # Rotary tables and the like are in no file, so timm must compute them.
    return build() if any(buffer.is_meta for buffer in model.buffers()) else model


def _nameless_tower(open_clip: Any, config: ViTConfig) -> nn.Module:
    """Around timm's class for the configuration."""
    # The bias of the head is that of the projection.
    trunk = vision_transformer(replace(config, num_classes=0, head_bias=True))
    with torch.device("meta"):
        tower: nn.Module = open_clip.timm_model.TimmModel(
            "vit_tiny_patch16_224",
            embed_dim=config.num_classes,
            proj="linear" if config.num_classes else "none",
            proj_bias=config.head_bias,
        )
    tower.trunk = trunk
    if config.num_classes:
        head: Any = tower.head
        head.proj = nn.Linear(config.feature_dim, config.num_classes, bias=config.head_bias)
    return tower


def _arguments(config: ViTConfig) -> dict[str, Any]:
    if not config.even_heads or config.attention_scale or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip's VisionTransformer reads three channels and divides its width among the "
            "heads; this model does not."
        )
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "width": config.embed_dim,
        "layers": config.depth,
        "heads": config.num_heads,
        "mlp_ratio": (config.mlp_dim + 0.5) / config.embed_dim,  # open_clip rounds it down
        "ls_init_value": 1e-5 if config.layer_scale else None,
        "output_dim": config.num_classes or 1,
        "no_ln_pre": not config.pre_norm,
        "pool_type": _POOL_TYPES.get(config.pooling, "avg"),
        "final_ln_after_pool": config.pooling not in _POOL_TYPES,
        "norm_layer": partial(nn.LayerNorm, eps=config.norm_eps),
    }


def _activation(config: ViTConfig, open_clip: Any) -> type[nn.Module]:
    if config.activation not in ("gelu", "quick_gelu"):
        raise NotRepresentable(f"open_clip has no towers with {config.activation}.")
    quick: type[nn.Module] = open_clip.transformer.QuickGELU
    return quick if config.activation == "quick_gelu" else nn.GELU


def _fit(model: nn.Module, config: ViTConfig) -> tuple[str, ...]:
    """Take away what the class always has."""
    if config.num_classes:
        return ()
    model.register_parameter("proj", None)
    return ("the projection was taken away",)
