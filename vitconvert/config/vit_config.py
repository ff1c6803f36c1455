"""The architecture and the numerics of one Vision Transformer."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config.axis_sizes import axis_sizes
from vitconvert.config.contradictions import contradictions
from vitconvert.config.properties import DROP_RATES, Properties
from vitconvert.errors import ConflictingFact, NotRepresentable


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Properties):
    """The architecture and the numerics of one Vision Transformer.

    `Fields` says what can be set, those of a plain ViT first; `Properties`, what follows from it.
    `origins` says where each value comes from.

    Raises:
        ConflictingFact: Fields contradict each other or have values outside their vocabulary.
    """

    def __post_init__(self) -> None:
        if problems := contradictions(self):
            raise ConflictingFact("These facts contradict each other.", details=problems)

    def function(self) -> dict[str, Any]:
        """The fields that decide the function in inference, without those that have no effect here.

        Two configurations compute the same function of the same weights if these are equal.
        """
        effects = {
            **_of_training_and_other_sizes(self),
            **_of_tokens_and_positions(self),
            **_of_rope(self),
            **_of_blocks(self),
            **_of_pooling_and_head(self),
        }
        values = {name: getattr(self, name) for name in field_names()} | _resolved(self)
        return {name: value for name, value in values.items() if effects.get(name, True)}

    def require_images(self, what: str) -> None:
        """Refuse what only models of images can do, such as "A map of attention".

        Raises:
            NotRepresentable: This model reads clips.
        """
        if self.clips:
            raise NotRepresentable(
                f"{what} is of models that read images.",
                evidence={"this model reads": f"clips of {self.frames} frames"},
            )

    def axes(self) -> dict[str, int]:
        """The size of every axis that `weights_map/canonical.toml` names."""
        return axis_sizes(self)

    def replace(self, **changes: Any) -> "ViTConfig":
        """A copy with other values; their origin is `user`, unless `changes` has `origins`."""
        origins = {**self.origins, **dict.fromkeys(changes, "user")}
        return dataclasses.replace(self, **{"origins": origins, **changes})

    def to_dict(self) -> dict[str, Any]:
        """All fields but `origins`, as JSON types."""
        values = ((name, getattr(self, name)) for name in field_names())
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], *, origin: str = "vitconvert.json"
    ) -> "ViTConfig":
        """The inverse of `to_dict`."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fields, origins=dict.fromkeys(fields, origin))


@functools.cache
def field_names(of: type[Any] = ViTConfig) -> tuple[str, ...]:
    """Names of the fields that a user, or a table, can set."""
    return tuple(f.name for f in dataclasses.fields(of) if f.name != "origins")


# Which fields have an effect beside the others

_WITHOUT_PATCHES = ("token", "prefix_avg", "none")  # poolings that read no mean of patches


def _resolved(config: Properties) -> dict[str, Any]:
    """What stands for a value that depends on another field."""
    scaled_by_one = config.rope_reference == config.grid_size
    same_eps = config.fc_norm_eps == config.norm_eps
    return {
        "patch_stride": config.patch_stride or config.patch_size,
        "attention_scale": config.attention_scale or config.head_dim**-0.5,
        "final_norm_eps": config.final_norm_eps or config.norm_eps,
        "fc_norm_eps": None if same_eps else config.fc_norm_eps,
        "pool_heads": config.pool_heads or config.num_heads,
        "pool_mlp_dim": config.pool_mlp_dim or config.mlp_dim,
        "rope_reference": () if scaled_by_one else config.rope_reference,
        "window_count": config.window_count if config.window_count > 1 else 0,
        "global_blocks": tuple(i for i in config.global_blocks if i < config.depth),
    }


def _of_training_and_other_sizes(config: Properties) -> dict[str, bool]:
    return {
        **dict.fromkeys(DROP_RATES, False),
        "relative_resampling": False,
        "position_resampling": config.fitted_grid,
        "frames": config.clips,
        "tubelet": config.clips,
    }


def _of_tokens_and_positions(config: Properties) -> dict[str, bool]:
    prefix = config.num_prefix_tokens > 0
    positions_of_all = config.numbered_positions and not config.no_embed_class
    return {
        "stem_style": config.stem,
        "stem_width": config.stem,
        "no_embed_class": prefix and config.numbered_positions,
        "register_positions": config.num_registers > 0 and positions_of_all,
        "position_grid": config.own_grid,
        "position_square": config.fitted_grid,
    }


def _of_rope(config: Properties) -> dict[str, bool]:
    present = config.rope != "none"
    return {
        "rope_temperature": config.rope not in ("none", "mixed") and not config.rope_periods,
        "rope_indexing": present,
        "rope_offset": config.rope in ("axial", "dinov3"),
        "rope_half": present,
        "rope_by_axis": present and config.rope_half,
        "rope_interleaved": config.rope == "axial",
        "rope_alternating": config.rope == "axial",
        "rope_in_windows": config.rope == "axial",
        "rope_reference": config.rope == "axial",
    }


def _of_blocks(config: Properties) -> dict[str, bool]:
    windows = config.windowed and config.grid_size != (config.window_size,) * 2
    return {
        "window_size": windows,
        "global_blocks": windows or config.window_count > 1,
        "window_padding": windows and not config.whole_windows,
        "proj_bias": config.attention_proj,
        "mlp_layer_scale": config.layer_scale,
        "mlp_bias": not config.joined_proj,
    }


def _of_pooling_and_head(config: Properties) -> dict[str, bool]:
    prefix, of_many = config.num_prefix_tokens > 0, config.pooling not in _WITHOUT_PATCHES
    return {
        "final_norm_eps": config.final_norm,
        "fc_norm_eps": config.fc_norm,
        "merge_standard": config.merge_size > 0,
        "merge_padding": not config.whole_squares,
        "pool_include_prefix": prefix and of_many,
        "pool_heads": config.map_pooling,
        "pool_q_proj": config.map_pooling,
        "pool_kv_bias": config.map_pooling,
        "pool_mlp": config.map_pooling,
        "pool_mlp_dim": config.map_pooling and config.pool_mlp,
        "representation_activation": config.representation_size > 0,
        "head_bias": config.num_classes > 0,
        "problem_type": False,  # what is made of the logits
    }
