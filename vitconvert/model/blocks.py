"""The transformer's blocks: attention and MLP, added to the residual stream one after another.

Operations and their order are those of timm 1.0.31 (`layers/attention.py`, `layers/mlp.py`, and the
blocks of `vision_transformer.py`, `eva.py` and `beit.py`).

Letters: B images, N tokens (prefix tokens, then patches row by row), D width, H heads, K width of
a head.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.clipped import linear_of
from vitconvert.model.layers import ACTIVATION, LayerScale, Mlp, linear, norm_if, norm_of
from vitconvert.model.positions import relative_position_bias, unset_table
from vitconvert.model.relative_mlp import RelativeMlp
from vitconvert.model.rope import rotate, rotation_of
from vitconvert.model.selection import keep, kept_heads


class TokenPositions(NamedTuple):
    """What an attention gets besides its tokens: their positions, and how many to compute."""

    rope: Tensor | None = None  # (patches, 2K) or (H, patches, 2K): sines and cosines
    relative_index: Tensor | None = None  # (N, N): rows of the attention's own table
    relative_offsets: Tensor | None = None  # (2 rows - 1, 2 columns - 1, 2), of which an MLP reads
    bias: Tensor | None = None  # (1, H, N, N), added to the scores
    wanted: int | None = None  # how many of the first tokens to compute; None: all


NO_POSITIONS = TokenPositions()


class Attention(nn.Module):
    """Multi-head self-attention; the rows of `qkv` are q, k, v, and head by head within each.

    With `kv_heads`, neighbouring heads of q share a head of k and v (grouped-query attention,
    Ainslie et al., https://arxiv.org/abs/2305.13245), and q, k and v have a matrix each.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.rotation = rotation_of(config)
        self.scale = config.attention_scale
        self.drop_rate = config.attention_drop_rate
        inner, linear = config.num_heads * config.head_dim, linear_of(config)
        self.qkv: nn.Linear | None = None  # None with kv_heads, and in parallel order
        self.kv_of_head: list[int] | None = None  # for each head of q, its head of k and v
        if config.kv_heads:
            self.kv_of_head = [
                h * config.kv_heads[layer] // self.num_heads for h in range(self.num_heads)
            ]
            shared = config.kv_heads[layer] * config.head_dim
            self.q = linear(config.embed_dim, inner, bias=config.qkv_bias)
            self.k = linear(config.embed_dim, shared, bias=config.qkv_bias)
            self.v = linear(config.embed_dim, shared, bias=config.qkv_bias)
        elif not config.parallel_order:
            self.qkv = linear(config.embed_dim, 3 * inner, bias=config.qkv_bias)
        self.q_whole_norm = norm_if(config.whole_qk_norm, inner, config)
        self.k_whole_norm = norm_if(config.whole_qk_norm, inner, config)
        self.whole_qk_norm = config.whole_qk_norm
        self.q_norm = norm_if(config.qk_norm, config.head_dim, config)
        self.k_norm = norm_if(config.qk_norm, config.head_dim, config)
        self.v_norm: nn.Module = nn.Identity()
        if config.v_norm:
            self.v_norm = nn.RMSNorm(config.head_dim, config.norm_eps, elementwise_affine=False)
        self.relative_position_bias_table = (
            unset_table(config) if config.block_relative_positions else None
        )
        self.rel_pos = RelativeMlp(config) if config.block_relative_mlp else None
        self.norm = norm_if(config.attention_norm, inner, config)
        self.proj: nn.Module = nn.Identity()
        if config.attention_proj and not config.joined_proj:
            self.proj = linear(inner, config.embed_dim, bias=config.proj_bias)
        self.proj_drop = nn.Dropout(config.proj_drop_rate)

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D); the mask has a factor for each head's output."""
        out: Tensor = self.proj_drop(self.proj(self.read(self.project(x), head_mask, positions)))
        return out

    def read(
        self, qkv: Sequence[Tensor], head_mask: Tensor | None, positions: TokenPositions
    ) -> Tensor:
        """q, k and v, each (B, heads, N, K), to the heads' joined outputs (B, wanted, H*K)."""
        q, k, v = self._prepared(qkv, positions)
        bias = self._bias(q, positions)
        bias = None if bias is None else bias[:, :, : positions.wanted]
        x = self._attend(q[:, :, : positions.wanted], k, v, bias)
        if head_mask is not None:
            x = x * head_mask.to(x).view(-1, 1, 1)
        joined: Tensor = self.norm(x.transpose(1, 2).flatten(2))
        return joined

    def probabilities(
        self, qkv: Sequence[Tensor], positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """q, k and v to (B, H, N, N): how much each token (row) attends to each (column)."""
        q, k, _ = self._prepared(qkv, positions)
        return self._softmax(q, k, self._bias(q, positions))

    def prune(self, heads: Collection[int]) -> Tensor:
        """Remove heads: their rows of q, k and v, columns of `proj` and of the relative positions.

        Returns:
            Indices of the channels of the joined outputs that are kept.
        """
        kept = kept_heads(heads, self.num_heads)
        inner = self.num_heads * self.head_dim
        channels = self._channels(kept)
        if self.qkv is not None:
            keep(self.qkv, torch.cat([channels + part * inner for part in range(3)]), dim=0)
        if self.kv_of_head is not None:
            read = [self.kv_of_head[head] for head in kept]
            left = sorted(set(read))
            self.kv_of_head = [left.index(head) for head in read]
            keep(self.q, channels, dim=0)
            keep(self.k, self._channels(left), dim=0)
            keep(self.v, self._channels(left), dim=0)
        if isinstance(self.proj, nn.Linear):
            keep(self.proj, channels, dim=1)
        if self.relative_position_bias_table is not None:
            table = self.relative_position_bias_table.detach()[:, kept]
            self.relative_position_bias_table = nn.Parameter(table)
        if self.rel_pos is not None:
            keep(cast("nn.Linear", self.rel_pos.mlp.fc2), torch.tensor(kept), dim=0)
        self.num_heads = len(kept)
        return channels

    def _channels(self, heads: list[int]) -> Tensor:
        first = torch.tensor(heads, device="cpu")[:, None] * self.head_dim
        return (first + torch.arange(self.head_dim, device="cpu")).flatten()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        dropout = self.drop_rate if self.training else 0.0
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.scale
        )

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = q @ k.transpose(-2, -1) * scale
        return (scores if bias is None else scores + bias).softmax(-1)

    def _prepared(
        self, qkv: Sequence[Tensor], positions: TokenPositions
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv
        q, k, v = self.q_norm(q), self.k_norm(k), self.v_norm(v)
        if positions.rope is not None:
            q, k = (rotate(x, positions.rope, **self.rotation).type_as(v) for x in (q, k))
        if self.kv_of_head is not None and self.kv_of_head != list(range(k.shape[1])):
            k, v = k[:, self.kv_of_head], v[:, self.kv_of_head]
        return q, k, v

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """(B, N, D) to q, k and v, each (B, heads, N, K)."""
        B, N, _ = x.shape
        if self.qkv is not None and not self.whole_qk_norm:
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
            return cast("Sequence[Tensor]", qkv.unbind(0))
        if self.qkv is None:
            q, k, v = (linear(x) for linear in (self.q, self.k, self.v))
        else:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q, k = self.q_whole_norm(q), self.k_whole_norm(k)
        return [part.reshape(B, N, -1, self.head_dim).transpose(1, 2) for part in (q, k, v)]

    def _bias(self, _q: Tensor, positions: TokenPositions) -> Tensor | None:
        if positions.relative_index is None:
            return positions.bias
        if self.rel_pos is not None and positions.relative_offsets is not None:
            made: Tensor = self.rel_pos(positions.relative_offsets, positions.relative_index)
            return made
        if self.relative_position_bias_table is None:
            return positions.bias
        return relative_position_bias(self.relative_position_bias_table, positions.relative_index)


class DifferentialAttention(Attention):
    """Each head is the difference of two attentions to the same values, which cancels noise.

    Ye et al., "Differential Transformer", https://arxiv.org/abs/2410.05258. Each attention has one
    half of a head's q and k; the second is multiplied by a learned factor, which starts larger in
    later blocks. timm's `DiffAttention`.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.first_factor = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(config.head_dim // 2)) for _ in range(4)
        )
        self.sub_norm = nn.RMSNorm(config.head_dim, 1e-5)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        first, second = (
            super(DifferentialAttention, self)._attend(q, k, v, bias) for q, k in _halves(q, k)
        )
        x: Tensor = self.sub_norm(first - self._factor(q) * second)
        return x * (1 - self.first_factor)

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        first, second = (
            super(DifferentialAttention, self)._softmax(q, k, bias) for q, k in _halves(q, k)
        )
        return first - self._factor(q) * second

    def _factor(self, like: Tensor) -> Tensor:
        plus = (self.lambda_q1 * self.lambda_k1).sum(-1).float().exp()
        minus = (self.lambda_q2 * self.lambda_k2).sum(-1).float().exp()
        return (plus - minus + self.first_factor).type_as(like)


def _halves(q: Tensor, k: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)


def _attention(config: ViTConfig, layer: int) -> Attention:
    kind = DifferentialAttention if config.differential else Attention
    return kind(config, layer)


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to its input.

    In "post" order (Swin v2, https://arxiv.org/abs/2111.09883) the norm is applied to what is
    added, in "sandwich" order (Ding et al., https://arxiv.org/abs/2105.13290) a second one is.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        D = config.embed_dim
        self.post = config.block_order == "post"
        self.norm1 = norm_of(D, config)
        self.attn = _attention(config, layer)
        self.ls1 = LayerScale(D) if config.layer_scale else nn.Identity()
        self.norm2 = norm_of(D, config)
        self.mlp = _mlp(config)
        self.post_norm1 = norm_if(config.sandwich, D, config)
        self.post_norm2 = norm_if(config.sandwich, D, config)
        scaled = config.layer_scale and config.mlp_layer_scale
        self.ls2 = LayerScale(D) if scaled else nn.Identity()

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D)."""
        if self.post:
            x = x[:, : positions.wanted] + self.ls1(self.norm1(self.attn(x, head_mask, positions)))
            return x + cast("Tensor", self.ls2(self.norm2(self.mlp(x))))
        read = self.attn(self.norm1(x), head_mask, positions)
        x = x[:, : positions.wanted] + self.ls1(self.post_norm1(read))
        return x + cast("Tensor", self.ls2(self.post_norm2(self.mlp(self.norm2(x)))))

    def probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, H, N, N)."""
        read = x if self.post else self.norm1(x)
        return self.attn.probabilities(self.attn.project(read), positions)

    def prune(self, heads: Collection[int]) -> None:
        """Remove heads of the attention."""
        self.attn.prune(heads)

    @property
    def num_heads(self) -> int:
        """Heads that a mask has factors for."""
        return self.attn.num_heads


class OneStepBlock(nn.Module):
    """Attention and MLP read the same tokens, and both outputs are added to them.

    Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters",
    https://arxiv.org/abs/2302.05442; timm's `ParallelScalingBlock` and, with differential
    attention, `DiffParallelScalingBlock`, where both share the last matrix too.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        D, inner = config.embed_dim, config.num_heads * config.head_dim
        self.widths = [config.mlp_dim, inner, inner, inner]
        self.norm1 = norm_of(D, config)
        self.in_proj = linear(D, sum(self.widths), bias=config.qkv_bias)
        self.attn = _attention(config, layer)
        self.mlp = MlpTail(config)
        self.out_proj: nn.Linear | None = None
        if config.joined_proj:
            self.out_proj = linear(inner + config.mlp_dim, D, bias=config.proj_bias)
        self.ls1 = LayerScale(D) if config.layer_scale else nn.Identity()

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D)."""
        hidden, qkv = self._project(x)
        x, hidden = x[:, : positions.wanted], hidden[:, : positions.wanted]
        read, hidden = self.attn.read(qkv, head_mask, positions), self.mlp(hidden)
        if self.out_proj is None:
            return x + cast("Tensor", self.ls1(self.attn.proj(read) + hidden))
        return x + cast("Tensor", self.ls1(self.out_proj(torch.cat((read, hidden), dim=-1))))

    def probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, H, N, N)."""
        return self.attn.probabilities(self._project(x)[1], positions)

    def prune(self, heads: Collection[int]) -> None:
        """Remove heads of the attention: their rows of `in_proj`, and columns of `out_proj`."""
        hidden, inner, *_ = self.widths
        channels, mlp = self.attn.prune(heads), torch.arange(hidden, device="cpu")
        rows = [mlp, *(hidden + part * inner + channels for part in range(3))]
        keep(self.in_proj, torch.cat(rows), dim=0)
        if self.out_proj is not None:
            keep(self.out_proj, torch.cat((channels, inner + mlp)), dim=1)
        self.widths = [hidden, *[len(channels)] * 3]

    @property
    def num_heads(self) -> int:
        """Heads that a mask has factors for."""
        return self.attn.num_heads

    def _project(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """(B, N, D) to the MLP's hidden channels, and q, k and v, each (B, H, N, K)."""
        hidden, *qkv = self.in_proj(self.norm1(x)).split(self.widths, dim=-1)
        heads = (self.attn.num_heads, self.attn.head_dim)
        return hidden, [part.unflatten(-1, heads).transpose(1, 2) for part in qkv]


class MlpTail(nn.Module):
    """An MLP after its first matrix; without the second one if the block joins projections."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.act = ACTIVATION[config.activation]
        self.bias = nn.Parameter(torch.empty(config.mlp_dim)) if config.own_mlp_bias else None
        self.drop = nn.Dropout(config.proj_drop_rate)
        self.fc2: nn.Module = nn.Identity()
        if not config.joined_proj:
            self.fc2 = linear(config.mlp_dim, config.embed_dim, bias=config.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, N, hidden) to (B, N, D), or to (B, N, hidden) without the second matrix."""
        hidden = hidden if self.bias is None else hidden + self.bias
        return cast("Tensor", self.fc2(self.drop(self.act(hidden))))


class AttentionBranch(nn.Module):
    """One of several attentions side by side."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm = norm_of(config.embed_dim, config)
        self.attn = Attention(config, layer)
        self.ls = LayerScale(config.embed_dim) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, head_mask: Tensor | None, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, wanted, D), without the input itself."""
        return cast("Tensor", self.ls(self.attn(self.norm(x), head_mask, positions)))


class MlpBranch(nn.Module):
    """One of several MLPs side by side."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm = norm_of(config.embed_dim, config)
        self.mlp = _mlp(config)
        self.ls = LayerScale(config.embed_dim) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D), without the input itself."""
        return cast("Tensor", self.ls(self.mlp(self.norm(x))))


class ParallelBlock(nn.Module):
    """Several attentions side by side, then several MLPs; their sums are added to the input.

    Touvron et al., "Three things everyone should know about Vision Transformers",
    https://arxiv.org/abs/2203.09795; timm's `ParallelThingsBlock`. Heads are numbered across all
    attentions.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.attns = nn.ModuleList(AttentionBranch(config, layer) for _ in range(config.branches))
        self.ffns = nn.ModuleList(MlpBranch(config) for _ in range(config.branches))

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D)."""
        count = len(self.attns)
        masks = [None] * count if head_mask is None else head_mask.chunk(count)
        read = [branch(x, mask, positions) for branch, mask in zip(self.attns, masks, strict=True)]
        x = x[:, : positions.wanted] + torch.stack(read).sum(dim=0)
        return x + torch.stack([branch(x) for branch in self.ffns]).sum(dim=0)

    def probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, branches * H, N, N)."""
        branches = cast("list[AttentionBranch]", list(self.attns))
        projected = ((b.attn, b.attn.project(b.norm(x))) for b in branches)
        return torch.cat([attn.probabilities(qkv, positions) for attn, qkv in projected], dim=1)

    @property
    def num_heads(self) -> int:
        """Heads that a mask has factors for."""
        return sum(cast("AttentionBranch", branch).attn.num_heads for branch in self.attns)


def _mlp(config: ViTConfig) -> Mlp:
    return Mlp(
        config,
        config.mlp_dim,
        bias=config.mlp_bias,
        drop=config.proj_drop_rate,
        gated=config.gated_mlp,
        normed=config.mlp_norm,
        linear=linear_of(config),
    )
