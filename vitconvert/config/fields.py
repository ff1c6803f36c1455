"""What decides the function that a Vision Transformer computes, besides its weights.

A plain ViT is all of the first section. Each of the others is a way in which published ViTs differ
from it, in the order in which an image meets them; their defaults are those of a plain ViT.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from vitconvert.config.vocabularies import VOCABULARIES


# `ViTConfig`, which checks the values, is the dataclass that is made of them.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Fields:
    """The fields of a `ViTConfig`.

    Names are those of the literature, timm's where there is one. Sizes are in pixels (`image_size`,
    `patch_size`: height, width), tokens or channels. What has no default must be known from the
    tensors, the checkpoint's own configuration, the dialect's table or the user.
    """

    vocabularies: ClassVar[Mapping[str, tuple[str, ...]]] = VOCABULARIES

    # A plain ViT: sizes
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

    # A plain ViT: what its tensors cannot show
    activation: str  # of the MLPs, one of ACTIVATIONS
    norm_eps: float
    # One of POOLINGS: token_avg is the class token beside the mean of the patches, prefix_avg the
    # mean of all tokens in front of them (AST, Pixio)
    pooling: str

    # A plain ViT: tokens and positions
    class_token: bool = True
    position_embedding: str = "learned"  # one of POSITIONS
    position_resampling: str = "bicubic_antialias"  # one of OWN_RESAMPLINGS, for other sizes

    # A plain ViT: dropout rates, in training only
    drop_rate: float = 0.0  # before the head
    embed_drop_rate: float = 0.0  # after the positions
    attention_drop_rate: float = 0.0  # on attention probabilities
    proj_drop_rate: float = 0.0  # after attention projection and in the MLPs
    # Stochastic depth (https://arxiv.org/abs/1603.09382): how often the last block's attention, or
    # MLP, is left out for an image; from 0 at the first block up to this in equal steps
    drop_path_rate: float = 0.0

    # Clips: several frames of a video, in patches of several frames each (tubelets: Arnab et al.,
    # ViViT, https://arxiv.org/abs/2103.15691). Tokens go by time, then rows, then columns.
    frames: int = 0  # of a clip; 0: the model reads images
    tubelet: int = 1  # frames of a patch, and from one to the next

    # Hybrid stem: convolutions, mostly a ResNet, in front of the patch convolution
    # (Dosovitskiy et al., section 3.1, "Hybrid Architecture")
    stem: bool = False
    stem_depths: tuple[int, ...] = ()  # bottleneck units in each stage; (): the root alone
    stem_width: int = 64
    stem_style: str = "google"  # one of STEM_STYLES

    # Patches
    # From one to the next, in pixels: AST's overlap; (): patch_size
    patch_stride: tuple[int, ...] = ()
    patch_padding: int = 0  # zeros on each side of the image, which make no more patches (ViTPose)
    centred_pixels: bool = False  # 2 * pixel - 1 is what the patches read (Gemma 4)
    patch_bias: bool = True
    patch_pre_norm: bool = False  # LayerNorm on the flattened pixels of a patch (lucidrains)
    patch_norm: bool = False  # LayerNorm on the embedded patch (lucidrains; timm `embed_norm`)

    # Tokens in front of the patches, besides the class token
    dist_token: bool = False  # DeiT's distillation token, after the class token
    num_registers: int = 0  # after class and distillation tokens: https://arxiv.org/abs/2309.16588
    register_positions: bool = True  # False: registers come after positions are added (DINOv2)

    # Positions that are added to the tokens
    no_embed_class: bool = False  # positions belong to patches only (DeiT III, SimpleViT)
    # Rows and columns of "grid" and "axes" positions (NaFlexViT, Qwen 3, Gemma 4, ViTDet)
    position_grid: tuple[int, ...] = ()
    # Those are fitted to a square, of which the image is a part (NaFlexViT)
    position_square: bool = False
    pre_norm: bool = False  # LayerNorm after the positions are added (CLIP)

    # Rotary embedding: q and k of patch tokens are rotated by their position
    # (Su et al., https://arxiv.org/abs/2104.09864; for images, Heo et al.,
    # https://arxiv.org/abs/2403.13298; EVA-02, https://arxiv.org/abs/2303.11331; DINOv3)
    rope: str = "none"  # one of ROPES
    rope_temperature: float = 10000.0
    rope_periods: bool = False  # Meta's DINOv3 stores the periods, rounded to bfloat16
    rope_indexing: str = "ij"  # one of ROPE_INDEXINGS: which of row and column comes first
    rope_offset: float = 0.0  # added to grid positions
    rope_half: bool = False  # pairs channels of a head's first and second half, not neighbours
    rope_by_axis: bool = False  # the halves are of the channels that one axis rotates (Gemma 4)
    # Frequencies of the second axis lie halfway between those of the first (Pixtral)
    rope_interleaved: bool = False
    # The axes turn pairs of channels in turns, instead of a half of the pairs each (MoonViT)
    rope_alternating: bool = False
    # In windows, positions are those of the window; elsewhere scaled to its side (SAM 3)
    rope_in_windows: bool = False
    rope_class: bool = False  # the class token is rotated too, by learned angles (MLCD)
    rope_reference: tuple[int, ...] = ()  # grid to which positions are scaled; (): not scaled

    # Relative positions, which are added to attention scores
    # (BEiT, https://arxiv.org/abs/2106.08254; Swin V2, https://arxiv.org/abs/2111.09883)
    relative_positions: str = "none"  # one of RELATIVE_POSITIONS
    relative_mlp_dim: int = 0  # hidden width of the MLP that makes them; 0: there is none
    relative_resampling: str = "geometric"  # one of RELATIVE_RESAMPLINGS, for other image sizes

    # Norms and blocks
    norm: str = "layer"  # one of NORMS; RMSNorm: https://arxiv.org/abs/1910.07467
    norm_bias: bool = True  # whether norms have a bias
    block_order: str = "pre"  # one of BLOCK_ORDERS
    branches: int = 1  # attentions, and MLPs, side by side: https://arxiv.org/abs/2203.09795
    layer_scale: bool = False  # CaiT, https://arxiv.org/abs/2103.17239
    mlp_layer_scale: bool = True  # Sapiens2 has LayerScale on the attention alone
    clipped_linears: bool = False  # the blocks' linear layers clip inputs and outputs (Gemma 4)

    # Attention
    attention_scale: float | None = None  # of the scores, before softmax; None: head_dim ** -0.5
    # A factor of the probabilities, after softmax (many tutorials scale there instead)
    post_softmax_scale: float = 1.0
    # Attention within windows of so many patches a side; 0: there are none (ViTDet, SAM)
    window_size: int = 0
    global_blocks: tuple[int, ...] = ()  # blocks that have no windows, from 0
    # So many windows down and across instead, each with prefix tokens of its own; global blocks see
    # the tokens of all windows (RF-DETR)
    window_count: int = 0
    # Windows at the edges are filled up with zeros; False: they are smaller (Qwen2.5-VL)
    window_padding: bool = True
    kv_heads: tuple[int, ...] = ()  # heads of k and v in each block (Sapiens2); (): num_heads
    qkv_bias: bool = True  # in parallel order, of the matrix that q, k, v and the MLP share
    # A head is the difference of two attentions, half as wide each: https://arxiv.org/abs/2410.05258
    differential: bool = False
    qk_norm: bool = False  # on each head of q and k: https://arxiv.org/abs/2302.05442
    whole_qk_norm: bool = False  # on q and k before they are split into heads (InternViT 6B)
    v_norm: bool = False  # on each head of v, an RMS norm without weights (Gemma 4)
    attention_norm: bool = False  # on the heads' joined outputs (EVA-02, BEiT-3)
    attention_proj: bool = True  # lucidrains leaves it out for a single head
    proj_bias: bool = True

    # MLPs
    gated_mlp: bool = False  # activation(gate) * value: SwiGLU, https://arxiv.org/abs/2002.05202
    mlp_bias: bool = True
    mlp_out_activation: bool = False  # the activation a second time, after the last layer
    mlp_norm: bool = (
        False  # on the hidden activations: NormFormer, https://arxiv.org/abs/2110.09456
    )

    # After the blocks
    final_norm: bool = True  # LayerNorm of all tokens, before pooling
    final_norm_eps: float | None = None  # None: norm_eps
    neck_dim: int = 0  # channels of SAM's neck, two convolutions on all tokens; 0: there is none
    merge_size: int = 0  # squares of so many patches a side become one token at the end; 0: none
    merge_padding: bool = False  # squares at the edges are filled up with zeros (DeepSeek)
    merge_mlp_dim: int = 0  # hidden width of the MLP that reads a square; 0: its mean is taken
    merge_dim: int = 0  # what this MLP gives
    merge_gated_dim: int = 0  # hidden width of a gated MLP in place of its second layer (GLM-4V)
    merge_standard: bool = False  # a shift and a factor after the mean (Gemma 4); kept without one

    # Pooling
    pool_include_prefix: bool = False  # whether avg, max and map pooling read the prefix tokens
    pool_heads: int = 0  # heads of the attention pooling; 0: num_heads
    pool_q_proj: bool = True  # False: the learned query is not projected (AIMv2)
    pool_kv_bias: bool = True
    pool_mlp: bool = True  # whether an MLP follows the attention pooling; AIMv2 has none
    pool_mlp_dim: int = 0  # hidden width of this MLP; 0: mlp_dim
    fc_norm: bool = False  # LayerNorm of the pooled token (MAE, BEiT)
    fc_norm_eps: float | None = None  # None: norm_eps (AST's authors leave torch's own there)
    bare_fc_norm: bool = False  # the same without weights

    # Head
    # Width of the layer before the head: Google's pre_logits, Hugging Face's pooler; 0: none
    representation_size: int = 0
    representation_activation: str = "tanh"
    dist_head: bool = False  # DeiT: a second head on the distillation token, logits are averaged
    head_bias: bool = True
    # What the logits mean, one of PROBLEM_TYPES, in transformers' words; no part of the function
    problem_type: str = "none"

    # Which of tensors, configuration, table and user each value comes from
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
