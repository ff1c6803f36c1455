"""Selects blocks and heads, and keeps only those."""

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError

# For each block, a factor for each head, or None.
HeadMask = Tensor | Sequence[Tensor | None] | None


def chosen_layers(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """Numbers of blocks, from 0: all, the last `indices`, or those listed (negative: from the end).

    Raises:
        UsageError: The model has no such blocks.
    """
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int):
        if not 0 < indices <= depth:
            raise UsageError(
                f"The last {indices} blocks were asked for, but the model has {depth}."
            )
        return list(range(depth - indices, depth))
    absent = [index for index in indices if not -depth <= index < depth]
    if absent or not indices:
        raise UsageError(
            "The model does not have all of these blocks.",
            evidence={"asked": list(indices), "blocks": f"0 to {depth - 1}"},
        )
    return sorted({index % depth for index in indices})


def check_prunable(config: ViTConfig) -> None:
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


def kept_heads(pruned: Collection[int], num_heads: int) -> list[int]:
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


def head_masks(masks: HeadMask, num_heads: Sequence[int]) -> list[Tensor | None]:
    """One mask, or None, for each block.

    Raises:
        UsageError: There is not one mask for each block, or not one factor for each head.
    """
    if masks is None:
        return [None] * len(num_heads)
    found = [None if mask is None else tuple(mask.shape) for mask in masks]
    wanted = [(heads,) for heads in num_heads]
    fits = len(found) == len(wanted) and all(
        shape in (None, heads) for shape, heads in zip(found, wanted, strict=True)
    )
    if not fits:
        raise UsageError(
            "head_mask does not have one factor for each head of each block.",
            evidence={"found": found, "wanted": wanted},
        )
    return list(masks)


def keep(linear: nn.Linear, kept: Tensor, *, dim: int) -> None:
    """Drop all outputs (dim 0) or inputs (dim 1) of a linear layer but these."""
    kept = kept.to(linear.weight.device)
    linear.weight = nn.Parameter(linear.weight.detach().index_select(dim, kept))
    if dim == 0 and linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.detach().index_select(0, kept))
    linear.out_features, linear.in_features = linear.weight.shape
