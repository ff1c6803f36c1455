"""Multi-head self-attention, and what it gets of the positions of its tokens.

Operations and their order are those of timm 1.0.31 (`layers/attention.py`,
`layers/diff_attention.py`, and the attentions of `eva.py` and `beit.py`).

Letters: B images, N tokens (prefix tokens, then patches row by row), D width, H heads, K width of
a head.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError
from vitconvert.model.inputs import masked
from vitconvert.model.layers import linear_of, norm_if
from vitconvert.model.open_sizes import Grid
from vitconvert.model.relative_positions import (
    RelativeMlp,
    relative_position_bias,
    table_of_grid,
    unset_table,
)
from vitconvert.model.rope import rotate, rotation_of

# What torch.fx keeps as one call: see `inputs.py`.
torch.fx.wrap("masked")
torch.fx.wrap("relative_position_bias")
torch.fx.wrap("rotate")


class TokenPositions(NamedTuple):
    """What an attention gets besides its tokens: their positions, and how many to compute."""

    rope: Tensor | None = None  # of tokens that rotate, (n, 2K) or (H, n, 2K)
    relative_index: Tensor | None = None  # (N, N): rows of the attention's own table
    relative_offsets: Tensor | None = None  # (2 rows - 1, 2 columns - 1, 2), of which an MLP reads
    bias: Tensor | None = None  # (1, H, N, N), added to the scores
    wanted: int | None = None  # how many of the first tokens to compute; None: all
    mask: Tensor | None = None  # added to the scores too, or False for what is not attended to
    grid: Grid | None = None  # patches down and across; None: the model's own


NO_POSITIONS = TokenPositions()


class Attention(nn.Module):
    """Multi-head self-attention; the rows of `qkv` are q, k, v, and head by head within each.

    With `kv_heads`, neighbouring heads of q share a head of k and v (grouped-query attention,
    Ainslie et al., https://arxiv.org/abs/2305.13245), and q, k and v have a matrix each.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.rotation = rotation_of(config)
        self.own_scale = config.attention_scale
        self.post_softmax_scale = config.post_softmax_scale
        # Whether probabilities are not kept. As in timm, hooks on `attn_drop` see them if not.
        self.fused_attn = True
        self.placed = config.rope != "none" or config.tabulated_positions
        self.attn_drop = nn.Dropout(config.attention_drop_rate)
        self._add_qkv(config, layer)
        self._add_norms(config)
        self.relative_position_bias_table = (
            unset_table(config) if config.block_relative_positions else None
        )
        self.rel_pos = RelativeMlp(config) if config.block_relative_mlp else None
        inner = config.num_heads * config.head_dim
        self.norm = norm_if(config.attention_norm, inner, config)
        self.proj: nn.Module = nn.Identity()
        if config.attention_proj and not config.joined_proj:
            self.proj = linear_of(config)(inner, config.embed_dim, bias=config.proj_bias)
        self.proj_drop = nn.Dropout(config.proj_drop_rate)

    def _add_qkv(self, config: ViTConfig, layer: int) -> None:
        D, bias, linear = config.embed_dim, config.qkv_bias, linear_of(config)
        inner = config.num_heads * config.head_dim
        self.qkv: nn.Linear | None = None  # None with kv_heads, and in parallel order
        self.kv_of_head: list[int] | None = None  # for each head of q, its head of k and v
        if config.kv_heads:
            H, kv_heads = config.num_heads, config.kv_heads[layer]
            self.kv_of_head = [head * kv_heads // H for head in range(H)]
            self.q = linear(D, inner, bias=bias)
            self.k = linear(D, kv_heads * config.head_dim, bias=bias)
            self.v = linear(D, kv_heads * config.head_dim, bias=bias)
        elif not config.parallel_order:
            self.qkv = linear(D, 3 * inner, bias=bias)

    def _add_norms(self, config: ViTConfig) -> None:
        inner = config.num_heads * config.head_dim
        self.q_whole_norm = norm_if(config.whole_qk_norm, inner, config)
        self.k_whole_norm = norm_if(config.whole_qk_norm, inner, config)
        self.whole_qk_norm = config.whole_qk_norm
        self.q_norm = norm_if(config.qk_norm, config.head_dim, config)
        self.k_norm = norm_if(config.qk_norm, config.head_dim, config)
        self.v_norm: nn.Module = nn.Identity()
        if config.v_norm:
            self.v_norm = nn.RMSNorm(config.head_dim, config.norm_eps, elementwise_affine=False)

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
        placed = (positions.rope, positions.relative_index, positions.bias)
        if self.placed and all(part is None for part in placed):
            raise UsageError(
                "A block of this model needs the positions of its tokens, and got none.",
                hint="zip(model.blocks, model.token_positions()) gives each block its own: "
                "x = block(x, None, positions).",
            )
        q, k, v = self._prepared(qkv, positions)
        bias = self._masked_bias(q, positions)
        bias = None if bias is None else bias[..., : positions.wanted, :]
        x = self._attend(q[:, :, : positions.wanted], k, v, bias)
        if self.post_softmax_scale != 1:
            x = x * self.post_softmax_scale
        joined: Tensor = self.norm(masked(x, head_mask).transpose(1, 2).flatten(2))
        return joined

    def probabilities(
        self, qkv: Sequence[Tensor], positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """q, k and v to (B, H, N, N): how much each token (row) attends to each (column)."""
        q, k, _ = self._prepared(qkv, positions)
        return self._softmax(q, k, self._masked_bias(q, positions))

    @property
    def scale(self) -> float:
        """Of the scores, before softmax."""
        return self.head_dim**-0.5 if self.own_scale is None else self.own_scale

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        if self.fused_attn:
            return self._fused(q, k, v, bias)
        return cast("Tensor", self.attn_drop(self._softmax(q, k, bias)) @ v)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        dropout = self.attn_drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.own_scale
        )

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        scale = q.shape[-1] ** -0.5 if self.own_scale is None else self.own_scale
        scores = q @ k.transpose(-2, -1) * scale
        return (scores if bias is None else _masked(scores, bias)).softmax(-1)

    def _prepared(
        self, qkv: Sequence[Tensor], positions: TokenPositions
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv
        q, k, v = self.q_norm(q), self.k_norm(k), self.v_norm(v)
        if positions.rope is not None:
            q, k = (rotate(x, positions.rope, **self.rotation).type_as(v) for x in (q, k))
        if self.kv_of_head is not None and self.kv_of_head != list(range(len(self.kv_of_head))):
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

    def _masked_bias(self, q: Tensor, positions: TokenPositions) -> Tensor | None:
        bias = self._bias(q, positions)
        if positions.mask is None:
            return bias
        return positions.mask if bias is None else _masked(bias, positions.mask)

    def _bias(self, _q: Tensor, positions: TokenPositions) -> Tensor | None:
        if positions.relative_index is None:
            return positions.bias
        if self.rel_pos is not None and positions.relative_offsets is not None:
            made: Tensor = self.rel_pos(positions.relative_offsets, positions.relative_index)
            return made
        if self.relative_position_bias_table is None:
            return positions.bias
        table = table_of_grid(self.relative_position_bias_table, self.config, positions.grid)
        return relative_position_bias(table, positions.relative_index)


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
        x: Tensor = self.sub_norm(super()._attend(q, k, v, bias))
        return x * (1 - self.first_factor)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        (q1, k1), (q2, k2) = _halves(q, k)
        first, second = super()._fused(q1, k1, v, bias), super()._fused(q2, k2, v, bias)
        return first - self._factor(q) * second

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        (q1, k1), (q2, k2) = _halves(q, k)
        first, second = super()._softmax(q1, k1, bias), super()._softmax(q2, k2, bias)
        return first - self._factor(q) * second

    def _factor(self, like: Tensor) -> Tensor:
        plus = (self.lambda_q1 * self.lambda_k1).sum(-1).float().exp()
        minus = (self.lambda_q2 * self.lambda_k2).sum(-1).float().exp()
        return (plus - minus + self.first_factor).type_as(like)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _halves(q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    q1, q2 = q.chunk(2, dim=-1)
    k1, k2 = k.chunk(2, dim=-1)
    return (q1, k1), (q2, k2)


def attention_of(config: ViTConfig, layer: int) -> Attention:
    """The attention of a block."""
    kind = DifferentialAttention if config.differential else Attention
    return kind(config, layer)
