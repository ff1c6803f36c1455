"""Values that no ViTConfig can have, alone or beside others, each with its sentence."""

import pytest

from tests.small_models import small_config
from vitconvert.errors import ConflictingFact

PLAIN = {"patch_size": (8, 6), "in_channels": 4, "depth": 11}
RMS = {"norm": "rms", "norm_bias": False}
PARALLEL = {"block_order": "parallel"}
IN_PARALLEL = "{} and block_order = 'parallel' exclude each other"
WHOLE_PARALLEL = "block_order = 'parallel' needs attention_proj, mlp_bias and mlp_layer_scale"
APART = "{} and differential attention exclude each other"
ONE_BRANCH = "{} needs branches = 1"
WINDOWED = {"window_size": 3, "class_token": False, "pooling": "avg"}
UNNORMED = {"class_token": False, "pooling": "avg", "final_norm": False}
ORDER = "another block_order and relative positions per block need branches = 1"
STEM = {"stem": True}
PATCHES = {"class_token": False, "pooling": "avg"}
GRID = {"position_embedding": "grid", "position_grid": (5, 5)}
ON_A_GRID = "position_grid is rows and columns of positions on a grid of their own alone"
MERGING = "merge_mlp_dim and merge_dim go together, and need merge_size"

IMPOSSIBLE = [
    ({"norm": "batch"}, "norm = 'batch' is none of layer, rms"),
    ({"num_heads": 0, "pooling": "map"}, "num_heads = 0 must be at least 1"),
    ({"branches": 0}, "branches = 0 must be at least 1"),
    ({"num_registers": -1}, "num_registers = -1 must be at least 0"),
    ({"pool_heads": -2, "pooling": "map"}, "pool_heads = -2 must be at least 0"),
    ({"patch_size": (0, 6)}, "patch_size 0x6 must be at least 1x1"),
    ({"norm_eps": 0.0}, "norm_eps = 0.0 must be from 1e-30 to 1"),
    ({"window_size": -1}, "window_size = -1 must be at least 0"),
    ({"final_norm_eps": 0.0}, "final_norm_eps = 0.0 must be from 1e-30 to 1"),
    ({"norm_eps": float("nan")}, "norm_eps = nan must be from 1e-30 to 1"),
]
TOGETHER = [
    ({"image_size": (4, 24)}, "image_size 4x24 is too small for a patch of 8x6 (stem stride 1)"),
    (
        STEM | {"stem_depths": (1, 2)},
        "image_size 32x24 is too small for a patch of 8x6 (stem stride 8)",
    ),
    (
        {"relative_positions": "block", "num_registers": 2},
        "relative positions need no prefix tokens but a class token",
    ),
    ({"relative_mlp_dim": 5}, "relative_mlp_dim is of relative positions that an MLP makes"),
    (
        {"relative_positions": "shared_mlp"},
        "relative_mlp_dim is of relative positions that an MLP makes",
    ),
    (
        {"window_size": 3},
        "windows and decomposed relative positions exclude prefix tokens",
    ),
    (
        WINDOWED | {"block_order": "parallel"},
        "windows and decomposed relative positions exclude attention and MLP in parallel",
    ),
    (
        WINDOWED | {"rope": "axial", "head_dim": 12},
        "windows and decomposed relative positions exclude a rotary embedding",
    ),
    (
        WINDOWED | {"relative_positions": "block"},
        "windows and decomposed relative positions exclude other relative positions",
    ),
    (
        WINDOWED | {"differential": True},
        "windows and decomposed relative positions exclude differential attention",
    ),
    (
        WINDOWED | {"global_blocks": (3, 1)},
        "global_blocks must be numbers of blocks from 0, in order",
    ),
    (UNNORMED | {"neck_dim": 8, "final_norm": True}, "neck_dim excludes norms after the blocks"),
    (UNNORMED | {"neck_dim": 8, "pooling": "map"}, "neck_dim excludes attention pooling"),
    *(
        (UNNORMED | {"neck_dim": 8} | more, f"neck_dim excludes {obstacle}")
        for more, obstacle in (
            ({"class_token": True}, "prefix tokens"),
            ({"representation_size": 5}, "representation_size"),
            ({"merge_size": 2}, "merge_size"),
        )
    ),
    *(
        (grid, ON_A_GRID)
        for grid in (
            {"position_grid": (5, 5)},
            GRID | {"position_grid": ()},
            GRID | {"position_grid": (5,)},
            GRID | {"position_grid": (5, 0)},
        )
    ),
    (
        GRID | {"position_resampling": "first", "position_grid": (9, 3)},
        "9x3 positions are too few for 4x4 patches",
    ),
    (
        {"position_embedding": "axes", "position_grid": (5, 6)},
        "'axes' positions need as many rows as columns in position_grid",
    ),
    (
        {"position_resampling": "first"},
        "position_resampling = 'first' needs positions on a grid of their own",
    ),
    (
        {"rope": "axial", "head_dim": 12, "rope_by_axis": True},
        "rope_by_axis needs rope_half",
    ),
    ({"merge_size": 2}, "merge_size needs a model without class token and registers"),
    *(
        (PATCHES | sizes, MERGING)
        for sizes in (
            {"merge_mlp_dim": 9, "merge_dim": 7},
            {"merge_size": 2, "merge_mlp_dim": 9},
            {"merge_size": 2, "merge_dim": 7},
        )
    ),
    (
        PATCHES | {"merge_size": 2, "merge_mlp_dim": 9, "merge_dim": 30, "merge_standard": True},
        "merge_standard is of patches that are merged by their mean",
    ),
    *(
        (
            PATCHES | {"merge_size": 3, "merge_padding": True} | mlp,
            "4x4 patches are no whole squares of 3 by 3",
        )
        for mlp in ({}, {"merge_mlp_dim": 9, "merge_dim": 7, "merge_padding": False})
    ),
    (
        PATCHES | {"merge_size": 2, "merge_mlp_dim": 9, "merge_dim": 7, "fc_norm": True},
        "fc_norm and attention pooling read embed_dim channels, not merge_dim",
    ),
    ({"fc_norm": True, "bare_fc_norm": True}, "bare_fc_norm excludes fc_norm"),
    ({"clipped_linears": True}, "clipped_linears need kv_heads"),
    ({"branches": 2, "block_order": "sandwich"}, ORDER),
    ({"rope": "axial"}, "a rotary embedding needs head_dim divisible by 4, not 10"),
    ({"rope_periods": True}, "rope_periods need rope = 'dinov3'"),
    ({"rope_reference": (16,)}, "rope_reference must be rows and columns, or nothing"),
    (
        {"position_embedding": "sincos2d"},
        "sincos2d positions need embed_dim divisible by 4, and 8 at least, not 30",
    ),
    (
        STEM | {"patch_size": (1, 1), "stem_width": 33},
        "the stem's 32 groups do not divide stem_width 33",
    ),
    (
        STEM | {"patch_size": (1, 1), "stem_style": "resnet_d", "stem_width": 33},
        "the stem's first convolutions halve stem_width 33",
    ),
    (
        STEM | {"patch_size": (1, 1), "stem_style": "mobileclip", "stem_depths": (1,)},
        "stem_style = 'mobileclip' has no stages: stem_depths must be empty",
    ),
    ({"norm": "rms"}, "norm = 'rms' has no bias: norm_bias must be false"),
    ({"kv_heads": (1, 3)}, "kv_heads has 2 numbers for 11 blocks"),
    ({"kv_heads": (2,) * 11}, "kv_heads must divide num_heads = 3"),
    ({"kv_heads": (0,) * 11}, "kv_heads must divide num_heads = 3"),
    (
        {"attention_proj": False, "head_dim": 11},
        "without an output projection, 3 heads of 11 must make up embed_dim 30",
    ),
    *(
        ({"branches": 2, name: True}, ONE_BRANCH.format(name))
        for name in ("qk_norm", "whole_qk_norm", "attention_norm", "gated_mlp", "mlp_norm")
    ),
    ({"branches": 2, "kv_heads": (1,) * 11}, ONE_BRANCH.format("kv_heads")),
    ({"branches": 2, "mlp_layer_scale": False}, ONE_BRANCH.format("mlp_layer_scale = False")),
    ({"branches": 2, "block_order": "post"}, ORDER),
    ({"branches": 2, "relative_positions": "block"}, ORDER),
    *(
        (PARALLEL | {name: True}, IN_PARALLEL.format(name))
        for name in ("whole_qk_norm", "attention_norm", "gated_mlp", "mlp_norm")
    ),
    (PARALLEL | {"kv_heads": (1,) * 11}, IN_PARALLEL.format("kv_heads")),
    *(
        (PARALLEL | {name: False}, WHOLE_PARALLEL)
        for name in ("attention_proj", "mlp_bias", "mlp_layer_scale")
    ),
    ({"differential": True, "kv_heads": (1,) * 11}, APART.format("kv_heads")),
    ({"differential": True, "qk_norm": True}, APART.format("qk_norm")),
    ({"differential": True, "whole_qk_norm": True}, APART.format("whole_qk_norm")),
    ({"whole_qk_norm": True, "qk_norm": True}, "whole_qk_norm excludes qk_norm and kv_heads"),
    ({"whole_qk_norm": True, "kv_heads": (1,) * 11}, "whole_qk_norm excludes qk_norm and kv_heads"),
    ({"differential": True, "branches": 2}, APART.format("branches")),
    ({"differential": True, "rope": "axial", "head_dim": 12}, APART.format("rope")),
    ({"differential": True, "head_dim": 11}, "differential attention halves head_dim 11"),
    ({"class_token": False}, "pooling = 'token' needs a class token"),
    (
        {"pooling": "token_avg", "fc_norm": True},
        "pooling = 'token_avg' excludes fc_norm and representation_size",
    ),
    ({"dist_head": True}, "dist_head needs a distillation token and pooling = 'token'"),
    (
        {"pooling": "map", "pool_heads": 4},
        "attention pooling needs embed_dim 30 divisible by its 4 heads",
    ),
]


@pytest.mark.parametrize(("changes", "problem"), [*IMPOSSIBLE, *TOGETHER])
def test_error_one_sentence_for_each(changes, problem):
    with pytest.raises(ConflictingFact) as error:
        small_config(**PLAIN | changes)
    assert str(error.value) == (
        f"error: conflicting-fact\n  These facts contradict each other.\n  {problem}"
    )


def test_error_all_of_a_kind_are_told_at_once():
    with pytest.raises(ConflictingFact) as error:
        small_config(**PLAIN | {"depth": 0, "mlp_dim": -1, "patch_size": (0, 0), "dist_head": True})
    assert error.value.details == (
        "depth = 0 must be at least 1",
        "mlp_dim = -1 must be at least 1",
        "patch_size 0x0 must be at least 1x1",
    )
    with pytest.raises(ConflictingFact) as error:
        small_config(**PLAIN | {"dist_head": True, "rope_periods": True})
    assert error.value.details == (
        "rope_periods need rope = 'dinov3'",
        "dist_head needs a distillation token and pooling = 'token'",
    )


@pytest.mark.parametrize(
    "changes", [{}, RMS, PARALLEL, {"branches": 2}, {"differential": True}, {"pooling": "map"}]
)
def test_what_is_no_contradiction(changes):
    assert small_config(**PLAIN | changes).depth == 11
