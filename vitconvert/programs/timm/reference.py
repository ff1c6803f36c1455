"""timm's VisionTransformer, its distilled and its hybrid form."""

from functools import partial
from typing import TYPE_CHECKING, cast

from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import Foreign
from vitconvert.programs.reference import Reference, as_tokens, call
from vitconvert.programs.taps import Tap, Taps, block_taps, canonical_taps, channels_last
from vitconvert.programs.timm.fitting import model_args, require_plain

if TYPE_CHECKING:
    from torch import Tensor, nn

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
ROUNDS = ("NaFlexVit", "DeepseekVit", "Gemma4Vit", "Qwen3Vit")


def timm_like(model: "nn.Module", config: ViTConfig, name: str) -> Reference:
    """A timm model as a reference."""

    def output(model: "nn.Module", images: "Tensor") -> "Tensor":
        fit_to(model, images)
        return as_tokens(call(model, images))

    def features(model: "nn.Module", images: "Tensor") -> "Tensor":
        fit_to(model, images)
        return cast("Tensor", model.forward_features(images))  # type: ignore[operator]

    # timm's distilled model without heads averages the features of both tokens; ours reads one.
    tokens = config.dist_token and config.num_classes == 0
    return Reference(
        name=name,
        model=model,
        taps=timm_taps(model, config),
        run=features if tokens else output,
        reads="tokens" if tokens else "output",
        told=TOLD,
    )


def fit_to(model: Foreign, images: "Tensor") -> None:
    """Have timm fit a model to the size of images, as `create_model(..., img_size=...)` does."""
    height, width = images.shape[-2:]
    stated = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if stated and tuple(stated) != (height, width) and hasattr(model, "set_input_size"):
        model.set_input_size(img_size=(height, width))


def vision_transformer(config: ViTConfig) -> "nn.Module":
    """timm's class for a configuration.

    Raises:
        NotRepresentable: timm has no argument for a part of the configuration.
    """
    from timm.layers import LayerNorm
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    if not config.even_heads or config.attention_scale:
        raise NotRepresentable(
            "timm's VisionTransformer divides its width among the heads and scales by theirs; this "
            "model does not."
        )
    require_plain(config)
    norm = partial(LayerNorm, eps=config.norm_eps)
    stem = {"embed_layer": _hybrid_embedding(config)} if config.stem else {}
    kind = VisionTransformerDistilled if config.dist_token else VisionTransformer
    model: nn.Module = kind(
        **model_args(config),
        num_classes=config.num_classes,
        mlp_ratio=(config.mlp_dim + 0.5) / config.embed_dim,  # timm rounds the product down
        embed_norm_layer=norm if config.patch_norm else None,
        norm_layer=norm,
        **stem,
    )
    return model


def _hybrid_embedding(config: ViTConfig) -> Foreign:
    """Of `vision_transformer_hybrid.py`: a ResNetV2 with SAME padding in front of the patches."""
    from timm.layers import StdConv2dSame
    from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem
    from timm.models.vision_transformer_hybrid import HybridEmbed

    # Google's own: weights are standardised with this eps (timm, vision_transformer_hybrid.py).
    convolution = partial(StdConv2dSame, eps=1e-8)
    common: JsonDict = {"stem_type": "same", "preact": False, "conv_layer": convolution}
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


def put_back_pre_logits(model: "nn.Module", config: ViTConfig) -> None:
    """Replace the head by a linear layer, tanh and the head."""
    from torch import nn

    width, classes = config.representation_size, config.num_classes
    head = nn.Linear(width, classes) if classes else nn.Identity()
    fc = nn.Linear(config.embed_dim, width)
    model.head = nn.Sequential()
    for name, module in {"fc": fc, "act": nn.Tanh(), "head": head}.items():
        model.head.add_module(name, module)


def timm_taps(model: "nn.Module", config: ViTConfig) -> dict[str, Tap]:
    """The modules of timm's classes that compute the same as ours."""
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


def tower_taps(model: "nn.Module", config: ViTConfig) -> Taps:
    """Of the encoders of larger models, and of NaFlexVit."""
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
