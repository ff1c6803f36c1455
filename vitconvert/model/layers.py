"""The small layers of a ViT, and its activation functions."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig


def quick_gelu(x: Tensor) -> Tensor:
    """OpenAI CLIP's approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


# Keys are the names in vitconvert.config.vocabularies.ACTIVATIONS.
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class _NoMetaInit(nn.Linear):
    """torch's linear layer, without initialisation on the meta device.

    torch's own initialisation has no effect there, but takes a tenth of the loading time.
    """

    def reset_parameters(self) -> None:
        """Initialise as torch does, except on the meta device."""
        if not self.weight.is_meta:
            super().reset_parameters()


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """torch's own linear layer, made without initialisation on the meta device."""
    layer: nn.Linear = _NoMetaInit(inputs, outputs, bias=bias)
    # torch.ao.quantization and others look for exactly this class, and ignore its subclasses.
    layer.__class__ = nn.Linear
    return layer


class ClippedLinear(nn.Linear):
    """A linear layer with bounds: the least and the most that it reads, and that it gives.

    Gemma 4's, trained for few bits: timm 1.0.31 and transformers 5.23, `Gemma4ClippableLinear`.
    """

    bounds: Tensor

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.register_buffer("bounds", torch.empty(4))

    def reset_parameters(self) -> None:
        """Initialise as torch does, except on the meta device; `open_bounds` makes the bounds."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def open_bounds(self) -> None:
        """Clip nothing."""
        infinite = torch.tensor([-math.inf, math.inf] * 2, dtype=torch.float32, device="cpu")
        self.bounds.copy_(infinite)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        least, most, least_given, most_given = self.bounds.unbind()
        return _clipped(super().forward(_clipped(x, least, most)), least_given, most_given)


def _clipped(x: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """As torch.clamp, of which torch's export to ONNX confuses several of one tensor (2.15)."""
    x = torch.where(x < least, least, x)
    return torch.where(x > most, most, x)


def linear_of(config: ViTConfig) -> Callable[..., nn.Linear]:
    """What makes the linear layers of a model's blocks."""
    return ClippedLinear if config.clipped_linears else linear


class Mlp(nn.Module):
    """Two linear layers with an activation between them.

    If gated, the hidden channels are multiplied by the activation of a third layer (Shazeer,
    https://arxiv.org/abs/2002.05202; SwiGLU, if the activation is silu). If normed, the hidden
    channels are normalised before the last layer (NormFormer, https://arxiv.org/abs/2110.09456).
    With `out_activation`, the activation follows the last layer too.
    """

    def __init__(
        self,
        config: ViTConfig,
        hidden: int,
        *,
        bias: bool,
        drop: float,
        gated: bool = False,
        normed: bool = False,
        out_activation: bool = False,
        linear: Callable[..., nn.Linear] = linear,
    ) -> None:
        super().__init__()
        self.act = ACTIVATION[config.activation]
        self.fc1 = linear(config.embed_dim, hidden, bias=bias)
        self.fc1_g = linear(config.embed_dim, hidden, bias=bias) if gated else None
        self.drop1 = nn.Dropout(drop)
        self.norm = norm_if(normed, hidden, config)
        self.fc2 = linear(hidden, config.embed_dim, bias=bias)
        self.out_act = ACTIVATION[config.activation] if out_activation else None
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        if self.fc1_g is None:
            hidden = self.act(self.fc1(x))
        else:
            hidden = self.act(self.fc1_g(x)) * self.fc1(x)
        out = self.fc2(self.norm(self.drop1(hidden)))
        dropped: Tensor = self.drop2(out if self.out_act is None else self.out_act(out))
        return dropped


class LayerScale(nn.Module):
    """A learned factor for each channel (Touvron et al., https://arxiv.org/abs/2103.17239)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Leaves a branch out for some images in training, and scales it up for the others.

    Huang et al., "Deep Networks with Stochastic Depth", https://arxiv.org/abs/1603.09382; the
    random numbers are drawn as in timm 1.0.31, `drop_path`.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_prob = rate  # timm's name

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        if not self.training:
            return x
        kept = 1 - self.drop_prob
        factors = x.new_empty(x.shape[0], 1, 1).bernoulli_(kept)
        return x * (factors.div_(kept) if kept > 0 else factors)

    def extra_repr(self) -> str:
        """The rate, as `print(model)` shows it."""
        return f"drop_prob={self.drop_prob:.3f}"


def drop_path_of(config: ViTConfig, layer: int) -> nn.Module:
    """The stochastic depth of a block's branch, or an identity."""
    if not config.drop_path_rate:
        return nn.Identity()
    rate = drop_path_rates(config)[layer]
    return DropPath(rate) if rate else nn.Identity()


def drop_path_rates(config: ViTConfig) -> list[float]:
    """Of each block, in equal steps from 0; timm's `calculate_drop_path_rates` rounds them so."""
    end = config.drop_path_rate
    steps = torch.linspace(0, end, config.depth, dtype=torch.float32, device="cpu")
    rates: list[float] = steps.tolist()
    return rates


def norm_of(dim: int, config: ViTConfig, *, eps: float | None = None) -> nn.Module:
    """The model's kind of norm: LayerNorm, or RMSNorm (https://arxiv.org/abs/1910.07467)."""
    eps = config.norm_eps if eps is None else eps
    if config.norm == "rms":
        return nn.RMSNorm(dim, eps)
    return nn.LayerNorm(dim, eps, bias=config.norm_bias)


def final_norm_of(config: ViTConfig) -> nn.Module:
    """The norm after the blocks, or an identity."""
    if not config.final_norm:
        return nn.Identity()
    return norm_of(config.embed_dim, config, eps=config.final_norm_eps)


def norm_if(wanted: bool, dim: int, config: ViTConfig, *, eps: float | None = None) -> nn.Module:
    """The model's kind of norm, or an identity."""
    return norm_of(dim, config, eps=eps) if wanted else nn.Identity()


def bare_norm_if(config: ViTConfig) -> nn.Module:
    """Of what the head reads, the model's kind of norm without weights, or an identity."""
    if not config.bare_fc_norm:
        return nn.Identity()
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(config.feature_dim, config.norm_eps, elementwise_affine=False)


def unset(count: int, dim: int) -> nn.Parameter:
    """Learned tokens (1, count, dim), or positions to add to tokens; not yet initialised."""
    return nn.Parameter(torch.empty(1, count, dim))
