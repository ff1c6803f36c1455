"""The periods of DINOv3's rotary embedding: stored in a file, or computed by the target."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 5e-7  # four units in the last place of float32: powers differ so between devices


def with_stored(config: ViTConfig) -> ViTConfig | None:
    """The model whose periods are stored, or None where that is no change."""
    computes = config.rope == "dinov3" and not config.rope_periods
    return config.replace(rope_periods=True) if computes else None


def store(tensors: "Mapping[str, Tensor]", config: ViTConfig) -> "Mapping[str, Tensor]":
    """The tensors with the periods that were computed."""
    from vitconvert.model.rope import dinov3_periods

    periods = dinov3_periods(config.head_dim // 4, config.rope_temperature)
    return {**tensors, "rope.periods": periods}


def with_computed(config: ViTConfig) -> ViTConfig | None:
    """The model whose periods are computed, or None where that is no change."""
    return config.replace(rope_periods=False) if config.rope_periods else None


def compute(tensors: "Mapping[str, Tensor]", config: ViTConfig) -> "Mapping[str, Tensor]":
    """The tensors without the periods, which are those that the target computes.

    Raises:
        NotRepresentable: They are others.
    """
    from vitconvert.model.rope import dinov3_periods

    stored = tensors["rope.periods"].double()
    computed = dinov3_periods(config.head_dim // 4, config.rope_temperature).double()
    if not (differ := float((stored / computed - 1).abs().max())) <= _ROUNDING:
        raise NotRepresentable(
            "The target computes the periods of the rotary embedding, and these are others.",
            evidence={"tensor": "rope.periods", "relative difference": f"{differ:.1e}"},
            meaning="Stored periods are often rounded to bfloat16, by up to 4e-3; computed ones "
            f"have temperature {config.rope_temperature:g}.",
            hint="the format of the source and vitconvert's own (--to vit) hold them.",
        )
    return {name: tensor for name, tensor in tensors.items() if name != "rope.periods"}
