"""The ResNet in front of a hybrid ViT: bottlenecks with GroupNorm and weight standardisation.

Three projects compute different functions with the same weights (`ViTConfig.stem_style`):

                 padding      kernels divided by   norm eps   norm of the shortcut
    google       SAME         std + 1e-5           1e-6       32 groups
    timm         SAME         sqrt(var + 1e-8)     1e-5       32 groups
    jeonsworld   symmetric    sqrt(var + 1e-5)     1e-6       one group per channel, eps 1e-5

and jeonsworld's max-pool is not padded at all. Sources: google-research/vision_transformer
`vit_jax/models_resnet.py`; timm 1.0.31 `resnetv2.py`, `StdConv2dSame`; jeonsworld/ViT-pytorch
`models/modeling_resnet.py`. The smaller the kernels, the more the first two differ: for ResNet-50
by 2e-4 of the largest feature with random kernels of deviation 0.2, by 3e-3 with 0.02.

Letters: B images, C channels, Y rows, X columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What a project does with the weights of a stem."""

    same_padding: bool
    standardise: Callable[[Tensor], Tensor]
    norm_eps: float
    shortcut_norm: Callable[[int], nn.GroupNorm]


def _over_deviation(weight: Tensor) -> Tensor:
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance.sqrt() + 1e-5)


def _as_batch_norm(weight: Tensor) -> Tensor:
    # By the same operation as timm, for results equal to the last bit.
    rows = weight.reshape(1, weight.shape[0], -1)
    return F.batch_norm(rows, None, None, training=True, eps=1e-8).reshape_as(weight)


def _over_root_of_variance(weight: Tensor) -> Tensor:
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance + 1e-5).sqrt()


ARITHMETIC = {
    "google": Arithmetic(
        same_padding=True,
        standardise=_over_deviation,
        norm_eps=1e-6,
        shortcut_norm=lambda channels: nn.GroupNorm(32, channels, eps=1e-6),
    ),
    "timm": Arithmetic(
        same_padding=True,
        standardise=_as_batch_norm,
        norm_eps=1e-5,
        shortcut_norm=lambda channels: nn.GroupNorm(32, channels, eps=1e-5),
    ),
    "jeonsworld": Arithmetic(
        same_padding=False,
        standardise=_over_root_of_variance,
        norm_eps=1e-6,
        shortcut_norm=lambda channels: nn.GroupNorm(channels, channels, eps=1e-5),
    ),
}


class StandardisedConv2d(nn.Conv2d):
    """Convolution without bias, its kernels of mean 0 and deviation 1 per output channel.

    Weight standardisation: Qiao et al., https://arxiv.org/abs/1903.10520.
    """

    def __init__(
        self, in_channels: int, out_channels: int, size: int, *, stride: int = 1, style: str
    ) -> None:
        self.style = style
        padding = 0 if ARITHMETIC[style].same_padding else size // 2
        super().__init__(in_channels, out_channels, size, stride, padding, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, out_channels, Y / stride, X / stride), rounded up."""
        weight = ARITHMETIC[self.style].standardise(self.weight)
        if ARITHMETIC[self.style].same_padding:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, weight, None, self.stride, self.padding)


class Root(nn.Module):
    """7x7 convolution, norm, ReLU and max-pool: a quarter of the resolution."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, self.style = config.stem_width, config.stem_style
        self.conv = StandardisedConv2d(config.in_channels, width, 7, stride=2, style=self.style)
        self.norm = _group_norm(width, self.style)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, stem_width, Y / 4, X / 4)."""
        x = F.relu(self.norm(self.conv(x)))
        if ARITHMETIC[self.style].same_padding:
            x = pad_same(x, size=3, stride=2, value=-math.inf)
        return F.max_pool2d(x, kernel_size=3, stride=2)


class Shortcut(nn.Module):
    """1x1 convolution and norm around the first unit of a stage."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, style: str) -> None:
        super().__init__()
        self.conv = StandardisedConv2d(in_channels, out_channels, 1, stride=stride, style=style)
        self.norm = ARITHMETIC[style].shortcut_norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, out_channels, Y / stride, X / stride)."""
        out: Tensor = self.norm(self.conv(x))
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut; ReLU after the sum (ResNet v1)."""

    def __init__(self, in_channels: int, mid: int, *, stride: int, style: str) -> None:
        super().__init__()
        self.conv1 = StandardisedConv2d(in_channels, mid, 1, style=style)
        self.norm1 = _group_norm(mid, style)
        self.conv2 = StandardisedConv2d(mid, mid, 3, stride=stride, style=style)
        self.norm2 = _group_norm(mid, style)
        self.conv3 = StandardisedConv2d(mid, 4 * mid, 1, style=style)
        self.norm3 = _group_norm(4 * mid, style)
        self.downsample: nn.Module = nn.Identity()
        if in_channels != 4 * mid or stride != 1:
            self.downsample = Shortcut(in_channels, 4 * mid, stride=stride, style=style)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, 4 * mid, Y / stride, X / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(self.downsample(x) + y)


class Stage(nn.Module):
    """Bottlenecks of one width; the first of them changes channels and resolution."""

    def __init__(self, in_channels: int, mid: int, *, units: int, stride: int, style: str) -> None:
        super().__init__()
        first = Bottleneck(in_channels, mid, stride=stride, style=style)
        rest = (Bottleneck(4 * mid, mid, stride=1, style=style) for _ in range(units - 1))
        self.blocks = nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, 4 * mid, Y / stride, X / stride)."""
        out: Tensor = self.blocks(x)
        return out


class ResNetStem(nn.Module):
    """Root and stages; each stage after the first halves the resolution and doubles the width.

    With `stem_depths` (3, 4, 9) this is the ResNet-50 of R50+ViT-B/16, with () the root alone of
    R+ViT-Ti/16.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.stem = Root(config)
        self.stages = nn.ModuleList()
        self.out_channels = config.stem_width
        for index, units in enumerate(config.stem_depths):
            mid, stride = config.stem_width * 2**index, 2 if index else 1
            stage = Stage(
                self.out_channels, mid, units=units, stride=stride, style=config.stem_style
            )
            self.stages.append(stage)
            self.out_channels = 4 * mid

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, out_channels, Y / stem_stride, X / stem_stride)."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x


def pad_same(x: Tensor, size: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME padding: output = ceil(input / stride), the odd pixel below and right."""
    top, bottom = _same(x.shape[-2], size, stride)
    left, right = _same(x.shape[-1], size, stride)
    return F.pad(x, (left, right, top, bottom), value=value)


def _same(length: int, size: int, stride: int) -> tuple[int, int]:
    total = max((math.ceil(length / stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def _group_norm(channels: int, style: str) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=ARITHMETIC[style].norm_eps)
