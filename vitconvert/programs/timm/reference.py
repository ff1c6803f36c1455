"""timm's VisionTransformer, its distilled and its hybrid form."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.program import Preparation
from vitconvert.programs.reference import (
    Reference,
    as_tokens,
    call,
    check_size,
    load_strictly,
    own_tensors,
    package,
)
from vitconvert.programs.taps import Tap, Taps, block_taps, canonical_taps, channels_last
from vitconvert.programs.timm.config import model_args, require_plain

# Arguments of timm's class that its tensors do not show; of a named architecture, timm knows the
# rest itself.
TOLD_NAMED = ("image_size",)
TOLD = (
    *("image_size", "num_heads", "activation", "norm_eps", "pooling", "pool_include_prefix"),
    "no_embed_class",
)
# Of what timm computes in float32 in any case: the resampling of positions (naflexvit), norms
# (deepseek_vit), the means of squares (gemma4_vit) and, here, the angles of rotations that are not
# made for one size (qwen3_vit).
_ROUNDS = ("NaFlexVit", "DeepseekVit", "Gemma4Vit", "Qwen3Vit")
_ENCODERS = _ROUNDS[1:]


def timm_reference(checkpoint: Checkpoint) -> Reference:
    """Build the named architecture, or else the class that the configuration describes.

    After timm 1.0.31, `create_model` and `VisionTransformer`. timm dropped the layer before the
    head (`pre_logits`) in 0.6; it is put back in front of the head.

    Raises:
        NotRepresentable: timm's class does not take these tensors.
    """
    timm = package("timm", install="timm")
    tensors, config = own_tensors(checkpoint), checkpoint.config
    with torch.device("meta"):
        named = _named_model(timm, checkpoint)
        model = named or vision_transformer(config)
    check_size(model, tensors, type(model).__name__)
    if any(buffer.is_meta for buffer in model.buffers()):
        # Rotary tables and the like are in no file, so timm must compute them.
        model = _named_model(timm, checkpoint) or vision_transformer(config)
    if config.representation_size:
        put_back_pre_logits(model, config)
        tensors = _renamed_pre_logits(tensors)
    name = f"timm {timm.__version__} {type(model).__name__}"
    load_strictly(model, tensors, name)
    if tower := _tower_reference(model.eval(), config, name):
        return tower
    reference = timm_like(model, config, name)
    return replace(reference, told=TOLD_NAMED) if named else reference


def timm_like(model: nn.Module, config: ViTConfig, name: str) -> Reference:
    """A timm model as a reference."""
    # timm's distilled model without heads averages the features of both tokens; ours reads one.
    tokens = config.dist_token and config.num_classes == 0
    return Reference(
        name=name,
        model=model,
        taps=timm_taps(model, config),
        run=_forward_features if tokens else _output,
        reads="tokens" if tokens else "output",
        told=TOLD,
    )


def vision_transformer(config: ViTConfig) -> nn.Module:
    """timm's class for a configuration.

    Raises:
        NotRepresentable: timm has no argument for a part of the configuration.
    """
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    if not config.even_heads or config.attention_scale:
        raise NotRepresentable(
            "timm's VisionTransformer divides its width among the heads and scales by theirs; this "
            "model does not."
        )
    require_plain(config)
    kind = VisionTransformerDistilled if config.dist_token else VisionTransformer
    model: nn.Module = kind(**_arguments(config))
    return model


def put_back_pre_logits(model: nn.Module, config: ViTConfig) -> None:
    """Replace the head by a linear layer, tanh and the head."""
    width, classes = config.representation_size, config.num_classes
    head = nn.Linear(width, classes) if classes else nn.Identity()
    fc = nn.Linear(config.embed_dim, width)
    model.head = nn.Sequential()
    for name, module in {"fc": fc, "act": nn.Tanh(), "head": head}.items():
        model.head.add_module(name, module)


def _named_model(timm: Any, checkpoint: Checkpoint) -> nn.Module | None:
    """The architecture that a config.json or the reference names, as `create_model` makes it."""
    theirs = checkpoint.their_config
    name = checkpoint.located.name or theirs.get("architecture")
    if not name or not timm.is_model(str(name).split(".")[0]):
        return None
    arguments: dict[str, Any] = {
        "num_classes": checkpoint.config.num_classes,
        "in_chans": checkpoint.config.in_channels,
        "img_size": checkpoint.config.image_size,
    }
    if "global_pool" in theirs:
        arguments["global_pool"] = theirs["global_pool"]
    model: nn.Module = timm.create_model(
        str(name).split(".")[0], **{**arguments, **theirs.get("model_args", {})}
    )
    return model


def _arguments(config: ViTConfig) -> dict[str, Any]:
    """What a config.json says, and what it cannot say."""
    from timm.layers import LayerNorm

    norm = partial(LayerNorm, eps=config.norm_eps)
    stem = {"embed_layer": _hybrid_embedding(config)} if config.stem else {}
    return {
        **model_args(config),
        "num_classes": config.num_classes,
        "mlp_ratio": (config.mlp_dim + 0.5) / config.embed_dim,  # timm rounds the product down
        "embed_norm_layer": norm if config.patch_norm else None,
        "norm_layer": norm,
        **stem,
    }


def _hybrid_embedding(config: ViTConfig) -> Any:
    """Of `vision_transformer_hybrid.py`: a ResNetV2 with SAME padding in front of the patches."""
    from timm.layers import StdConv2dSame
    from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem
    from timm.models.vision_transformer_hybrid import HybridEmbed

    convolution = partial(StdConv2dSame, eps=1e-8)
    common: dict[str, Any] = {"stem_type": "same", "preact": False, "conv_layer": convolution}
    if config.stem_depths:
        widths = tuple(4 * config.stem_width * 2**stage for stage in range(len(config.stem_depths)))
        backbone = ResNetV2(
            layers=config.stem_depths,
            channels=widths,
            stem_chs=config.stem_width,
            num_classes=0,
            global_pool="",
            in_chans=config.in_channels,
            **common,
        )
    else:
        backbone = create_resnetv2_stem(config.in_channels, config.stem_width, **common)
    return partial(HybridEmbed, backbone=backbone)


def _renamed_pre_logits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    places = {"pre_logits.fc.": "head.fc.", "head.": "head.head."}
    renamed = {}
    for name, tensor in tensors.items():
        old = next((prefix for prefix in places if name.startswith(prefix)), "")
        renamed[places.get(old, "") + name.removeprefix(old)] = tensor
    return renamed


def timm_taps(model: nn.Module, config: ViTConfig) -> Taps:
    """Where timm's classes compute what ours do."""
    taps = canonical_taps(config.depth)
    if getattr(model, "dynamic_img_size", False):
        taps["patch_embed"] = Tap("patch_embed", channels_last=True)
    if config.representation_size:
        taps["features"] = Tap("head.head", input=True)
    if config.dist_token:
        del taps["features"]  # two heads, two features
    if config.windowed or config.decomposed_positions:
        taps["features"] = Tap("head.fc", input=True)
        return channels_last(taps)
    return taps


def _output(model: nn.Module, images: Tensor) -> Tensor:
    return as_tokens(call(model, images))


def _forward_features(model: nn.Module, images: Tensor) -> Tensor:
    tokens: Tensor = model.forward_features(images)  # type: ignore[operator]
    return tokens


def _tower_reference(model: nn.Module, config: ViTConfig, name: str) -> Reference | None:
    """A model of these modules as a reference; None for any other."""
    kind = type(model).__name__
    if not kind.startswith((*_ROUNDS, *_ENCODERS)):
        return None
    found = Reference(
        name=name, model=model, taps=_tower_taps(model, config), run=call, told=TOLD_NAMED
    )
    return replace(found, dtypes=("float32",)) if kind.startswith(_ROUNDS) else found


def _tower_taps(model: nn.Module, config: ViTConfig) -> Taps:
    encoder = "encoder." if hasattr(model, "encoder") else ""
    norm2 = "norm3" if config.sandwich else "norm2"
    block = f"{encoder}blocks.{{i}}"
    taps = block_taps(config.depth, block=block, norm2=norm2, norm=f"{encoder}norm")
    if encoder or hasattr(model, "aligner") or hasattr(model, "merger"):
        if not config.own_grid:
            taps["patch_embed"] = Tap(f"{encoder}patch_embed", channels_last=True)
        else:
            del taps["norm"]  # of a grid of tokens, or none
    return taps if config.num_classes == 0 else {**taps, "features": Tap("head", input=True)}


def timm_preparation(pretrained_cfg: Mapping[str, Any]) -> Preparation:
    """timm 1.0.31, `create_transform`, of images opened as its `ImageDataset` opens them.

    Raises:
        MissingPackage: timm is not installed.
    """
    timm = package("timm", install="timm")
    arguments = timm.data.resolve_data_config(pretrained_cfg=dict(pretrained_cfg))
    transform = timm.data.create_transform(**arguments, is_training=False)
    mode = "L" if arguments["input_size"][0] == 1 else "RGB"

    def prepare(image: Image.Image) -> Tensor:
        prepared: Tensor = transform(image.convert(mode))
        return prepared

    return Preparation(
        name=f"timm {timm.__version__}'s create_transform",
        prepare=prepare,
        steps=Preprocessing.from_timm(pretrained_cfg),
    )
