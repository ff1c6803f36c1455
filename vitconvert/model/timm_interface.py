"""What code around timm's `VisionTransformer` reads of it and calls, by timm's names.

Necks of segmentation models, self-supervised trainers, `timm.optim` and recipes for features find
the attributes and methods of timm 1.0.31 here. All of it follows from `ViTConfig`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.errors import ConflictingFact, UsageError, warn
from vitconvert.model.heads import AttentionPool, classifier
from vitconvert.model.initialisation import POSITIONS
from vitconvert.model.inputs import chosen_layers
from vitconvert.model.layers import bare_norm_if, drop_path_rates
from vitconvert.model.resizing import resize
from vitconvert.model.rope import RotaryEmbedding

if TYPE_CHECKING:
    from vitconvert.model.patch_embed import ClipEmbed, PatchEmbed

_KERNEL = "patch_embed.proj.weight"


class PatchEmbedInterface(nn.Module):
    """The attributes of timm's `PatchEmbed`, and of its `HybridEmbed`."""

    config: ViTConfig
    flatten = True  # the patches come as (B, N, D)
    output_fmt = "NCHW"  # timm's, where they are flattened
    strict_img_size = True  # False: height and width are free, as `load_model` sets it
    cuts_off = False  # what is no whole patch, of images of a free size; otherwise it is an error
    dynamic_img_pad = False

    @property
    def in_chans(self) -> int:
        """Channels of an image."""
        return self.config.in_channels

    @property
    def img_size(self) -> tuple[int, int]:
        """Pixels down and across."""
        return self.config.image_size

    @property
    def patch_size(self) -> tuple[int, int]:
        """Pixels of a patch, or places of a hybrid's feature map."""
        return self.config.patch_size

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.config.grid_size

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.config.num_patches

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        """Pixels from one patch to the next: the larger of down and across, or both."""
        rows, columns = self.config.patch_stride or self.config.patch_size
        both = rows * self.config.stem_stride, columns * self.config.stem_stride
        return max(both) if as_scalar else both

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Patches down and across of an image of another size."""
        return self.config.replace(image_size=parse_field("image_size", img_size)).grid_size


class TimmInterface(nn.Module):
    """The attributes and methods of timm's `VisionTransformer` that are no part of its function."""

    config: ViTConfig
    patch_embed: "PatchEmbed | ClipEmbed"
    embed_drop: nn.Module
    blocks: nn.Sequential
    rope: RotaryEmbedding | None
    norm: nn.Module
    neck: nn.Module
    merge: nn.Module
    attn_pool: AttentionPool | None
    fc_norm: nn.Module
    bare_fc_norm: nn.Module
    pre_logits: nn.Module
    head: nn.Module
    head_dist: nn.Module | None
    # Keys of `pretrained_cfg` on images, what timm's pixels by them are not, and why the rule for
    # other sizes is not known. All are of the checkpoint: `load_model` sets them.
    image_cfg: Mapping[str, Any] = {}
    image_doubt: str = ""
    resampling_doubt: str = ""
    grad_checkpointing = False

    # Facts

    @property
    def dynamic_img_size(self) -> bool:
        """Whether height and width of the images are free."""
        return not self.patch_embed.strict_img_size

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0 without one."""
        return self.config.num_classes

    @property
    def in_chans(self) -> int:
        """Channels of an image."""
        return self.config.in_channels

    @property
    def embed_dim(self) -> int:
        """Channels of a token."""
        return self.config.embed_dim

    @property
    def num_features(self) -> int:
        """Channels of what `forward_features` gives."""
        return self.config.neck_dim or self.config.embed_dim

    @property
    def head_hidden_size(self) -> int:
        """Channels of what the head reads."""
        return self.config.feature_dim

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches."""
        return self.config.num_prefix_tokens

    @property
    def num_reg_tokens(self) -> int:
        """Registers, which are some of them."""
        return self.config.num_registers

    @property
    def has_class_token(self) -> bool:
        """Whether a class token comes first."""
        return self.config.class_token

    @property
    def no_embed_class(self) -> bool:
        """Whether positions are added to the patches alone."""
        return self.config.no_embed_class

    @property
    def pool_include_prefix(self) -> bool:
        """Whether pooling reads the prefix tokens too."""
        return self.config.pool_include_prefix

    @property
    def global_pool(self) -> str:
        """The pooling in timm's words: "" for none."""
        return "" if self.config.pooling == "none" else self.config.pooling

    @property
    def pos_drop(self) -> nn.Module:
        """The dropout after the positions; here `embed_drop`."""
        return self.embed_drop

    @property
    def patch_drop(self) -> nn.Module:
        """timm's dropout of whole patches, which no model here has."""
        return nn.Identity()

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """For each block its module, its channels, and pixels from one feature to the next."""
        ratio, config = self.patch_embed.feat_ratio(), self.config
        normed = {"num_chs_norm": config.neck_dim} if config.neck_dim else {}
        return [
            {"module": f"blocks.{i}", "num_chs": config.embed_dim, **normed, "reduction": ratio}
            for i in range(config.depth)
        ]

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """timm's record of a model: what an image becomes, and which layers are first and last.

        `mean`, `std` and the like are the nearest that timm can do with images. They are missing
        where the checkpoint does not show them, or timm has nothing near.

        Warns:
            VitConvertWarning: timm prepares images differently from the checkpoint's library. Once
                for a model.
        """
        if self.image_doubt:
            warn(f"pretrained_cfg: {self.image_doubt}")
            self.image_doubt = ""  # said once: timm reads this in several lines
        convolutions = (n for n, m in self.named_modules() if isinstance(m, nn.Conv2d | nn.Conv3d))
        return {
            **self.image_cfg,
            "num_classes": self.num_classes,
            "input_size": self.config.input_shape,
            "fixed_input_size": not self.dynamic_img_size,
            "first_conv": next(convolutions, None),
            "classifier": "head" if self.head_dist is None else ("head", "head_dist"),
        }

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The older name of `pretrained_cfg`."""
        return self.pretrained_cfg

    # Training

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that should have no weight decay, besides vectors."""
        tokens = {"cls_token", "reg_token", "dist_token"}
        tables = ("relative_position_bias_table", "rope.freqs", "rope.class_angles", *POSITIONS)
        return tokens | {name for name, _ in self.named_parameters() if name.endswith(tables)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Patterns of parameter names for decay of learning rates by layer: the stem, each block.

        What none of them matches is a group with the head. `coarse` changes nothing, as in timm.
        """
        stem = "^cls_token|dist_token|reg_token|pos_embed|positions|patch_embed|norm_pre"
        if self.config.shared_relative_positions:
            stem += "|rel_pos_bias"
        return {"stem": stem, "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.grad_checkpointing = enable

    # The head

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        """The head, or both of them."""
        return self.head if self.head_dist is None else (self.head, self.head_dist)

    def reset_classifier(
        self, num_classes: int, global_pool: str | None = None, *, pooling: str | None = None
    ) -> None:
        """Replace the head by one initialised as `nn.Linear` is, and the pooling if one is given.

        Args:
            num_classes: Of the new head; 0: no head.
            global_pool: The pooling: timm's word, or one of `ViTConfig`'s ("none" is timm's "").
            pooling: The same by our name.

        Raises:
            ConflictingFact: The pooling needs weights or tokens that the model does not have.
        """
        wanted = global_pool if pooling is None else pooling
        wanted = self.config.pooling if wanted is None else wanted or "none"
        if self.head_dist is not None and wanted == "none":
            wanted = self.config.pooling  # both heads read their own token, in timm too
        if wanted == "map" and self.attn_pool is None:
            raise ConflictingFact("This model has no weights for attention pooling.")
        self.configure(self.config.replace(num_classes=num_classes, pooling=wanted))
        self.attn_pool = self.attn_pool if wanted == "map" else None
        self.bare_fc_norm = bare_norm_if(self.config)  # as wide as what is pooled now
        like = self.patch_embed.a_weight()
        self.head = classifier(self.config).to(like).train(self.training)
        if self.head_dist is not None:
            self.head_dist = classifier(self.config).to(like).train(self.training)

    # Sizes and depth

    def set_input_size(
        self,
        img_size: int | tuple[int, int] | None = None,
        patch_size: int | tuple[int, int] | None = None,
    ) -> None:
        """Fit the model to images, patches or both of another size, as `load_model` does.

        Raises:
            UsageError: The image would be no whole number of patches, or the patches of this model
                cannot be resized.
            MissingFact: Nothing tells by which rule the model's library resamples positions.
        """
        before = dict(self.named_parameters())
        sizes = {"image_size": img_size, "patch_size": patch_size}
        if patch_size is not None and self.config.images and _KERNEL not in before:
            raise UsageError(
                "The patch convolution is wrapped in another layer, and cannot be resized.",
                hint="resize first, and add adapters later.",
            )
        with torch.no_grad():
            tensors, config, _ = resize(before, self.config, **sizes, doubt=self.resampling_doubt)
        for name, tensor in tensors.items():
            if tensor is not (old := before[name]):
                place, _, last = name.rpartition(".")
                fitted = nn.Parameter(tensor, requires_grad=old.requires_grad)
                setattr(self.get_submodule(place), last, fitted)
        if config.patch_size != self.config.patch_size:
            proj = cast("PatchEmbed", self.patch_embed).proj  # those of clips are not resized
            proj.kernel_size = proj.stride = config.patch_size
        self.configure(config)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove the blocks after the last one asked for, for good.

        Args:
            indices: How many of the last blocks are asked for, or which (negative: from the end).
            prune_norm: Whether the final norm, and the neck, go too.
            prune_head: Whether the head goes, with what leads to it.

        Returns:
            Numbers of the blocks that were asked for, from 0.

        Raises:
            UsageError: The model has no such blocks.
        """
        taken = chosen_layers(indices, self.config.depth)
        depth = max(taken) + 1
        changes: dict[str, Any] = {"depth": depth, "kv_heads": self.config.kv_heads[:depth]}
        changes["drop_path_rate"] = drop_path_rates(self.config)[depth - 1]
        self.blocks = self.blocks[:depth]
        if self.rope is not None and self.rope.freqs is not None:
            kept = self.rope.freqs.detach()[:, :depth].clone()
            self.rope.freqs = nn.Parameter(kept, requires_grad=self.rope.freqs.requires_grad)
        if prune_norm:
            changes |= {"final_norm": False, "neck_dim": 0}
            self.norm = self.neck = nn.Identity()
        if prune_head := prune_head or (prune_norm and self.config.neck_dim > 0):
            changes |= dict.fromkeys(("merge_size", "merge_mlp_dim", "merge_dim"), 0)
            changes |= {"merge_gated_dim": 0, "merge_standard": False, "representation_size": 0}
            changes |= {"fc_norm": False, "bare_fc_norm": False}
            self.merge = self.fc_norm = self.pre_logits = nn.Identity()
        before = self.config.depth
        self.configure(self.config.replace(**changes))
        if prune_head:
            self.reset_classifier(0, "")
        return taken if isinstance(indices, int) else [index % before for index in indices]

    def configure(self, config: ViTConfig) -> None:
        """Give the model, and each part that reads it, another configuration."""
        for part in self.modules():
            if isinstance(getattr(part, "config", None), ViTConfig):
                part.config = config  # type: ignore[assignment]
