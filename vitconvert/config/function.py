"""Which fields decide what a ViT computes: those that have an effect beside the others."""

from typing import Any

from vitconvert.config.properties import Properties


def effective_fields(config: Properties, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the named fields that have an effect in inference, defaults of defaults resolved."""
    effects = {
        **_of_training_and_other_sizes(config),
        **_of_tokens_and_positions(config),
        **_of_rope(config),
        **_of_blocks(config),
        **_of_pooling_and_head(config),
    }
    values = {name: getattr(config, name) for name in names} | _resolved(config)
    return {name: value for name, value in values.items() if effects.get(name, True)}


def _resolved(config: Properties) -> dict[str, Any]:
    """What stands for a value that depends on another field."""
    scaled_by_one = config.rope_reference == config.grid_size
    return {
        "attention_scale": config.attention_scale or config.head_dim**-0.5,
        "final_norm_eps": config.final_norm_eps or config.norm_eps,
        "pool_heads": config.pool_heads or config.num_heads,
        "pool_mlp_dim": config.pool_mlp_dim or config.mlp_dim,
        "rope_reference": () if scaled_by_one else config.rope_reference,
        "global_blocks": tuple(i for i in config.global_blocks if i < config.depth),
    }


def _of_training_and_other_sizes(config: Properties) -> dict[str, bool]:
    rates = ("drop_rate", "embed_drop_rate", "attention_drop_rate", "proj_drop_rate")
    return {
        **dict.fromkeys(rates, False),
        "relative_resampling": False,
        "position_resampling": config.fitted_grid,
    }


def _of_tokens_and_positions(config: Properties) -> dict[str, bool]:
    prefix = config.num_prefix_tokens > 0
    positions_of_all = config.learned_positions and not config.no_embed_class
    return {
        "stem_style": config.stem,
        "stem_width": config.stem,
        "no_embed_class": prefix and config.learned_positions,
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
        "rope_reference": config.rope == "axial",
    }


def _of_blocks(config: Properties) -> dict[str, bool]:
    windows = config.windowed and config.grid_size != (config.window_size,) * 2
    return {
        "window_size": windows,
        "global_blocks": windows,
        "proj_bias": config.attention_proj,
        "mlp_layer_scale": config.layer_scale,
        "mlp_bias": not config.joined_proj,
    }


def _of_pooling_and_head(config: Properties) -> dict[str, bool]:
    prefix, of_many = config.num_prefix_tokens > 0, config.pooling not in ("token", "none")
    return {
        "final_norm_eps": config.final_norm,
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
    }
