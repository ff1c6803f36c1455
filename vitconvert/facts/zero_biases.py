"""Biases of the patches and of the head: of zeros where a target has one, left out where zero."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitconvert.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor


def with_patch_bias(config: ViTConfig) -> ViTConfig | None:
    """The model whose patches are projected with a bias, or None where that is no change."""
    return None if config.patch_bias else config.replace(patch_bias=True)


def without_patch_bias(config: ViTConfig) -> ViTConfig | None:
    """The model whose patches are projected without one, or None."""
    return config.replace(patch_bias=False) if config.patch_bias else None


def zero_patch_bias(tensors: "Mapping[str, Tensor]", config: ViTConfig) -> "Mapping[str, Tensor]":
    """The tensors with such a bias, of zeros."""
    weight = tensors["patch_embed.proj.weight"]
    return {**tensors, "patch_embed.proj.bias": weight.new_zeros(config.embed_dim)}


def with_head_bias(config: ViTConfig) -> ViTConfig | None:
    """The model whose head has a bias, or None where that is no change."""
    adds = config.num_classes and not config.head_bias
    return config.replace(head_bias=True) if adds else None


def without_head_bias(config: ViTConfig) -> ViTConfig | None:
    """The model whose head has none, or None."""
    drops = config.num_classes and config.head_bias and not config.dist_head
    return config.replace(head_bias=False) if drops else None


def zero_head_bias(tensors: "Mapping[str, Tensor]", config: ViTConfig) -> "Mapping[str, Tensor]":
    """The tensors with such a bias, of zeros."""
    weight = tensors["head.weight"]
    return {**tensors, "head.bias": weight.new_zeros(config.num_classes)}


def leave_out(
    name: str, fact: str, tensors: "Mapping[str, Tensor]", _: ViTConfig
) -> "Mapping[str, Tensor]":
    """All but one that is zero; the fact is told where it is not."""
    from vitconvert.facts.materialise import require_zero

    require_zero(tensors[name], name, fact)
    return {other: tensor for other, tensor in tensors.items() if other != name}
