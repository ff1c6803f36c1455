"""What follows from the fields of a ViT. Tables use these words in their conditions."""

import math

from vitconvert.config.buckets import BUCKETED, buckets
from vitconvert.config.fields import Fields
from vitconvert.config.vocabularies import MOBILECLIP_STEMS, STANDARDISED_STEMS

Size = tuple[int, int]  # down and across
# Fields that act in training only.
DROP_RATES = (
    "drop_rate",
    "embed_drop_rate",
    "attention_drop_rate",
    "proj_drop_rate",
    "drop_path_rate",
)


def stem_stride(style: str, depths: tuple[int, ...]) -> int:
    """Pixels per position of a stem's grid: root 2, pooling 2, each later stage 2."""
    return 8 if style in MOBILECLIP_STEMS else 4 * 2 ** max(len(depths) - 1, 0)


def stem_positions(pixels: int, style: str, depths: tuple[int, ...]) -> int:
    """Positions that a stem makes of a row or column of pixels."""
    if style in MOBILECLIP_STEMS:
        return (pixels + 2 * stem_padding(style)) // 4 // 2
    root = -(-pixels // 2)
    # Padded strides of 2 round up; jeonsworld's max-pooling of 3 has no padding.
    pooled = (root - 3) // 2 + 1 if style == "jeonsworld" else -(-root // 2)
    return -(-pooled // (1 << max(len(depths) - 1, 0)))


def stem_padding(style: str) -> int:
    """Zeros around the image, which MobileCLIP's first convolution reads."""
    return 1 if style == "mobileclip_padded" else 0


def patches_of(pixels: Size, patch: Size, stride: tuple[int, ...]) -> Size:
    """Patches down and across that so many pixels hold; without a stride, side by side."""
    steps = zip(pixels, patch, stride or patch, strict=True)
    rows, columns = ((whole - side) // step + 1 for whole, side, step in steps)
    return rows, columns


def pixels_of(grid: Size, patch: Size, stride: tuple[int, ...]) -> Size:
    """Pixels that so many patches cover."""
    steps = zip(grid, patch, stride or patch, strict=True)
    height, width = ((count - 1) * step + side for count, side, step in steps)
    return height, width


class Properties(Fields):
    """The properties of a `ViTConfig`, in the order of its fields."""

    # Images and patches

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.grid_of(self.image_size)

    def grid_of(self, image_size: Size) -> Size:
        """Patches down and across of images of a size; what is no whole patch is left out."""
        height, width = image_size
        if self.stem:
            style, depths = self.stem_style, self.stem_depths
            height, width = (stem_positions(size, style, depths) for size in image_size)
        return patches_of((height, width), self.patch_size, self.patch_stride)

    @property
    def num_patches(self) -> int:
        """Patch tokens."""
        return self.time_steps * self.grid_size[0] * self.grid_size[1]

    @property
    def clips(self) -> bool:
        """Whether the model reads clips, and no images."""
        return self.frames > 0

    @property
    def images(self) -> bool:
        """Whether the model reads images."""
        return not self.clips

    @property
    def time_steps(self) -> int:
        """Patches one after another in time; 1 of an image."""
        return self.frames // self.tubelet if self.clips else 1

    @property
    def tubelet_size(self) -> tuple[int, int, int]:
        """Frames, rows and columns of a patch."""
        return (self.tubelet, *self.patch_size)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels, the frames of a clip, height and width."""
        return (self.in_channels, *([self.frames] if self.clips else ()), *self.image_size)

    @property
    def square_patches(self) -> bool:
        """Whether patches are as high as wide."""
        return len(set(self.patch_size)) == 1

    @property
    def patch_height(self) -> int:
        """Rows of a patch."""
        return self.patch_size[0]

    @property
    def square(self) -> bool:
        """Whether images and patches are as high as wide."""
        return len(set(self.image_size)) == 1 and self.square_patches

    @property
    def even_heads(self) -> bool:
        """Whether the heads share the model's width."""
        return self.num_heads * self.head_dim == self.embed_dim

    # Hybrid stem

    @property
    def stem_stride(self) -> int:
        """Pixels per position of the stem's grid."""
        return stem_stride(self.stem_style, self.stem_depths) if self.stem else 1

    @property
    def standardised_stem(self) -> bool:
        """Whether the stem is a ResNet with group norms and weight standardisation."""
        return self.stem and self.stem_style in STANDARDISED_STEMS

    @property
    def resnet_d_stem(self) -> bool:
        """Whether the stem is a ResNet-D with batch norms."""
        return self.stem and self.stem_style == "resnet_d"

    @property
    def mobileclip_stem(self) -> bool:
        """Whether the stem is two convolutions with batch norms."""
        return self.stem and self.stem_style in MOBILECLIP_STEMS

    # Tokens and positions

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches: class, distillation, registers, of every window."""
        return self.prefix_of_window * max(self.window_count**2, 1)

    @property
    def prefix_of_window(self) -> int:
        """The same of one window, or of the image if windows have none of their own."""
        return int(self.class_token) + int(self.dist_token) + self.num_registers

    @property
    def learned_positions(self) -> bool:
        """Whether positions are a parameter."""
        return self.position_embedding == "learned"

    @property
    def num_positions(self) -> int:
        """Rows of the learned position table."""
        return self.num_patches + self.num_prefix_positions

    @property
    def num_prefix_positions(self) -> int:
        """Leading rows of the position table, which belong to no patch."""
        if self.no_embed_class:
            return 0
        return self.prefix_of_window - (0 if self.register_positions else self.num_registers)

    @property
    def class_position_counts(self) -> bool:
        """Whether positions number a square plus one exactly if the class token has one."""
        seen = math.isqrt(self.num_positions) ** 2 + 1 == self.num_positions
        return not self.learned_positions or seen == bool(self.num_prefix_positions)

    @property
    def computed_positions(self) -> bool:
        """Whether positions are fixed sines and cosines, which no file holds."""
        return self.position_embedding.startswith("sincos")

    @property
    def numbered_positions(self) -> bool:
        """Whether positions number a sequence, to which tokens before the patches may belong."""
        return self.learned_positions or self.position_embedding == "sincos1d"

    @property
    def moved_positions(self) -> bool:
        """Whether rounding puts patches into other buckets than their own (see `buckets`)."""
        rule = self.position_resampling
        bucketed = self.learned_positions and rule in BUCKETED
        return bucketed and any(buckets(n, n, rule) != tuple(range(n)) for n in self.grid_size)

    # Positions on a grid of their own

    @property
    def grid_positions(self) -> bool:
        """Whether learned positions have a grid of their own, which is fitted to the image's."""
        return self.position_embedding == "grid"

    @property
    def class_grid_positions(self) -> bool:
        """Whether such positions come after a row that is not used."""
        return self.position_embedding == "class_grid"

    @property
    def one_position(self) -> bool:
        """Whether every patch gets the same learned vector."""
        return self.position_embedding == "one"

    @property
    def axis_positions(self) -> bool:
        """Whether rows and columns have learned positions, which are added."""
        return self.position_embedding == "axes"

    @property
    def own_grid(self) -> bool:
        """Whether the model fits its positions to the grid of the image."""
        return self.grid_positions or self.class_grid_positions or self.axis_positions

    @property
    def fitted_grid(self) -> bool:
        """Whether such positions are of another grid than the image, and how they fit matters."""
        return self.own_grid and self.position_grid != self.grid_size

    @property
    def position_side(self) -> int:
        """Rows of positions with a grid of their own."""
        return self.position_grid[0] if self.position_grid else 0

    @property
    def position_count(self) -> int:
        """How many positions a grid of their own has."""
        return math.prod(self.position_grid) if self.position_grid else 0

    @property
    def position_pixels(self) -> int:
        """Rows of an image that has the grid of such positions."""
        return self.position_side * self.patch_size[0]

    # Rotary embedding and relative positions

    @property
    def vjepa_rope(self) -> bool:
        """Whether time, rows and columns rotate a third of a head's channels each."""
        return self.rope in ("vjepa2", "vjepa2_1")

    @property
    def mixed_rope(self) -> bool:
        """Whether the frequencies of the rotary embedding are learned."""
        return self.rope == "mixed"

    @property
    def block_relative_positions(self) -> bool:
        """Whether each block has a table of relative positions."""
        return self.relative_positions == "block"

    @property
    def shared_relative_positions(self) -> bool:
        """Whether all blocks share a table of relative positions."""
        return self.relative_positions == "shared"

    @property
    def block_relative_mlp(self) -> bool:
        """Whether each block has an MLP that makes its relative positions."""
        return self.relative_positions == "block_mlp"

    @property
    def shared_relative_mlp(self) -> bool:
        """Whether all blocks share an MLP that makes their relative positions."""
        return self.relative_positions == "shared_mlp"

    @property
    def tabulated_positions(self) -> bool:
        """Whether relative positions are a table of all pairs of tokens."""
        return self.relative_positions not in ("none", "decomposed")

    @property
    def decomposed_positions(self) -> bool:
        """Whether q meets relative positions of rows and of columns."""
        return self.relative_positions == "decomposed"

    # Blocks

    @property
    def single_branch(self) -> bool:
        """Whether a block has one attention and one MLP."""
        return self.branches == 1

    @property
    def parallel_branches(self) -> bool:
        """Whether a block has several attentions and MLPs side by side."""
        return self.branches > 1

    @property
    def parallel_order(self) -> bool:
        """Whether attention and MLP read the same tokens."""
        return self.block_order == "parallel"

    @property
    def two_steps(self) -> bool:
        """Whether a block is one attention, then one MLP."""
        return self.single_branch and not self.parallel_order

    @property
    def sandwich(self) -> bool:
        """Whether each branch has a norm before and after it."""
        return self.block_order == "sandwich"

    @property
    def joined_proj(self) -> bool:
        """Whether attention and MLP share the last matrix."""
        return self.parallel_order and self.differential

    @property
    def separate_proj(self) -> bool:
        """Whether the attention and the MLP of a block have a last matrix each."""
        return self.single_branch and not self.joined_proj

    @property
    def own_mlp_bias(self) -> bool:
        """Whether the MLP has a bias of its own; its first matrix is shared with q, k and v."""
        return self.parallel_order and not self.qkv_bias

    # Attention

    @property
    def shared_kv(self) -> bool:
        """Whether several heads of q may share one of k and v."""
        return bool(self.kv_heads)

    @property
    def joined_qkv(self) -> bool:
        """Whether q, k and v come from one matrix; heads that share k and v need three."""
        return self.two_steps and not self.shared_kv

    @property
    def free_pairs(self) -> bool:
        """Whether a rotary embedding of axes alone reads the order of q's and k's channels."""
        normed = self.qk_norm or self.whole_qk_norm or self.rope_by_axis
        return self.rope == "axial" and self.joined_qkv and not normed

    @property
    def windowed(self) -> bool:
        """Whether attention is within windows in some block."""
        return self.window_size > 0

    @property
    def window_blocks(self) -> tuple[int, ...]:
        """Blocks whose attention is within windows."""
        blocks = range(self.depth) if self.windowed or self.window_count else ()
        return tuple(i for i in blocks if i not in self.global_blocks)

    @property
    def global_stages(self) -> tuple[int, ...]:
        """Blocks without windows, and the number of blocks: what RF-DETR's backbone gives."""
        return (*self.global_blocks, self.depth)

    @property
    def whole_windows(self) -> bool:
        """Whether the grid is made of windows."""
        return not self.windowed or not any(side % self.window_size for side in self.grid_size)

    @property
    def window_pixels(self) -> int:
        """Side of a window in pixels, where patches are square."""
        return self.window_image[0]

    @property
    def window_image(self) -> tuple[int, int]:
        """An image of one window."""
        return self.window_size * self.patch_size[0], self.window_size * self.patch_size[1]

    def attended_grid(self, block: int) -> tuple[int, int]:
        """Patches down and across that a block's attention sees at once."""
        side = self.window_size
        return (side, side) if block in self.window_blocks else self.grid_size

    # After the blocks

    @property
    def merge_mlp(self) -> bool:
        """Whether an MLP merges patches."""
        return self.merge_size > 0 and self.merge_mlp_dim > 0

    @property
    def plain_merge(self) -> bool:
        """Whether a second layer ends the MLP that merges patches."""
        return not self.merge_gated_dim

    @property
    def whole_squares(self) -> bool:
        """Whether the grid is made of squares that are merged."""
        return not self.merge_size or not any(side % self.merge_size for side in self.grid_size)

    @property
    def map_pooling(self) -> bool:
        """Whether a learned query pools the tokens by attention."""
        return self.pooling == "map"

    @property
    def feature_dim(self) -> int:
        """Width of what the head reads."""
        width = self.merge_dim if self.merge_mlp else self.neck_dim or self.embed_dim
        pooled = width * (2 if self.pooling == "token_avg" else 1)
        return self.representation_size or pooled

    @property
    def stated_problem(self) -> str:
        """The type of problem that a file may state; "" of a model without one, or without a head.

        transformers refuses a single label of one class (5.24, `PreTrainedConfig`).
        """
        alone = self.num_classes == 1 and self.problem_type == "single_label_classification"
        unsaid = self.problem_type == "none" or not self.num_classes or alone
        return "" if unsaid else self.problem_type

    @property
    def score_function(self) -> str:
        """What is made of the logits: "softmax", "sigmoid", or "none" of a regression.

        As `ImageClassificationPipeline` of transformers 5.24 has it, also of a single class, of
        which a softmax would always make 1.
        """
        if self.problem_type == "regression":
            return "none"
        several = self.problem_type == "multi_label_classification" or self.num_classes == 1
        return "sigmoid" if several else "softmax"
