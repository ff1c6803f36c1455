"""The convolutions in front of a hybrid ViT, mostly a ResNet of bottlenecks.

Three projects compute different functions with the same weights of a ResNet with group norms and
weight standardisation (`ViTConfig.stem_style`):

                 padding      kernels divided by   norm eps   norm of the shortcut
    google       SAME         std + 1e-5           1e-6       32 groups
    timm         SAME         sqrt(var + 1e-8)     1e-5       32 groups
    jeonsworld   symmetric    sqrt(var + 1e-5)     1e-6       one group per channel, eps 1e-5

and jeonsworld's max-pool is not padded at all. Sources: google-research/vision_transformer
`vit_jax/models_resnet.py`; timm 1.0.31 `resnetv2.py`, `StdConv2dSame`; jeonsworld/ViT-pytorch
`models/modeling_resnet.py`. The smaller the kernels, the more the first two differ: for ResNet-50
by 2e-4 of the largest feature with random kernels of standard deviation 0.2, by 3e-3 with 0.02.

Two other stems have batch norms of eps 1e-5, plain kernels and weights of their own:

    resnet_d     timm 1.0.31 `resnet.py`, `resnet50d`: a root of three 3x3 convolutions; shortcuts
                 that average before they project; symmetric padding. He et al., "Bag of Tricks",
                 https://arxiv.org/abs/1812.01187
    mobileclip   timm 1.0.31 `vision_transformer_hybrid.py`, `ConvStem`: two convolutions, each with
                 a kernel as large as its stride. timm's third is the patch convolution. Vasu et
                 al., https://arxiv.org/abs/2311.17049
    mobileclip_padded
                 apple/ml-mobileclip 4144bb1 `models/vit.py`, `ConvNormAct`: the same weights, on an
                 image with a border of one zero, (kernel - 1) // 2, so one pixel off

Letters: B images, C channels, Y rows, X columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.config.properties import stem_padding

torch.fx.wrap("pad_same")


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What a project does with the weights of a ResNet."""

    same_padding: bool
    standardise: Callable[[Tensor], Tensor]
    norm: Callable[[int], nn.Module]
    shortcut_norm: Callable[[int], nn.Module]
    averaged_shortcut: bool = False


def _over_deviation(weight: Tensor) -> Tensor:
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance.sqrt() + 1e-5)


def _as_batch_norm(weight: Tensor) -> Tensor:
    # timm's own operation, so that results are equal to the last bit.
    rows = weight.reshape(1, weight.shape[0], -1)
    return F.batch_norm(rows, None, None, training=True, eps=1e-8).reshape_as(weight)


def _over_root_of_variance(weight: Tensor) -> Tensor:
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance + 1e-5).sqrt()


def _as_it_is(weight: Tensor) -> Tensor:
    return weight


ARITHMETIC = {
    "google": Arithmetic(
        same_padding=True,
        standardise=_over_deviation,
        norm=partial(nn.GroupNorm, 32, eps=1e-6),
        shortcut_norm=partial(nn.GroupNorm, 32, eps=1e-6),
    ),
    "timm": Arithmetic(
        same_padding=True,
        standardise=_as_batch_norm,
        norm=partial(nn.GroupNorm, 32, eps=1e-5),
        shortcut_norm=partial(nn.GroupNorm, 32, eps=1e-5),
    ),
    "jeonsworld": Arithmetic(
        same_padding=False,
        standardise=_over_root_of_variance,
        norm=partial(nn.GroupNorm, 32, eps=1e-6),
        shortcut_norm=lambda channels: nn.GroupNorm(channels, channels, eps=1e-5),
    ),
    "resnet_d": Arithmetic(
        same_padding=False,
        standardise=_as_it_is,
        norm=nn.BatchNorm2d,
        shortcut_norm=nn.BatchNorm2d,
        averaged_shortcut=True,
    ),
}


class StemConv2d(nn.Conv2d):
    """Convolution without bias, padded as its style requires.

    Except in resnet_d, its kernels have mean 0 and deviation 1 per output channel: weight
    standardisation, Qiao et al., https://arxiv.org/abs/1903.10520.
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
        self.conv = StemConv2d(config.in_channels, width, 7, stride=2, style=self.style)
        self.norm = ARITHMETIC[self.style].norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, stem_width, Y / 4, X / 4)."""
        x = F.relu(self.norm(self.conv(x)))
        if ARITHMETIC[self.style].same_padding:
            x = pad_same(x, size=3, stride=2, value=-math.inf)
        return F.max_pool2d(x, kernel_size=3, stride=2)


class DeepRoot(nn.Module):
    """Three 3x3 convolutions, each with norm and ReLU, then max-pool."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, style = config.stem_width, config.stem_style
        self.conv1 = StemConv2d(config.in_channels, width // 2, 3, stride=2, style=style)
        self.norm1 = ARITHMETIC[style].norm(width // 2)
        self.conv2 = StemConv2d(width // 2, width // 2, 3, style=style)
        self.norm2 = ARITHMETIC[style].norm(width // 2)
        self.conv3 = StemConv2d(width // 2, width, 3, style=style)
        self.norm3 = ARITHMETIC[style].norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, stem_width, Y / 4, X / 4), rounded up."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)


class Shortcut(nn.Module):
    """1x1 convolution and norm around the first unit of a stage, perhaps after a 2x2 mean."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, style: str) -> None:
        super().__init__()
        self.pool: nn.Module = nn.Identity()
        if ARITHMETIC[style].averaged_shortcut and stride > 1:
            # At odd edges, padding does not count in the mean.
            self.pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False)
            stride = 1
        self.conv = StemConv2d(in_channels, out_channels, 1, stride=stride, style=style)
        self.norm = ARITHMETIC[style].shortcut_norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, out_channels, Y / stride, X / stride)."""
        out: Tensor = self.norm(self.conv(self.pool(x)))
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut; ReLU after the sum (ResNet v1)."""

    def __init__(self, in_channels: int, mid: int, *, stride: int, style: str) -> None:
        super().__init__()
        self.conv1 = StemConv2d(in_channels, mid, 1, style=style)
        self.norm1 = ARITHMETIC[style].norm(mid)
        self.conv2 = StemConv2d(mid, mid, 3, stride=stride, style=style)
        self.norm2 = ARITHMETIC[style].norm(mid)
        self.conv3 = StemConv2d(mid, 4 * mid, 1, style=style)
        self.norm3 = ARITHMETIC[style].norm(4 * mid)
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

    With `stem_depths` (3, 4, 9) this is the ResNet-50 of R50+ViT-B/16; with () it is the root
    alone, as in R+ViT-Ti/16.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.stem = DeepRoot(config) if config.resnet_d_stem else Root(config)
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


class ConvolutionAndNorm(nn.Module):
    """Convolution of squares that do not overlap, norm and GELU."""

    def __init__(self, in_channels: int, out_channels: int, size: int, padding: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, size, size, padding, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) to (B, out_channels, Y / size, X / size), with padding before division."""
        return F.gelu(self.norm(self.conv(x)))


class MobileCLIPStem(nn.Sequential):
    """A convolution of 4x4 pixels, then one of 2x2 of its outputs."""

    def __init__(self, config: ViTConfig) -> None:
        self.out_channels, padding = config.stem_width, stem_padding(config.stem_style)
        super().__init__(
            ConvolutionAndNorm(config.in_channels, self.out_channels, 4, padding),
            ConvolutionAndNorm(self.out_channels, self.out_channels, 2),
        )


def stem_of(config: ViTConfig) -> ResNetStem | MobileCLIPStem:
    """A hybrid's convolutions in front of the patch convolution, without weights."""
    return MobileCLIPStem(config) if config.mobileclip_stem else ResNetStem(config)


def pad_same(x: Tensor, size: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME padding: output = ceil(input / stride); an odd one goes below or right."""
    top, bottom = _same(x.shape[-2], size, stride)
    left, right = _same(x.shape[-1], size, stride)
    return F.pad(x, (left, right, top, bottom), value=value)


def _same(length: int, size: int, stride: int) -> tuple[int, int]:
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2
