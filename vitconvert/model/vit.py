"""A Vision Transformer from scratch, to be read once from top to bottom.

Dosovitskiy et al., "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929. Operations
and their order are those of timm 1.0.31 (`VisionTransformer`), so that float32 results on a CPU
are equal to the last bit. Everything that varies between published ViTs is a field of `ViTConfig`;
names and shapes of the parameters are those of `weights_map/canonical.toml`. Its parts, in the
order of the way of an image: `patch_embed.py`, `positions.py`, `blocks.py` of `attention.py`, and
`heads.py`. Maps of attention and pruning are functions in `attention_maps.py` and `pruning.py`;
what code around timm's ViT reads and calls besides is in `timm_interface.py`.

Letters: B images, C channels, N tokens (prefix tokens, then patches row by row; of clips, those of
the first frames, then those of the next), D width,
H heads, K width of a head.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitconvert.config import ViTConfig
from vitconvert.model.attention import TokenPositions
from vitconvert.model.blocks import AnyBlock
from vitconvert.model.heads import AttentionPool, PreLogits, classifier, pool
from vitconvert.model.hub import HubMethods
from vitconvert.model.initialisation import initialise
from vitconvert.model.inputs import HeadMask, attention_mask, head_masks
from vitconvert.model.intermediates import Intermediates, forward_intermediates
from vitconvert.model.layers import bare_norm_if, final_norm_of, norm_if, unset
from vitconvert.model.necks import Neck, merger_of
from vitconvert.model.open_sizes import Grid, is_open
from vitconvert.model.patch_embed import patch_embed_of
from vitconvert.model.positions import computed_positions, positions_of
from vitconvert.model.relative_positions import relative_tables, shared_relative_positions
from vitconvert.model.rope import RotaryEmbedding, rotary_tables
from vitconvert.model.timm_interface import TimmInterface
from vitconvert.model.windows import block_of, mask_of_windows, with_tokens_of_windows

torch.fx.wrap("head_masks")
torch.fx.wrap("rotary_tables")


class ViT(HubMethods, TimmInterface):
    """The Vision Transformer that a `ViTConfig` describes.

    `model(images)` takes (B, in_channels, *image_size) floats and returns (B, num_classes) logits,
    features if num_classes is 0, and one row for each token if pooling is "none". With `frames`,
    `model(clips)` takes (B, in_channels, frames, *image_size); classes of transformers read
    `clips.transpose(1, 2)`. Weights are initialised in timm's style, unless the device is "meta",
    where nothing is allocated: `load_state_dict(..., assign=True)` then provides the weights.

    Args:
        config: The architecture; kept as `model.config`.
        device: Where the parameters are; by default torch's default device.
        dtype: Of the parameters; by default torch's default dtype.
    """

    pos_embed: Tensor | None
    relative_index: Tensor | None
    relative_offsets: Tensor | None
    window_mask: Tensor | None

    def __init__(
        self,
        config: ViTConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        device = torch.get_default_device() if device is None else torch.device(device)
        # The layers' own initialisation would be overwritten; on "meta" it costs nothing.
        with torch.device("meta"):
            self._build(config)
        self.to(dtype=dtype)
        if device.type != "meta":
            self.to_empty(device=device)
            initialise(self, "timm")
        # Tables that no checkpoint contains are computed even for a model on "meta".
        self._compute_tables(device, dtype)

    def _build(self, config: ViTConfig) -> None:
        self.config = config
        self.loaded_from: object = None  # what `checkpoint.from_model` remembers of the files
        D = config.embed_dim
        self.patch_embed = patch_embed_of(config)
        self.cls_token = unset(1, D) if config.class_token else None
        self.dist_token = unset(1, D) if config.dist_token else None
        self.reg_token = unset(config.num_registers, D) if config.num_registers else None
        if not config.computed_positions:
            self.pos_embed = unset(config.num_positions, D) if config.learned_positions else None
        self.positions = positions_of(config)
        self.register_buffer("relative_index", None, persistent=False)
        self.register_buffer("relative_offsets", None, persistent=False)
        self.register_buffer("window_mask", None, persistent=False)
        self.rel_pos_bias = shared_relative_positions(config)
        self.rope = RotaryEmbedding(config) if config.rope != "none" else None
        self.embed_drop = nn.Dropout(config.embed_drop_rate)
        self.norm_pre = norm_if(config.pre_norm, D, config)
        self.blocks = nn.Sequential(*(block_of(config, layer) for layer in range(config.depth)))
        self.norm = final_norm_of(config)
        self.neck = Neck(config) if config.neck_dim else nn.Identity()
        self.merge = merger_of(config)
        self.attn_pool = AttentionPool(config) if config.map_pooling else None
        self.fc_norm = norm_if(config.fc_norm, D, config, eps=config.fc_norm_eps)
        self.bare_fc_norm = bare_norm_if(config)
        self.pre_logits = PreLogits(config) if config.representation_size else nn.Identity()
        self.head_drop = nn.Dropout(config.drop_rate)
        self.head = classifier(config)
        self.head_dist = classifier(config) if config.dist_head else None

    def _compute_tables(self, device: torch.device, dtype: torch.dtype | None) -> None:
        tables = relative_tables(self.config, self.config.grid_size)
        if self.config.computed_positions:
            tables["pos_embed"] = computed_positions(self.config)[None]
        if self.config.window_count:
            tables["window_mask"] = mask_of_windows(self.config)
        place = None if device.type == "meta" else device
        for name, table in tables.items():
            table = table.to(place, dtype if table.is_floating_point() else None)
            self.register_buffer(name, table, persistent=False)

    def configure(self, config: ViTConfig) -> None:
        """Give the model, and each part that reads it, another configuration."""
        resized = config.grid_size != self.config.grid_size
        super().configure(config)
        if resized:
            table = self.pos_embed if config.computed_positions else self.relative_offsets
            dtype = None if table is None else table.dtype
            self._compute_tables(self.patch_embed.a_weight().device, dtype)

    def forward(self, images: Tensor, head_mask: HeadMask = None) -> Tensor:
        """Logits, or features without a head.

        Args:
            images: (B, in_channels, *image_size), or (B, in_channels, frames, *image_size), of the
                dtype of the weights; images of any height and width if the model was loaded with
                `dynamic_size`.
            head_mask: Factors for the heads' outputs, (depth, H), or for each block (H,) or None;
                0 switches a head off.

        Raises:
            InputMismatch: The images have the wrong size, channel count, rank or dtype.
            UsageError: The mask does not fit this model.
        """
        tokens = self.forward_features(images, head_mask)
        return self.forward_head(tokens, grid=self.grid_of(images))

    def grid_of(self, images: Tensor) -> Grid:
        """Patches down and across: the model's own, or those of the images if their size is free.

        Sizes of another grid than the model's own are fitted in each pass: positions by the rule of
        the library that the model comes from, as `load_model(image_size=...)` fits them once.
        """
        if not self.dynamic_img_size:
            return self.config.grid_size
        return self.config.grid_of((images.shape[2], images.shape[3]))

    def forward_features(self, images: Tensor, head_mask: HeadMask = None) -> Tensor:
        """All tokens after the last block and the final norm, (B, N, D).

        With a neck, what it makes of them, (B, N, neck_dim).
        """
        for x in self.residual_stream(images, head_mask):  # noqa: B007
            pass
        return self.finished(x, self.grid_of(images))

    def finished(self, x: Tensor, grid: Grid) -> Tensor:
        """The last block's tokens after the final norm and the neck."""
        x = self.norm(x)
        tokens: Tensor = self.neck(x, grid) if self.config.neck_dim else x
        return tokens

    def forward_head(
        self, x: Tensor, pre_logits: bool = False, *, grid: Grid | None = None
    ) -> Tensor:
        """Tokens (B, N, D) to logits, or to what the head reads if `pre_logits`.

        With `dist_head`, the mean of both heads' logits, in training too: timm's default. `grid` is
        that of the patches, which mergers read; by default the model's own.
        """
        if self.head_dist is not None:
            cls, dist = self._features(x[:, 0]), self._features(x[:, 1])
            if not pre_logits:
                cls, dist = self.head(cls), self.head_dist(dist)
            return (cls + dist) / 2
        if self.config.merge_size:
            x = self.merge(x, grid)
        features = self._features(self.pool(x))
        return features if pre_logits else self.head(features)

    def pool(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to (B, D), (B, 2D) if "token_avg", unchanged if pooling is "none"."""
        return pool(x, self.config, self.attn_pool)

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Intermediates | tuple[Tensor, Intermediates] | dict[str, Any]:
        """The final tokens and the outputs of chosen blocks: `intermediates.py` has the options."""
        options = (indices, return_prefix_tokens, norm, stop_early, output_fmt)
        grid = self.grid_of(images)
        mask = attention_mask(attn_mask, is_causal, self.config, grid, images.device)
        stream = self.residual_stream(images, mask=mask)
        finish = partial(self.finished, grid=grid)
        return forward_intermediates(
            stream, finish, self.config, grid, *options, intermediates_only, output_dict
        )

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        attn_mask: Tensor | None = None,
    ) -> Intermediates:
        """Outputs of the last `n` blocks or of the blocks `n`, as in DINO and timm."""
        options = (return_prefix_tokens, norm, True, "NCHW" if reshape else "NLC", True)
        outputs = self.forward_intermediates(images, n, *options, attn_mask=attn_mask)
        return cast("Intermediates", outputs)

    def hidden_states(self, images: Tensor) -> tuple[Tensor, ...]:
        """The embedded tokens and each block's output, (B, N, D) each, before the final norm."""
        return tuple(self.residual_stream(images))

    def residual_stream(
        self,
        images: Tensor,
        head_mask: HeadMask = None,
        wanted: int | None = None,
        mask: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """The embedded tokens, then each block's output; of the last block, `wanted` tokens.

        `mask` is of `attention_mask`: what each token may attend to.
        """
        blocks = cast("list[AnyBlock]", list(self.blocks))
        masks = head_masks(head_mask, [block.num_heads for block in blocks])
        grid = self.grid_of(images)
        x = self.norm_pre(self._pos_embed(self.patch_embed(images), grid))
        yield x
        # Masks are numbered, not iterated over: torch.fx cannot know how many there are.
        for layer, positions in enumerate(self.token_positions(grid)):
            block = blocks[layer]
            if layer == len(blocks) - 1:
                positions = positions._replace(wanted=wanted)
            positions = positions if mask is None else positions._replace(mask=mask)
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, masks[layer], positions, use_reentrant=False)
            else:
                x = block(x, masks[layer], positions)
            yield x

    def _pos_embed(self, patches: Tensor, grid: Grid | None = None) -> Tensor:
        """Patches (B, P, D) to tokens (B, N, D): with prefix tokens and positions; timm's name."""
        grid = grid or self.config.grid_size
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        # Not len(patches), which would fix the batch size of an exported model.
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens if token is not None]
        x: Tensor = self.positions(patches, prefix, self.pos_embed, grid)
        if self.config.window_count:
            x = with_tokens_of_windows(x, self.config)
        return cast("Tensor", self.embed_drop(x))

    def token_positions(self, grid: Grid | None = None) -> Iterator[TokenPositions]:
        """For each block, what its attention gets of its tokens' positions.

        Args:
            grid: Patches down and across; by default the model's own.
        """
        grid = grid or self.config.grid_size
        index, offsets, shared = self.relative_index, self.relative_offsets, self.rel_pos_bias
        other = self.dynamic_img_size and (is_open(grid) or grid != self.config.grid_size)
        if other and self.config.tabulated_positions:
            tables = relative_tables(self.config, grid)
            index, offsets = tables["relative_index"], tables.get("relative_offsets")
            offsets = None if offsets is None else offsets.to(self.patch_embed.a_weight())
        fitted = grid if other else None
        bias = None if shared is None else shared(offsets, index, fitted)
        layers = range(len(self.blocks))
        ropes: Sequence[Tensor | None] = [None] * len(layers)
        if self.rope is not None:
            ropes = rotary_tables(self.rope, self.patch_embed.a_weight(), grid)
        mask = self.window_mask
        if other and self.config.window_count:
            mask = mask_of_windows(self.config, grid).to(self.patch_embed.a_weight().device)
        masks = dict.fromkeys(self.config.window_blocks, mask)
        return (
            TokenPositions(ropes[layer], index, offsets, bias, mask=masks.get(layer), grid=fitted)
            for layer in layers
        )

    def _features(self, pooled: Tensor) -> Tensor:
        features: Tensor = self.head_drop(self.pre_logits(self.bare_fc_norm(self.fc_norm(pooled))))
        return features
