"""open_clip's image towers: its own, which OpenAI's weights fit too, and timm's models."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.weights import Text
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.facts.project_config import look_up
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import Size
from vitconvert.programs.isolation import silent
from vitconvert.programs.program import BothTowers, Preparation
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
    open_clip = _open_clip()
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


def open_directory(directory: Path) -> BothTowers:
    """As `open_clip.create_model("local-dir:...")` loads an output, strictly.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    open_clip = _open_clip()
    with silent("root"):
        model = open_clip.create_model(f"local-dir:{directory}", precision="fp32").eval()
    return _both(open_clip, model)


def open_state_dict(file: Path) -> BothTowers:
    """As open_clip loads OpenAI's state dicts.

    It rounds the weights to half precision, which OpenAI's have: then it is given the others again.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    open_clip = _open_clip()
    with silent("root"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tries torch.jit first, which warns
        model = open_clip.load_openai_model(str(file), precision="fp32", device="cpu").eval()
    tensors = torch.load(file, map_location="cpu", weights_only=True)
    exact = {name: t.float() for name, t in tensors.items() if t.is_floating_point()}
    model.load_state_dict(exact, strict=True)
    return _both(open_clip, model)


def _both(open_clip: Any, model: Any) -> BothTowers:
    name = f"open_clip {open_clip.__version__} {type(model).__name__}"
    return BothTowers(name=name, images=model.encode_image, texts=model.encode_text)


def texts_by_config(checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """The text tower of a checkpoint, as open_clip builds it by open_clip_config.json.

    Raises:
        MissingPackage: open_clip is not installed.
        NotRepresentable: There is no such file, or the class does not take the tensors.
    """
    model_cfg = look_up(checkpoint.companions.whole_config, "model_cfg")
    if not isinstance(model_cfg, Mapping):
        raise NotRepresentable("There is no open_clip_config.json to build the text tower by.")
    return _texts(checkpoint.text, model_cfg)


def texts_of_openai(checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """The text tower of OpenAI's CLIP, by the sizes of its tensors, as open_clip builds it.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    text = checkpoint.text
    assert text is not None
    shapes = text.binding.shapes
    length, width = shapes["positional_embedding"]
    text_cfg = {
        "context_length": length,
        "vocab_size": shapes["token_embedding.weight"][0],
        "width": width,
        "heads": width // 64,
        "layers": sum(name.endswith("ln_1.weight") for name in shapes),
    }
    features = shapes["text_projection"][1]
    return _texts(text, {"embed_dim": features, "text_cfg": text_cfg, "quick_gelu": True})


def _texts(text: Text | None, model_cfg: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    assert text is not None
    open_clip = _open_clip()

    def build() -> nn.Module:
        stated = model_cfg["embed_dim"], dict(model_cfg["text_cfg"])
        tower: nn.Module = open_clip.model._build_text_tower(
            *stated, bool(model_cfg.get("quick_gelu"))
        )
        return tower

    own = (key for key in text.keys if not key.startswith("logit_"))
    tensors = {key.removeprefix("text."): text.read(key).float() for key in own}
    with torch.device("meta"):
        check_size(build(), tensors, "TextTransformer")
    tower = build()  # its mask is in no file, so open_clip must compute it
    load_strictly(tower, tensors, "TextTransformer")
    return tower.eval()


def _open_clip() -> Any:
    return package("open_clip", install="open-clip-torch")


def openclip_preparation(preprocess_cfg: Mapping[str, Any], image_size: Size) -> Preparation:
    """open_clip 3.3, `image_transform_v2`, for a tower of this size.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    open_clip = _open_clip()
    square = image_size[0] == image_size[1]
    stated = {**preprocess_cfg, "size": image_size[0] if square else list(image_size)}
    cfg = open_clip.transform.PreprocessCfg(**stated)
    return Preparation(
        name=f"open_clip {open_clip.__version__}'s image_transform_v2",
        prepare=open_clip.transform.image_transform_v2(cfg, is_train=False),
        steps=Preprocessing.from_openclip(preprocess_cfg, image_size=image_size),
    )
