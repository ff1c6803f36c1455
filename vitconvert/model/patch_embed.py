"""From pixels to the first tokens.

Letters: B images, C channels, D width.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.inputs import checked_images, whole_patches
from vitconvert.model.layers import norm_if, norm_of
from vitconvert.model.stem import stem_of
from vitconvert.model.timm_interface import PatchEmbedInterface

torch.fx.wrap("checked_images")


class PatchEmbed(PatchEmbedInterface):
    """Cuts images, or the feature map of a hybrid's stem, into patches and projects each."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.backbone = stem_of(config) if config.stem else None
        channels = self.backbone.out_channels if self.backbone else config.in_channels
        pixels = channels * config.patch_size[0] * config.patch_size[1]
        self.pre_norm = norm_of(pixels, config) if config.patch_pre_norm else None
        self.config = config
        down, across = config.patch_stride or config.patch_size
        self.proj = nn.Conv2d(
            channels, config.embed_dim, config.patch_size, (down, across), bias=config.patch_bias
        )
        self.norm = norm_if(config.patch_norm, config.embed_dim, config)
        # As cuDNN computes it, the convolution of a base takes a tenth of the time of the whole
        # model (bfloat16, 256 images, H200, torch 2.11). FastViT sets it.
        self.product_on_gpu = False
        # Of a graph for any size: a product of patches, because its reshape fails where pixels are
        # left over, which a convolution would leave out.
        self.product_of_whole = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, height, width) to (B, patches, D).

        Raises:
            InputMismatch: The images have the wrong size, channel count, rank or dtype.
        """
        images, padding = self.checked(images), self.config.patch_padding
        images = 2 * (images - 0.5) if self.config.centred_pixels else images
        images = F.pad(images, (padding,) * 4) if padding else images
        x = images if self.backbone is None else self.backbone(images)
        patches: Tensor = self.norm(self._project(x))
        return patches

    def checked(self, images: Tensor) -> Tensor:
        """The images, or InputMismatch if they do not fit the model."""
        config = self.config
        size = config.image_size if self.strict_img_size else None
        images = checked_images(images, config.in_channels, size, self.a_weight())
        if not self.strict_img_size and not torch.compiler.is_compiling():
            config.replace(image_size=(images.shape[2], images.shape[3]))  # which refuses what
            if not self.cuts_off:  # no model can have
                whole_patches(images, config)
        return images

    def a_weight(self) -> Tensor:
        """A tensor that has the dtype and the device of the weights."""
        weight = getattr(self.proj, "weight", None)  # an adapter's layer around it may have none
        return weight if isinstance(weight, Tensor) else next(self.proj.parameters())

    def _project(self, x: Tensor) -> Tensor:
        apart = self.config.patch_stride in ((), self.config.patch_size)
        as_product = (self.product_on_gpu and apart and x.is_cuda) or self.product_of_whole
        if self.pre_norm is None and not as_product:
            grid: Tensor = self.proj(x)
            return grid.flatten(2).transpose(1, 2)
        height, width = self.config.patch_size
        rows, columns = x.shape[2] // height, x.shape[3] // width
        if not self.product_of_whole:  # as a convolution leaves the rest out
            x = x[:, :, : rows * height, : columns * width]
        grid = x.reshape(x.shape[0], x.shape[1], rows, height, columns, width)
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        # lucidrains' ViT normalises the pixels of each patch, which no convolution can do. Its
        # pixels are ordered (y x channel), ours (channel y x) like the kernel; the tables convert.
        patches = patches if self.pre_norm is None else self.pre_norm(patches)
        if type(self.proj) is nn.Conv2d:
            return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)
        # An adapter's layer around the convolution reads pixels: of each patch, as one image.
        pixels = patches.reshape(-1, x.shape[1], height, width)
        return cast("Tensor", self.proj(pixels).reshape(x.shape[0], rows * columns, -1))
