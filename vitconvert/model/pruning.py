"""Pruning: attention heads that are removed for good, with their rows and columns of the weights.

The smaller model computes what the whole one does with these heads masked.
"""

import re
from collections.abc import Collection, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError
from vitconvert.model.attention import Attention
from vitconvert.model.blocks import Block, OneStepBlock
from vitconvert.model.fast import FastLinear
from vitconvert.model.inputs import chosen_layers
from vitconvert.model.layers import ClippedLinear
from vitconvert.model.vit import ViT

# Layers that lose rows or columns.
_CUT = re.compile(r"(^|\.)(qkv|q|k|v|proj|in_proj|out_proj|rel_pos\.mlp\.fc2)$")


def prune_heads(model: ViT, heads: Mapping[int, Collection[int]]) -> None:
    """Remove attention heads for good: `{block: heads}`, both counted from 0.

    The model then computes what it did with these heads masked. `config` cannot express this: the
    remaining heads of a block are `blocks[i].attn.num_heads`, numbered again from 0.

    Args:
        model: From `load_model`; it is changed.
        heads: Number of a block -> its heads that go.

    Raises:
        UsageError: There are no such blocks or heads, or a block would keep none.

    Example:
        >>> model = vitconvert.load_model("my-vit")
        >>> vitconvert.prune_heads(model, {0: [1], -1: [0, 2]})
    """
    layers = chosen_layers(list(heads), len(model.blocks))
    _check_prunable(model.config)
    _check_plain(model)
    blocks = {layer: cast("Block | OneStepBlock", model.blocks[layer]) for layer in layers}
    pruned: dict[int, set[int]] = {layer: set() for layer in layers}
    for layer, numbers in heads.items():  # -1 and depth - 1 are one block
        pruned[layer % len(model.blocks)].update(numbers)
    kept = {layer: _kept_heads(pruned[layer], block.num_heads) for layer, block in blocks.items()}
    for layer, block in blocks.items():  # none is changed before all of them were checked
        channels = _prune_attention(block.attn, kept[layer])
        if isinstance(block, OneStepBlock):
            _prune_joined(block, channels)


def _check_prunable(config: ViTConfig) -> None:
    """Raise UsageError if a block without some heads would differ from one that masks them."""
    obstacles = {
        "an output projection is missing": not config.attention_proj,
        "a block has several attentions": config.parallel_branches,
        "a norm spans all heads": config.attention_norm or config.whole_qk_norm,
        "the blocks share a table of relative positions": (
            config.shared_relative_positions or config.shared_relative_mlp
        ),
        "the blocks share the rotary embedding's frequencies": config.mixed_rope,
    }
    found = [obstacle for obstacle, present in obstacles.items() if present]
    if found:
        raise UsageError(f"Heads of this model cannot be pruned: {' and '.join(found)}.")


def _check_plain(model: ViT) -> None:
    """Raise UsageError where an adapter, or a kind of numbers, stands for a linear layer."""
    plain = (nn.Linear, ClippedLinear, FastLinear, nn.Identity)
    for name, layer in model.blocks.named_modules():
        if _CUT.search(name) and type(layer) not in plain:
            raise UsageError(
                f"Heads of this model cannot be pruned: blocks.{name} is a "
                f"{type(layer).__name__}, whose weights are not cut.",
                hint="merge adapters first (peft: model.merge_and_unload()), and quantise later.",
            )


def _kept_heads(pruned: Collection[int], num_heads: int) -> list[int]:
    """Numbers of the heads, from 0, that stay when some are pruned.

    Raises:
        UsageError: The block has no such heads, or would keep none.
    """
    kept = [head for head in range(num_heads) if head not in pruned]
    if not set(pruned) <= set(range(num_heads)):
        raise UsageError(
            "The block does not have all of the heads to prune.",
            evidence={"pruned": sorted(pruned), "heads": f"0 to {num_heads - 1}"},
        )
    if not kept:
        raise UsageError(
            "A block must keep at least one head.",
            evidence={"pruned": sorted(pruned), "heads": f"0 to {num_heads - 1}"},
            hint="head_mask can switch off all of them.",
        )
    return kept


def _prune_attention(attention: Attention, kept: list[int]) -> Tensor:
    """Remove rows of q, k and v, columns of `proj` and of the relative positions.

    Returns:
        Indices of the channels of the joined outputs that are kept.
    """
    K, inner = attention.head_dim, attention.num_heads * attention.head_dim
    channels = _channels(kept, K)
    if attention.qkv is not None:
        _keep(attention.qkv, torch.cat([channels + part * inner for part in range(3)]), dim=0)
    if attention.kv_of_head is not None:
        read = [attention.kv_of_head[head] for head in kept]
        left = sorted(set(read))
        attention.kv_of_head = [left.index(head) for head in read]
        _keep(attention.q, channels, dim=0)
        _keep(attention.k, _channels(left, K), dim=0)
        _keep(attention.v, _channels(left, K), dim=0)
    if isinstance(attention.proj, nn.Linear):
        _keep(attention.proj, channels, dim=1)
    if attention.relative_position_bias_table is not None:
        table = attention.relative_position_bias_table.detach()[:, kept]
        attention.relative_position_bias_table = nn.Parameter(table)
    if attention.rel_pos is not None:
        _keep(cast("nn.Linear", attention.rel_pos.mlp.fc2), torch.tensor(kept), dim=0)
    attention.num_heads = len(kept)
    return channels


def _prune_joined(block: OneStepBlock, channels: Tensor) -> None:
    """Remove rows of the matrix that q, k, v and the MLP share, and columns of the last one."""
    hidden, inner, *_ = block.widths
    mlp = torch.arange(hidden, device="cpu")
    rows = [mlp, *(hidden + part * inner + channels for part in range(3))]
    _keep(block.in_proj, torch.cat(rows), dim=0)
    if block.out_proj is not None:
        _keep(block.out_proj, torch.cat((channels, inner + mlp)), dim=1)
    block.widths = [hidden, *[len(channels)] * 3]


def _channels(heads: list[int], head_dim: int) -> Tensor:
    first = torch.tensor(heads, device="cpu")[:, None] * head_dim
    return (first + torch.arange(head_dim, device="cpu")).flatten()


def _keep(linear: nn.Linear, kept: Tensor, *, dim: int) -> None:
    """Drop all outputs (dim 0) or inputs (dim 1) of a linear layer but these."""
    kept = kept.to(linear.weight.device)
    linear.weight = nn.Parameter(linear.weight.detach().index_select(dim, kept))
    if dim == 0 and linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.detach().index_select(0, kept))
    linear.out_features, linear.in_features = linear.weight.shape
