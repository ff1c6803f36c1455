"""Random initial weights, in the style of the project whose training recipe is used.

    timm           1.0.31, `init_weights_vit_timm`: linear layers trunc_normal 0.02, zero biases
    jax            Google's Flax model, `vit_jax/models_vit.py` and `models_resnet.py`: linear
                   layers xavier_uniform, kernels and pre_logits lecun_normal, head zero. q, k and
                   v are a matrix each, as there; timm's "jax" draws them as one of three times
                   the width.
    huggingface    transformers 5.23, `ViTPreTrainedModel`: layers normal 0.02, zero biases
    jeonsworld     `models/modeling.py`: torch's defaults, but MLPs as in Flax
    torchvision    0.29, `vision_transformer.py`: patches trunc_normal sqrt(1/fan_in), MLPs as in
                   Flax

In every style norms start as identities, LayerScale at 1e-5, relative positions at zero, learned
rotations as in timm. The last norm of a bottleneck starts at zero where the project does so. What
a project does not have (registers, attention pooling, ...) starts like the nearest thing it has.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import init

from vitconvert.errors import UsageError
from vitconvert.model.layers import ClippedLinear
from vitconvert.model.rope import dinov3_periods

Layer = nn.Linear | nn.Conv2d | nn.Conv3d
Fill = Callable[[Tensor], object]

RESNET = ("patch_embed.backbone.stem", "patch_embed.backbone.stages")
POSITIONS = (
    "pos_embed",
    *(f"positions.{kind}" for kind in ("table", "after_one", "one", "y", "x")),
)
TOKENS = ("cls_token", "dist_token", "reg_token", "attn_pool.latent")


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a project initialises layers (given with their names), positions and tokens."""

    layer: Callable[[str, Layer], None]
    positions: Fill
    tokens: Callable[[str, Tensor], object]
    zero_residual: bool = False


def initialise(model: nn.Module, style: str, *, head_bias: float | None = None) -> None:
    """Overwrite every parameter of a ViT with initial values.

    Args:
        model: A `ViT`.
        style: One of "timm", "jax", "huggingface", "jeonsworld", "torchvision".
        head_bias: Initial value of the head's bias, for instance -log(num_classes); by default
            the style's.

    Raises:
        UsageError: There is no such style.
    """
    if style not in STYLES:
        raise UsageError(
            f"There is no initialisation style {style!r}.", evidence={"known": ", ".join(STYLES)}
        )
    with torch.no_grad():
        _fill_modules(model, STYLES[style])
        _fill_parameters(model, STYLES[style])
        for name, parameter in model.named_parameters():
            if head_bias is not None and name in ("head.bias", "head_dist.bias"):
                parameter.fill_(head_bias)


def _fill_modules(model: nn.Module, style: Style) -> None:
    for name, module in model.named_modules():
        if isinstance(module, ClippedLinear):
            module.open_bounds()
        if isinstance(module, Layer):
            style.layer(name, module)
        elif isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d | nn.RMSNorm):
            module.reset_parameters()
            if style.zero_residual and ".stages." in name and name.endswith(".norm3"):
                init.zeros_(module.weight)


def _fill_parameters(model: nn.Module, style: Style) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith(".gamma"):
            parameter.fill_(1e-5)
        elif ".lambda_" in name:
            init.normal_(parameter, std=0.1)  # timm `DiffAttention`
        elif name.endswith(
            ("relative_position_bias_table", ".rel_pos_h", ".rel_pos_w", ".mlp.bias")
        ):
            init.zeros_(parameter)
        elif name == "rope.freqs":
            _mixed_frequencies(parameter)
        elif name == "rope.periods":
            parameter.copy_(dinov3_periods(len(parameter), temperature=100.0))
        elif name == "rope.class_angles":  # transformers `MLCDPreTrainedModel`
            init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif name in POSITIONS:
            style.positions(parameter)
        elif name.startswith("merge.std_"):
            parameter.fill_(float(name == "merge.std_scale"))
        elif name in TOKENS:
            style.tokens(name, parameter)


def _mixed_frequencies(freqs: Tensor) -> None:
    # Heo et al., https://arxiv.org/abs/2403.13298: axial frequencies, rotated by a random angle
    # for each block and head; half of the pairs along it and half across it. timm
    # `init_random_2d_freqs`.
    _, layers, heads, pairs = freqs.shape
    exponents = torch.arange(pairs // 2, device=freqs.device) * 4 / (2 * pairs)
    magnitudes = 10.0**-exponents
    along = torch.rand(layers, heads, 1, device=freqs.device) * 2 * math.pi
    angles = torch.cat((along, along + math.pi / 2), dim=-1)[..., None]
    for axis, component in zip(freqs, (angles.cos(), angles.sin()), strict=True):
        axis.copy_((component * magnitudes).flatten(-2))


def _timm_layer(name: str, layer: Layer) -> None:
    layer.reset_parameters()
    if isinstance(layer, nn.Linear):
        init.trunc_normal_(layer.weight, std=0.02)
        _zero_bias(layer)
    elif name.startswith(RESNET):
        init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _timm_token(name: str, token: Tensor) -> None:
    match name:
        case "attn_pool.latent":
            _truncated_at_two(token, std=token.shape[-1] ** -0.5)
        case "dist_token":
            init.trunc_normal_(token, std=0.02)
        case _:
            init.normal_(token, std=1e-6)


def _flax_layer(name: str, layer: Layer) -> None:
    _zero_bias(layer)
    if name in ("head", "head_dist"):
        init.zeros_(layer.weight)
    elif isinstance(layer, nn.Conv2d | nn.Conv3d) or name == "pre_logits.fc":
        # Flax's lecun_normal draws from a normal truncated at two deviations, and scales it up to
        # keep the variance.
        _truncated_at_two(layer.weight, std=_fan_in(layer) ** -0.5 / 0.87962566103423978)
    elif ".mlp." in name:
        _flax_mlp(layer)
    else:
        for matrix in torch.split(layer.weight, layer.in_features):
            init.xavier_uniform_(matrix)


def _flax_mlp(layer: Layer) -> None:
    init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        init.normal_(layer.bias, std=1e-6)


def _flax_token(name: str, token: Tensor) -> None:
    if name == "attn_pool.latent":
        init.xavier_uniform_(token)  # big_vision `MAPHead`, the probe
    else:
        init.zeros_(token)


def _huggingface_layer(_name: str, layer: Layer) -> None:
    init.normal_(layer.weight, std=0.02)
    _zero_bias(layer)


def _jeonsworld_layer(name: str, layer: Layer) -> None:
    layer.reset_parameters()
    if ".mlp." in name:
        _flax_mlp(layer)


def _torchvision_layer(name: str, layer: Layer) -> None:
    layer.reset_parameters()
    _zero_bias(layer)
    if name in ("head", "head_dist"):
        init.zeros_(layer.weight)
    elif isinstance(layer, nn.Conv2d | nn.Conv3d) or name == "pre_logits.fc":
        init.trunc_normal_(layer.weight, std=_fan_in(layer) ** -0.5)
    elif ".mlp." in name:
        _flax_mlp(layer)
    elif name.endswith("qkv"):
        init.xavier_uniform_(layer.weight)


def _zero_bias(layer: Layer) -> None:
    if layer.bias is not None:
        init.zeros_(layer.bias)


def _fan_in(layer: Layer) -> int:
    return math.prod(layer.weight.shape[1:])


def _truncated_at_two(tensor: Tensor, *, std: float) -> None:
    init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)


def _zeros(_name: str, token: Tensor) -> None:
    init.zeros_(token)


def _truncated_token(_name: str, token: Tensor) -> None:
    init.trunc_normal_(token, std=0.02)


STYLES = {
    "timm": Style(
        layer=_timm_layer,
        positions=partial(init.trunc_normal_, std=0.02),
        tokens=_timm_token,
        zero_residual=True,
    ),
    "jax": Style(
        layer=_flax_layer,
        positions=partial(init.normal_, std=0.02),
        tokens=_flax_token,
        zero_residual=True,
    ),
    "huggingface": Style(
        layer=_huggingface_layer,
        positions=partial(init.trunc_normal_, std=0.02),
        tokens=_truncated_token,
    ),
    "jeonsworld": Style(layer=_jeonsworld_layer, positions=init.zeros_, tokens=_zeros),
    "torchvision": Style(
        layer=_torchvision_layer, positions=partial(init.normal_, std=0.02), tokens=_zeros
    ),
}
