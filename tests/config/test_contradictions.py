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
NECK = UNNORMED | {"neck_dim": 8}
ORDER = "another block_order and relative positions per block need branches = 1"
STEM = {"stem": True}
PATCHES = {"class_token": False, "pooling": "avg"}
CLIP = PATCHES | {"frames": 4, "tubelet": 2}
GRID = {"position_embedding": "grid", "position_grid": (5, 5)}

IMPOSSIBLE = {
    "tubelet needs frames": [{"tubelet": 2}],
    "frames = -1 must be at least 0": [{"frames": -1}],
    "tubelet = 0 must be at least 1": [{"frames": 4, "tubelet": 0}],
    "frames = 65537 must be at most 65536": [{"frames": 2**16 + 1}],
    "fc_norm_eps = 2.0 must be from 1e-30 to 1": [{"fc_norm_eps": 2.0}],
    "a clip of 3 frames is shorter than a patch of it": [{"frames": 3, "tubelet": 4}],
    "image_size 800x800 of 400 frames makes 2660000 patches; 262144 at most": [
        CLIP | {"frames": 400, "image_size": (800, 800)}
    ],
    **{
        f"clips exclude {thing}": [CLIP | having]
        for thing, having in {
            "a stem": STEM | {"image_size": (256, 256)},
            "patch_stride and patch_padding": {"patch_stride": (4, 3)},
            "a norm of pixels": {"patch_pre_norm": True},
            "centred_pixels": {"centred_pixels": True},
            "sincos2d positions": {"position_embedding": "sincos2d", "embed_dim": 32},
            "positions on a grid of their own": GRID,
            "relative positions": {"relative_positions": "block"},
            "a rotary embedding of two axes": {"rope": "axial", "head_dim": 12},
            "windows": {"window_size": 3},
            "merge_size": {"merge_size": 2},
            "neck_dim": {"neck_dim": 8, "final_norm": False},
        }.items()
    },
    "norm = 'batch' is not one of layer, rms": [{"norm": "batch"}],
    "num_heads = 0 must be at least 1": [{"num_heads": 0, "pooling": "map"}],
    "branches = 0 must be at least 1": [{"branches": 0}],
    "num_registers = -1 must be at least 0": [{"num_registers": -1}],
    "pool_heads = -2 must be at least 0": [{"pool_heads": -2, "pooling": "map"}],
    "patch_size 0x6 must be at least 1x1": [{"patch_size": (0, 6)}],
    "norm_eps = 0.0 must be from 1e-30 to 1": [{"norm_eps": 0.0}],
    "window_size = -1 must be at least 0": [{"window_size": -1}],
    "final_norm_eps = 0.0 must be from 1e-30 to 1": [{"final_norm_eps": 0.0}],
    "norm_eps = nan must be from 1e-30 to 1": [{"norm_eps": float("nan")}],
    "image_size 4x24 is too small for a patch of 8x6 (stem stride 1)": [{"image_size": (4, 24)}],
    "image_size 32x24 is too small for a patch of 8x6 (stem stride 8)": [
        STEM | {"stem_depths": (1, 2)}
    ],
    "relative positions need no prefix tokens but a class token": [
        {"relative_positions": "block", "num_registers": 2}
    ],
    "relative_mlp_dim is of relative positions that an MLP makes": [
        {"relative_mlp_dim": 5},
        {"relative_positions": "shared_mlp"},
    ],
    "windows and decomposed relative positions exclude prefix tokens": [{"window_size": 3}],
    "windows and decomposed relative positions exclude attention and MLP in parallel": [
        WINDOWED | {"block_order": "parallel"}
    ],
    "windows and decomposed relative positions exclude a rotary embedding": [
        WINDOWED | {"rope": "axial", "head_dim": 12}
    ],
    "windows and decomposed relative positions exclude mixed rotary embeddings": [
        WINDOWED | {"rope": "mixed", "head_dim": 12, "window_padding": False}
    ],
    "decomposed relative positions need window_padding": [
        WINDOWED | {"relative_positions": "decomposed", "window_padding": False}
    ],
    "windows and decomposed relative positions exclude other relative positions": [
        WINDOWED | {"relative_positions": "block"}
    ],
    "windows and decomposed relative positions exclude differential attention": [
        WINDOWED | {"differential": True}
    ],
    "global_blocks must be numbers of blocks from 0, in order": [
        WINDOWED | {"global_blocks": (3, 1)}
    ],
    "neck_dim excludes norms after the blocks": [NECK | {"neck_dim": 8, "final_norm": True}],
    "neck_dim excludes attention pooling": [NECK | {"neck_dim": 8, "pooling": "map"}],
    "9x3 positions are too few for 4x4 patches": [
        GRID | {"position_resampling": "first", "position_grid": (9, 3)}
    ],
    "'axes' positions need as many rows as columns in position_grid": [
        {"position_embedding": "axes", "position_grid": (5, 6)}
    ],
    "rope_interleaved needs rope = 'axial'": [
        {"rope": "dinov3", "head_dim": 12, "rope_interleaved": True}
    ],
    "rope_alternating needs rope = 'axial', and excludes rope_by_axis": [
        {"rope": "dinov3", "head_dim": 12, "rope_alternating": True},
        {"rope": "axial", "head_dim": 12, "rope_half": True, "rope_by_axis": True}
        | {"rope_alternating": True},
    ],
    "rope_in_windows needs rope = 'axial', windows and no rope_reference": [
        {"rope": "axial", "head_dim": 12, "rope_in_windows": True}
    ],
    "position_resampling = 'tile' needs positions on a grid of their own": [
        {"position_resampling": "tile"}
    ],
    "rope_class needs rope = 'axial' and only the class token before patches": [
        {"rope": "mixed", "head_dim": 12, "rope_class": True},
        {"rope": "axial", "head_dim": 12, "rope_class": True, "num_registers": 2},
    ],
    "rope = 'vjepa2' excludes rope_half": [{"rope": "vjepa2", "head_dim": 12, "rope_half": True}],
    "rope = 'vjepa2_1' spreads rows and columns: it needs two of each at least": [
        {"rope": "vjepa2_1", "image_size": (8, 16), "patch_size": (8, 8)}
    ],
    "patch_padding = 3 makes room for more patches": [{"patch_padding": 3}],
    "rope_by_axis needs rope_half": [{"rope": "axial", "head_dim": 12, "rope_by_axis": True}],
    "patch_stride must be pixels down and across, or nothing": [
        {"patch_stride": (4,)},
        {"patch_stride": (4, 0)},
    ],
    "patch_stride excludes a stem": [STEM | {"patch_stride": (4, 4)}],
    "patch_stride excludes a norm of pixels": [{"patch_stride": (4, 4), "patch_pre_norm": True}],
    "patch_stride excludes positions on a grid of their own": [GRID | {"patch_stride": (4, 4)}],
    "patch_stride excludes windows": [WINDOWED | {"patch_stride": (4, 4)}],
    "pooling = 'prefix_avg' needs tokens in front of the patches": [
        {"pooling": "prefix_avg", "class_token": False}
    ],
    "merge_size needs a model without class token and registers": [{"merge_size": 2}],
    "merge_gated_dim needs merge_mlp_dim": [PATCHES | {"merge_size": 2, "merge_gated_dim": 7}],
    "merge_standard is of patches that are merged by their mean": [
        PATCHES | {"merge_size": 2, "merge_mlp_dim": 9, "merge_dim": 30, "merge_standard": True}
    ],
    "fc_norm and attention pooling read embed_dim channels, not merge_dim": [
        PATCHES | {"merge_size": 2, "merge_mlp_dim": 9, "merge_dim": 7, "fc_norm": True}
    ],
    "bare_fc_norm excludes fc_norm": [{"fc_norm": True, "bare_fc_norm": True}],
    "clipped_linears need kv_heads": [{"clipped_linears": True}],
    ORDER: [
        {"branches": 2, "block_order": "sandwich"},
        {"branches": 2, "block_order": "post_norm"},
        {"branches": 2, "block_order": "res_post_norm"},
        {"branches": 2, "relative_positions": "block"},
    ],
    "a rotary embedding needs head_dim divisible by 4, not 10": [{"rope": "axial"}],
    "rope_periods need rope = 'dinov3'": [{"rope_periods": True}],
    "rope_reference must be rows and columns, or nothing": [{"rope_reference": (16,)}],
    "sincos2d positions need embed_dim divisible by 4, and 8 at least, not 30": [
        {"position_embedding": "sincos2d"}
    ],
    "sincos1d positions need an even embed_dim, not 33": [
        {"position_embedding": "sincos1d", "embed_dim": 33, "head_dim": 33, "num_heads": 1}
    ],
    "the stem's 32 groups do not divide stem_width 33": [
        STEM | {"patch_size": (1, 1), "stem_width": 33}
    ],
    "the stem's first convolutions halve stem_width 33": [
        STEM | {"patch_size": (1, 1), "stem_style": "resnet_d", "stem_width": 33}
    ],
    "stem_style = 'mobileclip' has no stages: stem_depths must be empty": [
        STEM | {"patch_size": (1, 1), "stem_style": "mobileclip", "stem_depths": (1,)}
    ],
    "norm = 'rms' has no bias: norm_bias must be false": [{"norm": "rms"}],
    "kv_heads has 2 numbers for 11 blocks": [{"kv_heads": (1, 3)}],
    "kv_heads must divide num_heads = 3": [{"kv_heads": (2,) * 11}, {"kv_heads": (0,) * 11}],
    "without an output projection, 3 heads of 11 must make up embed_dim 30": [
        {"attention_proj": False, "head_dim": 11}
    ],
    ONE_BRANCH.format("kv_heads"): [{"branches": 2, "kv_heads": (1,) * 11}],
    ONE_BRANCH.format("mlp_layer_scale = False"): [{"branches": 2, "mlp_layer_scale": False}],
    IN_PARALLEL.format("kv_heads"): [PARALLEL | {"kv_heads": (1,) * 11}],
    APART.format("kv_heads"): [{"differential": True, "kv_heads": (1,) * 11}],
    APART.format("qk_norm"): [{"differential": True, "qk_norm": True}],
    APART.format("whole_qk_norm"): [{"differential": True, "whole_qk_norm": True}],
    "whole_qk_norm excludes qk_norm and kv_heads": [
        {"whole_qk_norm": True, "qk_norm": True},
        {"whole_qk_norm": True, "kv_heads": (1,) * 11},
    ],
    APART.format("branches"): [{"differential": True, "branches": 2}],
    APART.format("rope"): [{"differential": True, "rope": "axial", "head_dim": 12}],
    "differential attention halves head_dim 11": [{"differential": True, "head_dim": 11}],
    "pooling = 'token' needs a class token": [{"class_token": False}],
    "pooling = 'token_avg' excludes fc_norm and representation_size": [
        {"pooling": "token_avg", "fc_norm": True}
    ],
    "dist_head needs a distillation token and pooling = 'token'": [{"dist_head": True}],
    "attention pooling needs embed_dim 30 divisible by its 4 heads": [
        {"pooling": "map", "pool_heads": 4}
    ],
    "neck_dim excludes prefix tokens": [NECK | {"class_token": True}],
    "neck_dim excludes representation_size": [NECK | {"representation_size": 5}],
    "neck_dim excludes merge_size": [NECK | {"merge_size": 2}],
    "position_grid is only for positions on a grid of their own": [
        {"position_grid": (5, 5)},
        *(GRID | {"position_grid": sides} for sides in ((), (5,), (5, 0))),
    ],
    "merge_mlp_dim and merge_dim go together, and need merge_size": [
        PATCHES | {"merge_mlp_dim": 9, "merge_dim": 7},
        *(PATCHES | {"merge_size": 2, name: 7} for name in ("merge_mlp_dim", "merge_dim")),
    ],
    "4x4 patches do not divide into squares of 3 by 3": [
        PATCHES | {"merge_size": 3, "merge_padding": True},
        PATCHES | {"merge_size": 3, "merge_mlp_dim": 9, "merge_dim": 7, "merge_padding": False},
    ],
    WHOLE_PARALLEL: [
        PARALLEL | {name: False} for name in ("attention_proj", "mlp_bias", "mlp_layer_scale")
    ],
    **{
        ONE_BRANCH.format(name): [{"branches": 2, name: True}]
        for name in ("qk_norm", "whole_qk_norm", "attention_norm", "gated_mlp", "mlp_norm")
    },
    **{
        IN_PARALLEL.format(name): [PARALLEL | {name: True}]
        for name in ("whole_qk_norm", "attention_norm", "gated_mlp", "mlp_norm")
    },
}
CASES = [(changes, problem) for problem, several in IMPOSSIBLE.items() for changes in several]


@pytest.mark.parametrize(("changes", "problem"), CASES)
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
