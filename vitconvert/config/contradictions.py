"""Values of ViTConfig that are impossible, alone or together, each with a sentence that says so."""

from collections.abc import Iterator
from numbers import Integral

from vitconvert.config.buckets import BUCKETED
from vitconvert.config.properties import DROP_RATES, Properties, patches_of
from vitconvert.config.vocabularies import VOCABULARIES
from vitconvert.errors import size_text

# Larger numbers are of no model. They would only make us count, or run out of memory.
LARGEST = 2**31 - 1  # of any whole number
MOST_BLOCKS = 1000
_MOST_STAGES = 8  # each halves the image and doubles the width
_MOST_PATCHES = 2**18  # an image of 8192 x 8192 pixels in patches of 16
_MOST_FRAMES = 2**16
_MOST = {
    **dict.fromkeys(("depth", "branches"), MOST_BLOCKS),
    **dict.fromkeys(("num_registers", "num_heads", "pool_heads"), 2**16),
    **dict.fromkeys(("frames", "tubelet"), _MOST_FRAMES),
}
# Outside of these, numbers overflow, or make everything equal.
_RANGES = {
    "norm_eps": (1e-30, 1.0),
    "final_norm_eps": (1e-30, 1.0),
    "fc_norm_eps": (1e-30, 1.0),
    "attention_scale": (1e-6, 1e3),
    "post_softmax_scale": (1e-6, 1e3),
    "rope_temperature": (1e-3, 1e9),
    "rope_offset": (-1e6, 1e6),
    **dict.fromkeys(DROP_RATES, (0.0, 1.0)),
}
_LEAST = {
    **dict.fromkeys(("in_channels", "embed_dim", "depth", "branches", "stem_width"), 1),
    **dict.fromkeys(("num_heads", "head_dim", "mlp_dim", "tubelet"), 1),
    "frames": 0,
    **dict.fromkeys(("num_classes", "num_registers", "representation_size"), 0),
    **dict.fromkeys(("pool_heads", "pool_mlp_dim", "patch_padding"), 0),
    **dict.fromkeys(("merge_size", "merge_mlp_dim", "merge_dim", "merge_gated_dim"), 0),
    **dict.fromkeys(("relative_mlp_dim", "window_size", "window_count", "neck_dim"), 0),
}
# Of blocks of one attention, one MLP.
_OF_TWO_STEPS = ("attention_norm", "gated_mlp", "mlp_norm", "mlp_out_activation", "v_norm")


def contradictions(config: Properties) -> list[str]:
    """One sentence for each impossible value, or else for each impossible combination."""
    return (
        _no_numbers(config)
        or _values(config)
        or [
            *_tokens_and_positions(config),
            *_clips(config),
            *_stem(config),
            *_stride(config),
            *_norm_and_attention(config),
            *_branches(config),
            *_parallel_order(config),
            *_differential(config),
            *_pooling_and_head(config),
            *_own_grid(config),
            *_merging(config),
            *_relative_positions(config),
            *_windows(config),
            *_windows_with_tokens(config),
            *_neck(config),
        ]
    )


def _no_numbers(config: Properties) -> list[str]:
    values = {name: getattr(config, name) for name in _LEAST}
    return [
        f"{name} = {value!r} is not an integer"
        for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, Integral)
    ]


def _values(config: Properties) -> list[str]:
    problems = [
        f"{name} = {getattr(config, name)!r} is not one of {', '.join(words)}"
        for name, words in VOCABULARIES.items()
        if getattr(config, name) not in words
    ]
    problems += [
        f"{name} = {getattr(config, name)} must be at least {least}"
        for name, least in _LEAST.items()
        if getattr(config, name) < least
    ]
    if len(config.patch_stride) not in (0, 2) or min(config.patch_stride, default=1) < 1:
        problems.append("patch_stride must be pixels down and across, or nothing")
    for name in ("image_size", "patch_size"):
        if min(getattr(config, name)) < 1:
            problems.append(f"{name} {size_text(getattr(config, name))} must be at least 1x1")
    return [*problems, *_too_large(config), *_out_of_range(config)]


def _too_large(config: Properties) -> Iterator[str]:
    for name in _LEAST:
        if getattr(config, name) > (most := _MOST.get(name, LARGEST)):
            yield f"{name} = {getattr(config, name)} must be at most {most}"
    several = ("rope_reference", "kv_heads", "position_grid", "global_blocks", "patch_stride")
    for name in ("image_size", "patch_size", *several):
        if max(getattr(config, name), default=0) > LARGEST:
            yield f"{name} must be at most {LARGEST}"
    if min(config.stem_depths, default=0) < 0 or sum(config.stem_depths) > MOST_BLOCKS:
        yield f"stem_depths must be units of stages, {MOST_BLOCKS} at most"
    if len(config.stem_depths) > _MOST_STAGES:
        yield f"stem_depths has {len(config.stem_depths)} stages; {_MOST_STAGES} at most"


def _out_of_range(config: Properties) -> Iterator[str]:
    for name, (least, most) in _RANGES.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:  # also what is no number
            yield f"{name} = {value} must be from {least:g} to {most:g}"


def _tokens_and_positions(config: Properties) -> list[str]:
    problems = []
    if min(config.grid_size) < 1:
        problems.append(
            f"image_size {size_text(config.image_size)} is too small for a patch of "
            f"{size_text(config.patch_size)} (stem stride {config.stem_stride})"
        )
    if config.num_patches > _MOST_PATCHES:
        clip = f" of {config.frames} frames" if config.clips else ""
        problems.append(
            f"image_size {size_text(config.image_size)}{clip} makes {config.num_patches} patches; "
            f"{_MOST_PATCHES} at most"
        )
    if config.patch_padding:
        height, width = (side + 2 * config.patch_padding for side in config.image_size)
        padded = patches_of((height, width), config.patch_size, config.patch_stride)
        if config.stem or padded != config.grid_size:
            problems.append(f"patch_padding = {config.patch_padding} makes room for more patches")
    # Two axes turn pairs of channels; V-JEPA 2's three leave what is over as it is.
    shared = 1 if config.vjepa_rope else 4
    if config.rope != "none" and config.head_dim % shared:
        problems.append(
            f"a rotary embedding needs head_dim divisible by {shared}, not {config.head_dim}"
        )
    if config.rope_periods and config.rope != "dinov3":
        problems.append("rope_periods need rope = 'dinov3'")
    if config.vjepa_rope and config.rope_half:
        problems.append(f"rope = {config.rope!r} excludes rope_half")
    if config.rope == "vjepa2_1" and min(config.grid_size) == 1:
        problems.append("rope = 'vjepa2_1' spreads rows and columns: it needs two of each at least")
    if config.rope_in_windows and (
        config.rope != "axial" or config.rope_reference or not config.window_size
    ):
        problems.append("rope_in_windows needs rope = 'axial', windows and no rope_reference")
    if config.rope_by_axis and not config.rope_half:
        problems.append("rope_by_axis needs rope_half")
    if config.rope_interleaved and config.rope != "axial":
        problems.append("rope_interleaved needs rope = 'axial'")
    if config.rope_alternating and (config.rope != "axial" or config.rope_by_axis):
        problems.append("rope_alternating needs rope = 'axial', and excludes rope_by_axis")
    alone = config.class_token and config.num_prefix_tokens == 1
    if config.rope_class and not (config.rope == "axial" and alone):
        problems.append("rope_class needs rope = 'axial' and only the class token before patches")
    if len(config.rope_reference) not in (0, 2):
        problems.append("rope_reference must be rows and columns, or nothing")
    if config.position_embedding == "sincos1d":
        if config.embed_dim % 2:
            problems.append(f"sincos1d positions need an even embed_dim, not {config.embed_dim}")
    elif config.computed_positions and (config.embed_dim % 4 or config.embed_dim < 8):
        problems.append(
            f"{config.position_embedding} positions need embed_dim divisible by 4, and 8 at "
            f"least, not {config.embed_dim}"
        )
    return problems


def _clips(config: Properties) -> list[str]:
    if config.images:
        return [] if config.tubelet == 1 else ["tubelet needs frames"]
    problems = []
    if config.frames < config.tubelet:
        problems.append(f"a clip of {config.frames} frames is shorter than a patch of it")
    obstacles = {
        "a stem": config.stem,
        "patch_stride and patch_padding": config.patch_stride or config.patch_padding,
        "a norm of pixels": config.patch_pre_norm,
        "centred_pixels": config.centred_pixels,
        "sincos2d positions": config.position_embedding.startswith("sincos2d"),
        "positions on a grid of their own": config.own_grid,
        "relative positions": config.relative_positions != "none",
        "a rotary embedding of two axes": config.rope != "none" and not config.vjepa_rope,
        "windows": config.windowed,
        "merge_size": config.merge_size,
        "neck_dim": config.neck_dim,
    }
    problems += [f"clips exclude {obstacle}" for obstacle, there in obstacles.items() if there]
    return problems


def _stem(config: Properties) -> list[str]:
    problems = []
    if config.standardised_stem and config.stem_width % 32:
        problems.append(f"the stem's 32 groups do not divide stem_width {config.stem_width}")
    if config.resnet_d_stem and config.stem_width % 2:
        problems.append(f"the stem's first convolutions halve stem_width {config.stem_width}")
    if config.mobileclip_stem and config.stem_depths:
        problems.append(
            f"stem_style = {config.stem_style!r} has no stages: stem_depths must be empty"
        )
    return problems


def _stride(config: Properties) -> list[str]:
    if not config.patch_stride:
        return []
    obstacles = {
        "a stem": config.stem,
        "a norm of pixels": config.patch_pre_norm,
        "positions on a grid of their own": config.own_grid,
        "windows": config.windowed,
    }
    return [f"patch_stride excludes {obstacle}" for obstacle, there in obstacles.items() if there]


def _norm_and_attention(config: Properties) -> list[str]:
    problems = []
    if config.norm == "rms" and config.norm_bias:
        problems.append("norm = 'rms' has no bias: norm_bias must be false")
    if config.kv_heads and len(config.kv_heads) != config.depth:
        problems.append(f"kv_heads has {len(config.kv_heads)} numbers for {config.depth} blocks")
    if any(heads < 1 or config.num_heads % heads for heads in config.kv_heads):
        problems.append(f"kv_heads must divide num_heads = {config.num_heads}")
    if config.whole_qk_norm and (config.qk_norm or config.kv_heads):
        problems.append("whole_qk_norm excludes qk_norm and kv_heads")
    if config.clipped_linears and not config.kv_heads:
        problems.append("clipped_linears need kv_heads")
    if not config.attention_proj and not config.even_heads:
        problems.append(
            f"without an output projection, {config.num_heads} heads of {config.head_dim} must "
            f"make up embed_dim {config.embed_dim}"
        )
    return problems


def _branches(config: Properties) -> list[str]:
    if config.single_branch:
        return []
    problems = [
        f"{name} needs branches = 1"
        for name in ("kv_heads", "qk_norm", "whole_qk_norm", *_OF_TWO_STEPS)
        if getattr(config, name)
    ]
    of_blocks = config.block_relative_positions or config.block_relative_mlp
    if config.block_order != "pre" or of_blocks:
        problems.append("another block_order and relative positions per block need branches = 1")
    if not config.mlp_layer_scale:
        problems.append("mlp_layer_scale = False needs branches = 1")
    return problems


def _parallel_order(config: Properties) -> list[str]:
    if not config.parallel_order:
        return []
    problems = [
        f"{name} and block_order = 'parallel' exclude each other"
        for name in ("kv_heads", "whole_qk_norm", *_OF_TWO_STEPS)
        if getattr(config, name)
    ]
    if not (config.attention_proj and config.mlp_bias and config.mlp_layer_scale):
        problems.append(
            "block_order = 'parallel' needs attention_proj, mlp_bias and mlp_layer_scale"
        )
    return problems


def _differential(config: Properties) -> list[str]:
    if not config.differential:
        return []
    present = {name: getattr(config, name) for name in ("kv_heads", "qk_norm", "whole_qk_norm")}
    present |= {"branches": config.parallel_branches, "rope": config.rope != "none"}
    problems = [
        f"{name} and differential attention exclude each other"
        for name, there in present.items()
        if there
    ]
    if config.head_dim % 2:
        problems.append(f"differential attention halves head_dim {config.head_dim}")
    return problems


def _pooling_and_head(config: Properties) -> list[str]:
    problems = []
    if config.pooling in ("token", "token_avg") and not config.class_token:
        problems.append(f"pooling = {config.pooling!r} needs a class token")
    if config.pooling == "token_avg" and (config.fc_norm or config.representation_size):
        problems.append("pooling = 'token_avg' excludes fc_norm and representation_size")
    if config.pooling == "prefix_avg" and not config.num_prefix_tokens:
        problems.append("pooling = 'prefix_avg' needs tokens in front of the patches")
    if config.bare_fc_norm and config.fc_norm:
        problems.append("bare_fc_norm excludes fc_norm")
    if config.dist_head and not (config.dist_token and config.pooling == "token"):
        problems.append("dist_head needs a distillation token and pooling = 'token'")
    if config.map_pooling and config.embed_dim % (config.pool_heads or config.num_heads):
        problems.append(
            f"attention pooling needs embed_dim {config.embed_dim} divisible by its "
            f"{config.pool_heads or config.num_heads} heads"
        )
    return problems


def _own_grid(config: Properties) -> list[str]:
    problems = []
    pair = len(config.position_grid) == 2 and min(config.position_grid) > 0
    if config.own_grid != pair or (config.position_grid and not pair):
        problems.append("position_grid is only for positions on a grid of their own")
    elif config.position_resampling == "first" and any(
        own < wanted for own, wanted in zip(config.position_grid, config.grid_size, strict=False)
    ):
        problems.append(
            f"{size_text(config.position_grid)} positions are too few for "
            f"{size_text(config.grid_size)} patches"
        )
    if config.axis_positions and len(set(config.position_grid)) > 1:
        problems.append("'axes' positions need as many rows as columns in position_grid")
    rule = config.position_resampling
    if rule == "tile" and (config.learned_positions or config.axis_positions):
        problems.append(f"position_resampling = {rule!r} needs positions on a grid of their own")
    if rule in BUCKETED and config.own_grid:
        problems.append(f"position_resampling = {rule!r} excludes a grid of their own")
    return problems


def _merging(config: Properties) -> list[str]:
    problems = []
    size = config.merge_size
    if size and config.num_prefix_tokens:
        problems.append("merge_size needs a model without class token and registers")
    if bool(config.merge_mlp_dim) != bool(config.merge_dim) or (config.merge_mlp_dim and not size):
        problems.append("merge_mlp_dim and merge_dim go together, and need merge_size")
    if config.merge_gated_dim and not config.merge_mlp:
        problems.append("merge_gated_dim needs merge_mlp_dim")
    if config.merge_standard and config.merge_mlp_dim:
        problems.append("merge_standard is of patches that are merged by their mean")
    if not config.whole_squares and not (config.merge_mlp and config.merge_padding):
        problems.append(
            f"{size_text(config.grid_size)} patches do not divide into squares of {size} by {size}"
        )
    if config.merge_dim not in (0, config.embed_dim) and (config.fc_norm or config.map_pooling):
        problems.append("fc_norm and attention pooling read embed_dim channels, not merge_dim")
    return problems


def _relative_positions(config: Properties) -> list[str]:
    problems = []
    if config.relative_positions != "none" and config.dist_token + config.num_registers:
        problems.append("relative positions need no prefix tokens but a class token")
    if bool(config.relative_mlp_dim) != (config.block_relative_mlp or config.shared_relative_mlp):
        problems.append("relative_mlp_dim is of relative positions that an MLP makes")
    return problems


def _windows(config: Properties) -> list[str]:
    if not (config.windowed or config.decomposed_positions):
        return []
    obstacles = {
        "prefix tokens": config.num_prefix_tokens,
        "a rotary embedding": config.rope != "none"
        and config.window_padding
        and not config.rope_in_windows,
        "mixed rotary embeddings": config.rope == "mixed",
        "other relative positions": config.relative_positions not in ("none", "decomposed"),
        "differential attention": config.differential,
        "attention and MLP in parallel": not config.two_steps,
    }
    problems = [
        f"windows and decomposed relative positions exclude {obstacle}"
        for obstacle, present in obstacles.items()
        if present
    ]
    if config.decomposed_positions and not config.window_padding:
        problems.append("decomposed relative positions need window_padding")
    return [*problems, *_global_blocks(config)]


def _global_blocks(config: Properties) -> Iterator[str]:
    blocks = list(config.global_blocks)
    if min(blocks, default=0) < 0 or sorted(set(blocks)) != blocks:
        yield "global_blocks must be numbers of blocks from 0, in order"


def _windows_with_tokens(config: Properties) -> list[str]:
    if not config.window_count:
        return []
    obstacles = {
        "window_size": config.windowed,
        "rotary embeddings": config.rope != "none",
        "relative positions": config.relative_positions != "none",
        "a second head": config.dist_head,
    }
    problems = [
        f"window_count excludes {obstacle}" for obstacle, there in obstacles.items() if there
    ]
    if any(side % config.window_count for side in config.grid_size):
        problems.append(
            f"{size_text(config.grid_size)} patches do not divide into {config.window_count} by "
            f"{config.window_count} windows"
        )
    return [*problems, *_global_blocks(config)]


def _neck(config: Properties) -> list[str]:
    if not config.neck_dim:
        return []
    obstacles = {
        "prefix tokens": config.num_prefix_tokens,
        "norms after the blocks": config.final_norm or config.fc_norm,
        "attention pooling": config.map_pooling,
        "representation_size": config.representation_size,
        "merge_size": config.merge_size,
    }
    return [f"neck_dim excludes {obstacle}" for obstacle, present in obstacles.items() if present]
