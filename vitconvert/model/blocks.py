"""The transformer's blocks: attention and MLP, added to the residual stream one after another.

Operations and their order are those of timm 1.0.31 (`layers/mlp.py`, and the blocks of
`vision_transformer.py`, `eva.py` and `beit.py`).

Letters: B images, N tokens (prefix tokens, then patches row by row), D width, H heads, K width of
a head.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.attention import NO_POSITIONS, Attention, TokenPositions, attention_of
from vitconvert.model.inputs import branch_masks
from vitconvert.model.layers import (
    ACTIVATION,
    LayerScale,
    Mlp,
    drop_path_of,
    linear,
    linear_of,
    norm_if,
    norm_of,
)

torch.fx.wrap("branch_masks")


def _mlp(config: ViTConfig) -> Mlp:
    return Mlp(
        config,
        config.mlp_dim,
        bias=config.mlp_bias,
        drop=config.proj_drop_rate,
        gated=config.gated_mlp,
        normed=config.mlp_norm,
        out_activation=config.mlp_out_activation,
        linear=linear_of(config),
    )


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to its input.

    In "post_norm" order (Vaswani et al., https://arxiv.org/abs/1706.03762; torch's
    `nn.TransformerEncoderLayer` with norm_first=False) the norm is applied to the sum. In
    "res_post_norm" order (Swin v2, https://arxiv.org/abs/2111.09883) it is applied to what is
    added, in "sandwich" order (Ding et al., https://arxiv.org/abs/2105.13290) a second one is.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        D = config.embed_dim
        self.order = config.block_order
        self.norm1 = norm_of(D, config)
        self.attn = attention_of(config, layer)
        self.ls1 = LayerScale(D) if config.layer_scale else nn.Identity()
        self.drop_path1 = drop_path_of(config, layer)
        self.norm2 = norm_of(D, config)
        self.mlp = _mlp(config)
        self.post_norm1 = norm_if(config.sandwich, D, config)
        self.post_norm2 = norm_if(config.sandwich, D, config)
        scaled = config.layer_scale and config.mlp_layer_scale
        self.ls2 = LayerScale(D) if scaled else nn.Identity()
        self.drop_path2 = drop_path_of(config, layer)

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D)."""
        read = self.attn(self.attention_input(x), head_mask, positions)
        x = x[:, : positions.wanted]
        if self.order == "post_norm":
            x = self.norm1(x + self.drop_path1(self.ls1(read)))
            return cast("Tensor", self.norm2(x + self.drop_path2(self.ls2(self.mlp(x)))))
        if self.order == "res_post_norm":
            x = x + self.drop_path1(self.ls1(self.norm1(read)))
            added = self.ls2(self.norm2(self.mlp(x)))
        else:
            x = x + self.drop_path1(self.ls1(self.post_norm1(read)))
            added = self.ls2(self.post_norm2(self.mlp(self.norm2(x))))
        return x + cast("Tensor", self.drop_path2(added))

    def attention_input(self, x: Tensor) -> Tensor:
        """What the attention reads of the tokens (B, N, D), of the same shape."""
        return x if self.order in ("post_norm", "res_post_norm") else self.norm1(x)

    def probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, H, N, N)."""
        return self.attn.probabilities(self.attn.project(self.attention_input(x)), positions)

    @property
    def num_heads(self) -> int:
        """Heads that a mask has factors for."""
        return self.attn.num_heads


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
        self.attn = attention_of(config, layer)
        self.mlp = MlpTail(config)
        self.out_proj: nn.Linear | None = None
        if config.joined_proj:
            self.out_proj = linear(inner + config.mlp_dim, D, bias=config.proj_bias)
        self.ls1 = LayerScale(D) if config.layer_scale else nn.Identity()
        self.drop_path = drop_path_of(config, layer)

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D)."""
        hidden, qkv = self._project(x)
        x, hidden = x[:, : positions.wanted], hidden[:, : positions.wanted]
        read, hidden = self.attn.read(qkv, head_mask, positions), self.mlp(hidden)
        if self.out_proj is None:
            added = self.attn.proj(read) + hidden
        else:
            added = self.out_proj(torch.cat((read, hidden), dim=-1))
        return x + cast("Tensor", self.drop_path(self.ls1(added)))

    def probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, H, N, N)."""
        return self.attn.probabilities(self._project(x)[1], positions)

    @property
    def num_heads(self) -> int:
        """Heads that a mask has factors for."""
        return self.attn.num_heads

    def _project(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """(B, N, D) to the MLP's hidden channels, and q, k and v, each (B, H, N, K)."""
        hidden, q, k, v = self.in_proj(self.norm1(x)).split(self.widths, dim=-1)
        heads = (self.attn.num_heads, self.attn.head_dim)
        return hidden, [part.unflatten(-1, heads).transpose(1, 2) for part in (q, k, v)]


class AttentionBranch(nn.Module):
    """One of several attentions side by side."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm = norm_of(config.embed_dim, config)
        self.attn = Attention(config, layer)
        self.ls = LayerScale(config.embed_dim) if config.layer_scale else nn.Identity()
        self.drop_path = drop_path_of(config, layer)

    def forward(self, x: Tensor, head_mask: Tensor | None, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, wanted, D), without the input itself."""
        read = self.attn(self.norm(x), head_mask, positions)
        return cast("Tensor", self.drop_path(self.ls(read)))


class MlpBranch(nn.Module):
    """One of several MLPs side by side."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm = norm_of(config.embed_dim, config)
        self.mlp = _mlp(config)
        self.ls = LayerScale(config.embed_dim) if config.layer_scale else nn.Identity()
        self.drop_path = drop_path_of(config, layer)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D), without the input itself."""
        return cast("Tensor", self.drop_path(self.ls(self.mlp(self.norm(x)))))


class ParallelBlock(nn.Module):
    """Several attentions side by side, then several MLPs; their sums are added to the input.

    Touvron et al., "Three things everyone should know about Vision Transformers",
    https://arxiv.org/abs/2203.09795; timm's `ParallelThingsBlock`. Heads are numbered across all
    attentions.
    """

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.attns = nn.ModuleList(AttentionBranch(config, layer) for _ in range(config.branches))
        self.ffns = nn.ModuleList(MlpBranch(config, layer) for _ in range(config.branches))

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, wanted, D)."""
        masks = branch_masks(head_mask, len(self.attns))
        read = [branch(x, masks[i], positions) for i, branch in enumerate(self.attns)]
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


AnyBlock = Block | OneStepBlock | ParallelBlock
