"""The transformer's blocks: attention and MLP, added to the residual stream one after another.

Operations and their order are those of timm 1.0.31 (`layers/attention.py`, `layers/mlp.py`, and the
blocks of `vision_transformer.py`, `eva.py` and `beit.py`).

Letters: B images, N tokens (prefix tokens, then patches row by row), D width, H heads, K width of
a head.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import LayerScale, Mlp, norm_if, norm_of
from vitconvert.model.relative_positions import relative_position_bias, unset_table
from vitconvert.model.rope import turn
from vitconvert.model.selection import keep, kept_heads


class Whereabouts(NamedTuple):
    """What an attention is told of where its tokens are, besides the positions in them."""

    rope: Tensor | None = None  # (patches, 2K) or (H, patches, 2K): sines and cosines
    relative_index: Tensor | None = None  # (N, N): rows of the attention's own table
    bias: Tensor | None = None  # (H, N, N) to add to the scores


NOWHERE = Whereabouts()


class Attention(nn.Module):
    """Multi-head self-attention; the rows of `qkv` are q, k, v, and head by head within each.

    Where `kv_heads` says so, neighbouring heads of q share one of k and v (Ainslie et al.,
    https://arxiv.org/abs/2305.13245), and each of the three has its own matrix.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.num_prefix_tokens, self.rope_half = config.num_prefix_tokens, config.rope_half
        self.scale = config.attention_scale
        self.drop_rate = config.attention_drop_rate
        inner = config.num_heads * config.head_dim
        self.qkv: nn.Linear | None = None
        if config.kv_heads:
            shared = config.kv_heads[layer] * config.head_dim
            self.q = nn.Linear(config.embed_dim, inner, bias=config.qkv_bias)
            self.k = nn.Linear(config.embed_dim, shared, bias=config.qkv_bias)
            self.v = nn.Linear(config.embed_dim, shared, bias=config.qkv_bias)
        else:
            self.qkv = nn.Linear(config.embed_dim, 3 * inner, bias=config.qkv_bias)
        self.q_norm = norm_if(config.qk_norm, config.head_dim, config)
        self.k_norm = norm_if(config.qk_norm, config.head_dim, config)
        self.relative_position_bias_table = (
            unset_table(config) if config.block_relative_positions else None
        )
        self.norm = norm_if(config.attention_norm, inner, config)
        self.proj: nn.Module = nn.Identity()
        if config.attention_proj:
            self.proj = nn.Linear(inner, config.embed_dim, bias=config.proj_bias)
        self.proj_drop = nn.Dropout(config.proj_drop_rate)

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, where: Whereabouts = NOWHERE
    ) -> Tensor:
        """(B, N, D) to (B, N, D); each head's output is multiplied by its entry of the mask."""
        q, k, v = self._split(x, where)
        dropout = self.drop_rate if self.training else 0.0
        x = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self._bias(where), dropout_p=dropout, scale=self.scale
        )
        if head_mask is not None:
            x = x * head_mask.to(x).view(-1, 1, 1)
        out: Tensor = self.proj_drop(self.proj(self.norm(x.transpose(1, 2).flatten(2))))
        return out

    def probabilities(self, x: Tensor, where: Whereabouts = NOWHERE) -> Tensor:
        """(B, N, D) to (B, H, N, N): what each token reads of each token."""
        q, k, _ = self._split(x, where)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        scores, bias = q @ k.transpose(-2, -1) * scale, self._bias(where)
        return (scores if bias is None else scores + bias).softmax(-1)

    def prune(self, heads: Collection[int]) -> None:
        """Remove heads: their rows of `qkv`, columns of `proj` and of the relative positions."""
        kept = kept_heads(heads, self.num_heads)
        rows = torch.arange(3 * self.num_heads * self.head_dim, device="cpu")
        rows = rows.view(3, self.num_heads, self.head_dim)[:, kept]
        assert isinstance(self.proj, nn.Linear) and self.qkv is not None
        keep(self.qkv, rows.flatten(), dim=0)
        keep(self.proj, rows[0].flatten(), dim=1)
        if self.relative_position_bias_table is not None:
            table = self.relative_position_bias_table.detach()[:, kept]
            self.relative_position_bias_table = nn.Parameter(table)
        self.num_heads = len(kept)

    def _split(self, x: Tensor, where: Whereabouts) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._project(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if where.rope is not None:
            prefix, half = self.num_prefix_tokens, self.rope_half
            q, k = (turn(x, where.rope, prefix=prefix, half=half).type_as(v) for x in (q, k))
        if self.qkv is None:
            k, v = (x.repeat_interleave(self.num_heads // x.shape[1], dim=1) for x in (k, v))
        return q, k, v

    def _project(self, x: Tensor) -> Sequence[Tensor]:
        """(B, N, D) to q, k and v, each (B, heads, N, K)."""
        B, N, _ = x.shape
        if self.qkv is None:
            parts = (linear(x) for linear in (self.q, self.k, self.v))
            return [part.reshape(B, N, -1, self.head_dim).transpose(1, 2) for part in parts]
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        return cast("Sequence[Tensor]", qkv.unbind(0))

    def _bias(self, where: Whereabouts) -> Tensor | None:
        if self.relative_position_bias_table is None or where.relative_index is None:
            return where.bias
        return relative_position_bias(self.relative_position_bias_table, where.relative_index)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to its input.

    In "post" order (Swin v2, https://arxiv.org/abs/2111.09883) the norm is of what is added.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        D = config.embed_dim
        self.post = config.block_order == "post"
        self.norm1 = norm_of(D, config)
        self.attn = Attention(config, layer)
        self.ls1 = LayerScale(D) if config.layer_scale else nn.Identity()
        self.norm2 = norm_of(D, config)
        self.mlp = _mlp(config)
        scaled = config.layer_scale and config.mlp_layer_scale
        self.ls2 = LayerScale(D) if scaled else nn.Identity()

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, where: Whereabouts = NOWHERE
    ) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        if self.post:
            x = x + self.ls1(self.norm1(self.attn(x, head_mask, where)))
            return x + cast("Tensor", self.ls2(self.norm2(self.mlp(x))))
        x = x + self.ls1(self.attn(self.norm1(x), head_mask, where))
        return x + cast("Tensor", self.ls2(self.mlp(self.norm2(x))))

    def probabilities(self, x: Tensor, where: Whereabouts) -> Tensor:
        """(B, N, D) to (B, H, N, N)."""
        return self.attn.probabilities(x if self.post else self.norm1(x), where)

    @property
    def num_heads(self) -> int:
        """Heads that a mask has factors for."""
        return self.attn.num_heads


class AttentionBranch(nn.Module):
    """One of several attentions side by side."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm = norm_of(config.embed_dim, config)
        self.attn = Attention(config, layer)
        self.ls = LayerScale(config.embed_dim) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, head_mask: Tensor | None, where: Whereabouts) -> Tensor:
        """(B, N, D) to (B, N, D), without the input itself."""
        return cast("Tensor", self.ls(self.attn(self.norm(x), head_mask, where)))


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
    https://arxiv.org/abs/2203.09795; timm's `ParallelThingsBlock`. Heads are counted through all
    attentions.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.attns = nn.ModuleList(AttentionBranch(config, layer) for _ in range(config.branches))
        self.ffns = nn.ModuleList(MlpBranch(config) for _ in range(config.branches))

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, where: Whereabouts = NOWHERE
    ) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        count = len(self.attns)
        masks = [None] * count if head_mask is None else head_mask.chunk(count)
        read = [branch(x, mask, where) for branch, mask in zip(self.attns, masks, strict=True)]
        x = x + torch.stack(read).sum(dim=0)
        return x + torch.stack([branch(x) for branch in self.ffns]).sum(dim=0)

    def probabilities(self, x: Tensor, where: Whereabouts) -> Tensor:
        """(B, N, D) to (B, branches * H, N, N)."""
        branches = cast("list[AttentionBranch]", list(self.attns))
        return torch.cat([b.attn.probabilities(b.norm(x), where) for b in branches], dim=1)

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
    )
