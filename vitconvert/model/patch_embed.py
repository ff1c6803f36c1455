"""From pixels to the first tokens.

Letters: B images, C channels, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import norm_if, norm_of
from vitconvert.model.stem import stem_of


class PatchEmbed(nn.Module):
    """Cuts images, or the feature map of a hybrid's stem, into patches and projects each."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.backbone = stem_of(config) if config.stem else None
        channels = self.backbone.out_channels if self.backbone else config.in_channels
        pixels = channels * config.patch_size[0] * config.patch_size[1]
        self.pre_norm = norm_of(pixels, config) if config.patch_pre_norm else None
        down, across = config.patch_stride or config.patch_size
        self.proj = nn.Conv2d(
            channels, config.embed_dim, config.patch_size, (down, across), bias=config.patch_bias
        )
        self.norm = norm_if(config.patch_norm, config.embed_dim, config)
        self.centred_pixels = config.centred_pixels
        self.padding = config.patch_padding
        # As cuDNN computes it, the convolution of a base takes a tenth of the time of the whole
        # model (bfloat16, 256 images, H200, torch 2.11). FastViT sets it.
        self.product_on_gpu = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, height, width) to (B, patches, D)."""
        images = 2 * (images - 0.5) if self.centred_pixels else images
        images = F.pad(images, (self.padding,) * 4) if self.padding else images
        x = images if self.backbone is None else self.backbone(images)
        patches: Tensor = self.norm(self._project(x))
        return patches

    def _project(self, x: Tensor) -> Tensor:
        apart = self.proj.stride == self.proj.kernel_size
        if self.pre_norm is None and not (self.product_on_gpu and x.is_cuda and apart):
            grid: Tensor = self.proj(x)
            return grid.flatten(2).transpose(1, 2)
        height, width = self.proj.kernel_size
        rows, columns = x.shape[2] // height, x.shape[3] // width
        x = x[:, :, : rows * height, : columns * width]  # as a convolution leaves the rest out
        grid = x.reshape(*x.shape[:2], rows, height, columns, width)
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        # lucidrains' ViT normalises the pixels of each patch, which no convolution can do. Its
        # pixels are ordered (y x channel), ours (channel y x) like the kernel; the tables convert.
        patches = patches if self.pre_norm is None else self.pre_norm(patches)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)
