"""The sizes of the axes that `weights_map/canonical.toml` names."""

from vitconvert.config.properties import Properties

# Axes of the canonical layouts whose size is the same in every ViT.
FIXED_AXES = {
    "qkv": 3,
    "kv": 2,
    "qk": 2,
    "gate": 2,
    "axis": 2,
    "root_y": 7,
    "root_x": 7,
    "unit_y": 3,
    "unit_x": 3,
    "four_y": 4,
    "four_x": 4,
    "two_y": 2,
    "two_x": 2,
    "bound": 4,
}


def axis_sizes(config: Properties) -> dict[str, int]:
    """The size of every axis, by its name."""
    return {
        **FIXED_AXES,
        **_embedding(config),
        **_stem(config),
        **_blocks(config),
        **_relative_positions(config),
        **_after_the_blocks(config),
    }


def _embedding(config: Properties) -> dict[str, int]:
    return {
        "width": config.embed_dim,
        "rgb": config.in_channels,
        "y": config.patch_size[0],
        "x": config.patch_size[1],
        "tubelet": config.tubelet,
        "position": config.num_positions,
        "register": config.num_registers,
        "prefix": config.prefix_of_window,
        **dict.fromkeys(("grid_y", "grid_side"), config.position_side),
        "grid_x": config.position_grid[1] if config.position_grid else 0,
        "grid_after_one": config.position_count + 1,
    }


def _stem(config: Properties) -> dict[str, int]:
    # Stage s of a ResNet: bottlenecks of width W * 2^s that expand to four times as much.
    # `channel` is what the patch convolution reads: the image, or the stem's last stage.
    axes = {"channel": config.in_channels}
    if config.stem:
        axes |= dict.fromkeys(("stem", "stem_in", "channel"), config.stem_width)
        axes |= dict.fromkeys(("half_stem", "half_stem_in"), config.stem_width // 2)
    for stage, units in enumerate(config.stem_depths):
        mid = config.stem_width * 2**stage
        axes |= {f"mid{stage}": mid, f"mid_in{stage}": mid, f"out{stage}": 4 * mid}
        for unit in range(units):
            axes[f"in{stage}_{unit}"] = 4 * mid if unit else axes["channel"]
        axes["channel"] = 4 * mid
    return axes


def _blocks(config: Properties) -> dict[str, int]:
    inner = config.num_heads * config.head_dim
    return {
        "layer": config.depth,
        "head": config.num_heads,
        "dim": config.head_dim,
        "half_dim": config.head_dim // 2,
        "quarter_dim": config.head_dim // 4,
        "frequency": config.head_dim // 2,
        "hidden": config.mlp_dim,
        "joined_in": config.mlp_dim + 3 * inner,
        "joined_out": config.mlp_dim + inner,
        **{f"kv_head{i}": heads for i, heads in enumerate(config.kv_heads)},
    }


def _relative_positions(config: Properties) -> dict[str, int]:
    rows, columns = (2 * side - 1 for side in config.grid_size)
    # Offsets of rows and columns; then class to patch, patch to class, class to class.
    axes = {"relative": rows * columns + 3 * config.class_token}
    axes["relative_hidden"] = config.relative_mlp_dim
    for block in range(config.depth) if config.decomposed_positions else ():
        for axis, side in zip("yx", config.attended_grid(block), strict=True):
            axes[f"offset_{axis}{block}"] = 2 * side - 1
    return axes


def _after_the_blocks(config: Properties) -> dict[str, int]:
    pool_heads = config.pool_heads or config.num_heads
    return {
        **dict.fromkeys(("neck", "neck_in"), config.neck_dim),
        **dict.fromkeys(("merge_y", "merge_x"), config.merge_size),
        **dict.fromkeys(("merge_hidden", "merge_hidden_in"), config.merge_mlp_dim),
        "merge_gated": config.merge_gated_dim,
        "merge_width": config.merge_dim,
        "pool_head": pool_heads,
        "pool_dim": config.embed_dim // pool_heads,
        "pool_hidden": config.pool_mlp_dim or config.mlp_dim,
        "feature": config.feature_dim,
        "label": config.num_classes,
    }
