"""What decides the function that a Vision Transformer computes, besides its weights.

Names are those of the literature (timm's where there is one). Fields that matter have no default:
they must be known from the tensors, the checkpoint's own configuration, the dialect's table or the
user, and `origins` says from which of these each value comes.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vitconvert.config.contradictions import contradictions
from vitconvert.config.vocabularies import STANDARDISED_STEMS, VOCABULARIES
from vitconvert.errors import ConflictingFact

# Axes of the canonical layouts whose size is the same in every ViT.
FIXED_AXES = {
    "qkv": 3,
    "kv": 2,
    "gate": 2,
    "axis": 2,
    "root_y": 7,
    "root_x": 7,
    "unit_y": 3,
    "unit_x": 3,
    "four_y": 4,
    "four_x": 4,
    "two_y": 2,
    "two_x": 2,
    "bound": 4,
}


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The architecture and the numerics of one Vision Transformer.

    Sizes are in pixels (`image_size`, `patch_size`: height, width), tokens or channels.

    Raises:
        ConflictingFact: Fields contradict each other or have values outside their vocabulary.
    """

    vocabularies: ClassVar[Mapping[str, tuple[str, ...]]] = VOCABULARIES

    # Geometry
    image_size: tuple[int, int]
    # Kernel of the patch convolution, on the stem's grid if there is one
    patch_size: tuple[int, int]
    in_channels: int
    num_classes: int  # 0: no head, the model returns pooled features
    embed_dim: int
    depth: int
    num_heads: int
    head_dim: int  # num_heads * head_dim need not be embed_dim
    mlp_dim: int

    # Numerics that tensors cannot show
    activation: str  # of the MLPs, one of ACTIVATIONS
    norm_eps: float
    pooling: str  # one of POOLINGS; token_avg concatenates class token and mean of the patches
    norm: str = "layer"  # one of NORMS
    norm_bias: bool = True  # whether norms have a bias
    attention_scale: float | None = None  # None: head_dim ** -0.5

    # Embedding
    class_token: bool = True
    dist_token: bool = False  # DeiT's distillation token, after the class token
    num_registers: int = 0  # register tokens, after class and distillation tokens
    register_positions: bool = True  # False: registers come after positions are added (DINOv2)
    position_embedding: str = "learned"  # one of POSITIONS
    no_embed_class: bool = False  # positions belong to patches only
    position_resampling: str = "bicubic_antialias"  # one of OWN_RESAMPLINGS, for other sizes
    position_grid: tuple[int, ...] = ()  # rows and columns of "grid" and "axes" positions
    position_square: bool = False  # those are fitted to a square, of which the image is a part
    relative_positions: str = "none"  # one of RELATIVE_POSITIONS, added to attention scores
    relative_mlp_dim: int = 0  # hidden width of the MLP that makes them; 0: there is none
    relative_resampling: str = "geometric"  # one of RELATIVE_RESAMPLINGS, for other image sizes
    rope: str = "none"  # one of ROPES: q and k of patch tokens are rotated by their position
    rope_temperature: float = 10000.0
    rope_periods: bool = False  # Meta's DINOv3 stores the periods, rounded to bfloat16
    rope_indexing: str = "ij"  # one of ROPE_INDEXINGS: which of row and column comes first
    rope_offset: float = 0.0  # added to grid positions
    rope_half: bool = False  # pairs channels of a head's first and second half, not neighbours
    rope_by_axis: bool = False  # the halves are of the channels that one axis rotates (Gemma 4)
    rope_reference: tuple[int, ...] = ()  # grid to which positions are scaled; (): not scaled
    centred_pixels: bool = False  # 2 * pixel - 1 is what the patches read (Gemma 4)
    patch_bias: bool = True
    patch_pre_norm: bool = False  # LayerNorm on the flattened pixels of a patch (lucidrains)
    patch_norm: bool = False  # LayerNorm on the embedded patch
    pre_norm: bool = False  # LayerNorm after the positions are added (CLIP)

    # Hybrid stem: convolutions, mostly a ResNet, in front of the patch convolution
    stem: bool = False
    stem_depths: tuple[int, ...] = ()  # bottleneck units in each stage; (): the root alone
    stem_width: int = 64
    stem_style: str = "google"  # one of STEM_STYLES

    # Blocks
    block_order: str = "pre"  # one of BLOCK_ORDERS
    branches: int = 1  # attentions, and MLPs, side by side in a block ("18x2" has 2)
    window_size: int = 0  # attention within windows of so many patches a side; 0: there are none
    global_blocks: tuple[int, ...] = ()  # blocks that have none, from 0 (ViTDet, SAM)
    kv_heads: tuple[int, ...] = ()  # heads of k and v in each block (Sapiens2); (): num_heads
    qkv_bias: bool = True  # in parallel order, of the matrix that q, k, v and the MLP share
    differential: bool = False  # a head is the difference of two attentions, half as wide each
    qk_norm: bool = False  # on each head of q and k
    whole_qk_norm: bool = False  # on q and k before they are split into heads (InternViT 6B)
    v_norm: bool = False  # on each head of v, an RMS norm without weights (Gemma 4)
    attention_norm: bool = False  # on the heads' joined outputs, before the projection
    attention_proj: bool = True  # lucidrains leaves it out for a single head
    proj_bias: bool = True
    gated_mlp: bool = False  # SwiGLU: activation(gate) * value
    mlp_bias: bool = True
    mlp_norm: bool = False  # on the hidden activations of the MLP
    layer_scale: bool = False
    mlp_layer_scale: bool = True  # Sapiens2 has LayerScale on the attention alone
    clipped_linears: bool = False  # the blocks' linear layers clip inputs and outputs (Gemma 4)

    # Pooling and head
    final_norm: bool = True  # LayerNorm of all tokens, before pooling
    final_norm_eps: float | None = None  # None: norm_eps
    neck_dim: int = 0  # channels of SAM's neck, two convolutions on all tokens; 0: there is none
    merge_size: int = 0  # squares of so many patches a side become one token at the end; 0: none
    merge_padding: bool = False  # squares at the edges are filled up with zeros (DeepSeek)
    merge_mlp_dim: int = 0  # hidden width of the MLP that reads a square; 0: its mean is taken
    merge_dim: int = 0  # what this MLP gives
    merge_standard: bool = False  # a shift and a factor after the mean (Gemma 4); kept without one
    fc_norm: bool = False  # LayerNorm of the pooled token
    bare_fc_norm: bool = False  # the same without weights
    pool_include_prefix: bool = False  # whether avg, max and map pooling read the prefix tokens
    pool_heads: int = 0  # heads of the attention pooling; 0: num_heads
    pool_q_proj: bool = True  # False: the learned query is not projected (AIMv2)
    pool_kv_bias: bool = True
    pool_mlp: bool = True  # whether an MLP follows the attention pooling; AIMv2 has none
    pool_mlp_dim: int = 0  # hidden width of this MLP; 0: mlp_dim
    representation_size: int = 0  # width of the layer before the head (pre-logits, pooler); 0: none
    representation_activation: str = "tanh"
    dist_head: bool = False  # DeiT: a second head on the distillation token, logits are averaged
    head_bias: bool = True

    # Dropout rates, in training only
    drop_rate: float = 0.0  # before the head
    embed_drop_rate: float = 0.0  # after the positions
    attention_drop_rate: float = 0.0  # on attention probabilities
    proj_drop_rate: float = 0.0  # after attention projection and in the MLPs

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if problems := contradictions(self):
            raise ConflictingFact("These facts contradict each other.", details=problems)

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches: class, distillation, registers."""
        return int(self.class_token) + int(self.dist_token) + self.num_registers

    @property
    def stem_stride(self) -> int:
        """Pixels per position of the stem's grid."""
        return stem_stride(self.stem_style, self.stem_depths) if self.stem else 1

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches down and across."""
        height, width = self.image_size
        if self.stem:
            style, depths = self.stem_style, self.stem_depths
            height, width = (stem_positions(size, style, depths) for size in self.image_size)
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        """Patch tokens."""
        return self.grid_size[0] * self.grid_size[1]

    @property
    def num_positions(self) -> int:
        """Rows of the learned position table."""
        return self.num_patches + self.num_prefix_positions

    @property
    def num_prefix_positions(self) -> int:
        """Leading rows of the position table, which belong to no patch."""
        if self.no_embed_class:
            return 0
        return self.num_prefix_tokens - (0 if self.register_positions else self.num_registers)

    @property
    def learned_positions(self) -> bool:
        """Whether positions are a parameter."""
        return self.position_embedding == "learned"

    @property
    def grid_positions(self) -> bool:
        """Whether learned positions have a grid of their own, which is fitted to the image's."""
        return self.position_embedding == "grid"

    @property
    def class_grid_positions(self) -> bool:
        """Whether such positions come after a row that is not used."""
        return self.position_embedding == "class_grid"

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
    def sandwich(self) -> bool:
        """Whether each branch has a norm before and after it."""
        return self.block_order == "sandwich"

    @property
    def merge_mlp(self) -> bool:
        """Whether an MLP merges patches."""
        return self.merge_size > 0 and self.merge_mlp_dim > 0

    @property
    def whole_squares(self) -> bool:
        """Whether the grid is made of squares that are merged."""
        return not self.merge_size or not any(side % self.merge_size for side in self.grid_size)

    @property
    def computed_positions(self) -> bool:
        """Whether positions are fixed sines and cosines, which patches alone have."""
        return self.position_embedding.startswith("sincos2d")

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

    @property
    def joined_qkv(self) -> bool:
        """Whether q, k and v come from one matrix; heads that share k and v need three."""
        return self.two_steps and not self.kv_heads

    @property
    def shared_kv(self) -> bool:
        """Whether several heads of q may share one of k and v."""
        return bool(self.kv_heads)

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
    def decomposed_positions(self) -> bool:
        """Whether q meets relative positions of rows and of columns."""
        return self.relative_positions == "decomposed"

    @property
    def windowed(self) -> bool:
        """Whether attention is within windows in some block."""
        return self.window_size > 0

    @property
    def window_blocks(self) -> tuple[int, ...]:
        """Blocks whose attention is within windows."""
        blocks = range(self.depth) if self.windowed else ()
        return tuple(i for i in blocks if i not in self.global_blocks)

    def attended_grid(self, block: int) -> tuple[int, int]:
        """Patches down and across that a block's attention sees at once."""
        side = self.window_size
        return (side, side) if block in self.window_blocks else self.grid_size

    @property
    def map_pooling(self) -> bool:
        """Whether a learned query pools the tokens by attention."""
        return self.pooling == "map"

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
        return self.stem and self.stem_style == "mobileclip"

    @property
    def square(self) -> bool:
        """Whether images and patches are as high as wide."""
        return len(set(self.image_size)) == 1 and len(set(self.patch_size)) == 1

    @property
    def square_patches(self) -> bool:
        """Whether patches are as high as wide."""
        return len(set(self.patch_size)) == 1

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

    @property
    def even_heads(self) -> bool:
        """Whether the heads share the model's width."""
        return self.num_heads * self.head_dim == self.embed_dim

    @property
    def class_position_counts(self) -> bool:
        """Whether positions number a square plus one exactly if the class token has one."""
        seen = math.isqrt(self.num_positions) ** 2 + 1 == self.num_positions
        return not self.learned_positions or seen == bool(self.num_prefix_positions)

    @property
    def feature_dim(self) -> int:
        """Width of what the head reads."""
        width = self.merge_dim if self.merge_mlp else self.neck_dim or self.embed_dim
        pooled = width * (2 if self.pooling == "token_avg" else 1)
        return self.representation_size or pooled

    def function(self) -> dict[str, Any]:
        """The fields that decide the function in inference, without those that have no effect here.

        Two configurations compute the same function of the same weights if these are equal.
        """
        fields = {name: getattr(self, name) for name in field_names()}
        resampling = ["relative_resampling", *([] if self.fitted_grid else ["position_resampling"])]
        for name in (*resampling, *(n for n in fields if n.endswith("drop_rate"))):
            del fields[name]
        fields["attention_scale"] = self.attention_scale or self.head_dim**-0.5
        fields["final_norm_eps"] = self.final_norm_eps or self.norm_eps
        fields["pool_heads"] = self.pool_heads or self.num_heads
        fields["pool_mlp_dim"] = self.pool_mlp_dim or self.mlp_dim
        if self.rope_reference == self.grid_size:  # positions scaled by one
            fields["rope_reference"] = ()
        windows = self.window_size > 0 and self.grid_size != (self.window_size,) * 2
        fields["global_blocks"] = tuple(i for i in self.global_blocks if i < self.depth)
        effective = {
            "window_size": windows,
            "global_blocks": windows,
            "representation_activation": self.representation_size,
            "stem_style": self.stem,
            "stem_width": self.stem,
            "pool_include_prefix": self.num_prefix_tokens and self.pooling not in ("token", "none"),
            "no_embed_class": self.num_prefix_tokens and self.learned_positions,
            "register_positions": self.num_registers
            and self.learned_positions
            and not self.no_embed_class,
            "rope_temperature": self.rope not in ("none", "mixed") and not self.rope_periods,
            "rope_indexing": self.rope != "none",
            "rope_offset": self.rope in ("axial", "dinov3"),
            "rope_half": self.rope != "none",
            "rope_by_axis": self.rope != "none" and self.rope_half,
            "rope_reference": self.rope == "axial",
            "position_grid": self.own_grid,
            "merge_standard": self.merge_size,
            "merge_padding": not self.whole_squares,
            "position_square": self.fitted_grid,
            "final_norm_eps": self.final_norm,
            "pool_heads": self.map_pooling,
            "pool_q_proj": self.map_pooling,
            "pool_kv_bias": self.map_pooling,
            "pool_mlp": self.map_pooling,
            "pool_mlp_dim": self.map_pooling and self.pool_mlp,
            "head_bias": self.num_classes,
            "proj_bias": self.attention_proj,
            "mlp_layer_scale": self.layer_scale,
            "mlp_bias": not self.joined_proj,
        }
        return {name: value for name, value in fields.items() if effective.get(name, True)}

    def axes(self) -> dict[str, int]:
        """The size of every axis that `weights_map/canonical.toml` names."""
        pool_heads = self.pool_heads or self.num_heads
        return {
            **FIXED_AXES,
            "width": self.embed_dim,
            "hidden": self.mlp_dim,
            "head": self.num_heads,
            "dim": self.head_dim,
            "half_dim": self.head_dim // 2,
            "quarter_dim": self.head_dim // 4,
            "joined_in": self.mlp_dim + 3 * self.num_heads * self.head_dim,
            "joined_out": self.mlp_dim + self.num_heads * self.head_dim,
            "rgb": self.in_channels,
            "y": self.patch_size[0],
            "x": self.patch_size[1],
            "position": self.num_positions,
            "register": self.num_registers,
            "prefix": self.num_prefix_tokens,
            "pool_head": pool_heads,
            "pool_dim": self.embed_dim // pool_heads,
            "pool_hidden": self.pool_mlp_dim or self.mlp_dim,
            **dict.fromkeys(("merge_y", "merge_x"), self.merge_size),
            "merge_hidden": self.merge_mlp_dim,
            "merge_width": self.merge_dim,
            **dict.fromkeys(("grid_y", "grid_side"), self.position_side),
            "grid_x": self.position_grid[1] if self.position_grid else 0,
            "grid_after_one": self.position_count + 1,
            "feature": self.feature_dim,
            "label": self.num_classes,
            # Offsets of rows and columns; then class to patch, patch to class, class to class.
            "relative": (2 * self.grid_size[0] - 1) * (2 * self.grid_size[1] - 1)
            + 3 * self.class_token,
            "relative_hidden": self.relative_mlp_dim,
            "neck": self.neck_dim,
            "neck_in": self.neck_dim,
            "frequency": self.head_dim // 2,
            "layer": self.depth,
            **{f"kv_head{i}": heads for i, heads in enumerate(self.kv_heads)},
            **self._offset_axes(),
            **self._stem_axes(),
        }

    def _offset_axes(self) -> dict[str, int]:
        grids = ((i, self.attended_grid(i)) for i in range(self.depth))
        if not self.decomposed_positions:
            return {}
        return {
            f"offset_{axis}{i}": 2 * side - 1
            for i, grid in grids
            for axis, side in zip("yx", grid, strict=True)
        }

    def _stem_axes(self) -> dict[str, int]:
        # Stage s of a ResNet: bottlenecks of width W * 2^s that expand to four times as much.
        # `channel` is what the patch convolution reads: the image, or the stem's last stage.
        axes = {"channel": self.in_channels}
        if self.stem:
            axes |= {"stem": self.stem_width, "channel": self.stem_width}
            axes |= {"stem_in": self.stem_width}
            axes |= dict.fromkeys(("half_stem", "half_stem_in"), self.stem_width // 2)
        for stage, units in enumerate(self.stem_depths):
            mid = self.stem_width * 2**stage
            axes |= {f"mid{stage}": mid, f"mid_in{stage}": mid, f"out{stage}": 4 * mid}
            for unit in range(units):
                axes[f"in{stage}_{unit}"] = 4 * mid if unit else axes["channel"]
            axes["channel"] = 4 * mid
        return axes

    def replace(self, **changes: Any) -> "ViTConfig":
        """A copy with other values; their origin is `user`, unless `changes` has `origins`."""
        origins = {**self.origins, **dict.fromkeys(changes, "user")}
        return dataclasses.replace(self, **{"origins": origins, **changes})

    def to_dict(self) -> dict[str, Any]:
        """All fields but `origins`, as JSON types."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["origins"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], *, origin: str = "vitconvert.json"
    ) -> "ViTConfig":
        """The inverse of `to_dict`."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fields, origins=dict.fromkeys(fields, origin))


def stem_stride(style: str, depths: tuple[int, ...]) -> int:
    """Pixels per position of a stem's grid: root 2, pooling 2, each later stage 2."""
    return 8 if style == "mobileclip" else 4 * 2 ** max(len(depths) - 1, 0)


def stem_positions(pixels: int, style: str, depths: tuple[int, ...]) -> int:
    """Positions that a stem makes of a row or column of pixels."""
    if style == "mobileclip":
        return pixels // 8
    root = math.ceil(pixels / 2)
    # Padded strides of 2 round up; jeonsworld's max-pooling of 3 has no padding.
    pooled = (root - 3) // 2 + 1 if style == "jeonsworld" else math.ceil(root / 2)
    return math.ceil(pooled / (1 << max(len(depths) - 1, 0)))


@functools.cache
def field_names(of: type[Any] = ViTConfig) -> tuple[str, ...]:
    """Names of the fields that a user, or a table, can set."""
    return tuple(f.name for f in dataclasses.fields(of) if f.name != "origins")
