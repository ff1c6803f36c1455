"""Each rule of resampling is its project's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

from tests.packages import timm, torchvision, transformers, vit_pytorch
from vitconvert.config.buckets import buckets
from vitconvert.config.vocabularies import RELATIVE_RESAMPLINGS, RESAMPLINGS
from vitconvert.errors import ShapeMismatch, UsageError
from vitconvert.model.positions import (
    sincos1d_positions,
    sincos2d_mae_positions,
    sincos2d_positions,
)
from vitconvert.model.relative_positions import relative_position_bias, relative_position_index
from vitconvert.model.resampling import (
    INTERPOLATION,
    resample_patch_kernel,
    resample_positions,
    resample_relative_positions,
)

GRIDS = [((4, 4), (7, 5)), ((7, 5), (4, 4)), ((5, 3), (5, 8)), ((6, 6), (3, 3)), ((3, 4), (1, 2))]


def test_every_rule_of_the_config_is_known():
    assert tuple(INTERPOLATION) == RESAMPLINGS


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_bicubic_antialias_is_timms(old, new, prefix):
    table = _table(old, prefix)
    wanted = timm.layers.resample_abs_pos_embed(
        table, list(new), list(old), num_prefix_tokens=prefix
    )
    assert torch.equal(_resample(table, old, new, "bicubic_antialias", prefix), wanted)


@pytest.mark.parametrize(("side", "new"), [(4, (7, 5)), (7, (4, 4)), (5, (5, 8))])
def test_bicubic_is_huggingfaces(side, new):
    table = _table((side, side), 1)
    embeddings = SimpleNamespace(position_embeddings=table, patch_size=8)
    tokens = torch.empty(1, 1 + new[0] * new[1], table.shape[-1])
    wanted = transformers.models.vit.modeling_vit.ViTEmbeddings.interpolate_pos_encoding(
        embeddings, tokens, new[0] * 8, new[1] * 8
    )
    assert torch.equal(_resample(table, (side, side), new, "bicubic"), wanted)


@torch.no_grad()
def test_bucketed_is_idefics_2s():
    of_idefics = transformers.models.idefics2.modeling_idefics2.Idefics2VisionEmbeddings
    sizes = {"image_size", "patch_size", "hidden_size", "num_channels"}
    moved = []
    for side in (*range(1, 80), 98, 113, 128):
        embeddings = of_idefics(SimpleNamespace(**dict.fromkeys(sizes, 1) | {"image_size": side}))
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        table = embeddings.position_embedding.weight[None]
        for new in ((side, 2 * side), (7, 55), (70, 25), (side + 1, 33), (37, 5 * side - 1)):
            wanted = embeddings(torch.zeros(1, 1, *new), torch.ones(1, *new, dtype=torch.bool))
            assert torch.equal(_resample(table, (side, side), new, "bucketed", prefix=0), wanted)
        own = torch.ones(1, side, side)
        moved += [side] * (not torch.equal(embeddings(own[None], own.bool()), table))
        assert (buckets(side, side) != tuple(range(side))) == (side in moved)
    assert {19, 25, 50} < {*moved} and not {*moved} & {24, 26, 27, 32, 70}  # of published models


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4)])
def test_bicubic_align_corners_is_torchvisions(old, new):
    table = _table((old, old), 1)
    state = torchvision.models.vision_transformer.interpolate_embeddings(
        new * 8, 8, {"encoder.pos_embedding": table}
    )
    found = _resample(table, (old, old), (new, new), "bicubic_align_corners")
    assert torch.equal(found, state["encoder.pos_embedding"])


@pytest.mark.parametrize(("side", "new"), [(4, (7, 5)), (7, (4, 4)), (37, (16, 16)), (14, (14, 9))])
def test_bicubic_offset_is_metas(side, new):
    # facebookresearch/dino and dinov2, `interpolate_pos_encoding`: as if new were larger by 0.1.
    table = _table((side, side), 1)
    grid = table[:, 1:].reshape(1, side, side, 6).permute(0, 3, 1, 2)
    factors = ((new[0] + 0.1) / side, (new[1] + 0.1) / side)
    grid = F.interpolate(grid, scale_factor=factors, mode="bicubic")
    assert grid.shape[2:] == new
    wanted = torch.cat((table[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)), dim=1)
    found = _resample(table, (side, side), new, "bicubic_offset")
    assert torch.equal(found, wanted)
    assert not torch.allclose(found, _resample(table, (side, side), new, "bicubic"), atol=1e-4)


# timm's own interpolation warns.
@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")
@pytest.mark.parametrize(("old", "new"), [*GRIDS, ((14, 14), (24, 24)), ((1, 3), (2, 5))])
def test_relative_positions_are_spread_as_timms(old, new):
    table = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1) + 3, 5)
    shape = ((2 * new[0] - 1) * (2 * new[1] - 1) + 3, 5)
    wanted = timm.layers.resize_rel_pos_bias_table(table, new, shape, old)
    found = resample_relative_positions(table, old_grid=old, new_grid=new, rule="geometric")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[-3:], table[-3:])


@pytest.mark.parametrize(("side", "new"), [(4, (7, 5)), (7, (4, 4)), (14, (14, 9)), (1, (2, 3))])
def test_relative_positions_are_resized_as_huggingfaces(side, new):
    config = transformers.BeitConfig(
        image_size=8 * side, patch_size=8, hidden_size=15, num_attention_heads=5
    )
    theirs = transformers.models.beit.modeling_beit.BeitRelativePositionBias(config)
    table = torch.nn.init.normal_(theirs.relative_position_bias_table)
    found = resample_relative_positions(table, old_grid=(side, side), new_grid=new, rule="bilinear")
    bias = relative_position_bias(found, relative_position_index(new))
    assert torch.equal(bias, theirs(new, True, dim_size=new[0] * new[1] + 1))


@pytest.mark.parametrize("rule", RELATIVE_RESAMPLINGS)
def test_relative_positions_keep_their_dtype_and_on_the_same_grid_themselves(rule):
    table = torch.randn(5 * 3 + 3, 2).half()
    same = resample_relative_positions(table, old_grid=(3, 2), new_grid=(3, 2), rule=rule)
    other = resample_relative_positions(table, old_grid=(3, 2), new_grid=(2, 4), rule=rule)
    assert same is table
    assert other.dtype == torch.float16
    assert other.shape == (3 * 7 + 3, 2)


def test_wrong_relative_table_is_told():
    with pytest.raises(ShapeMismatch) as caught:
        resample_relative_positions(
            torch.zeros(17, 2), old_grid=(3, 2), new_grid=(4, 4), rule="bilinear"
        )
    assert str(caught.value) == (
        "error: shape-mismatch\n"
        "  The table of relative positions does not fit the grid it should come from.\n"
        "  found   17 2\n"
        "  wanted  18 head\n"
        "  18 = 5*3 + 3: offsets of rows times offsets of columns, and the class token's."
    )


@pytest.mark.parametrize(
    ("old", "new"), [((16, 16), (14, 14)), ((8, 8), (12, 9)), ((5, 7), (10, 3))]
)
def test_patch_kernel_is_fitted_as_timms(old, new):
    kernel = torch.randn(6, 3, *old)
    wanted = timm.layers.resample_patch_embed(kernel, list(new))
    found = resample_patch_kernel(kernel, patch_size=new)
    assert torch.equal(found, wanted)
    assert resample_patch_kernel(kernel.bfloat16(), patch_size=new).dtype == torch.bfloat16
    assert resample_patch_kernel(kernel, patch_size=old) is kernel


def test_kernel_for_larger_patches_gives_the_same_on_larger_images():
    kernel, patch = torch.randn(6, 3, 8, 8), torch.randn(1, 3, 8, 8)
    larger = F.interpolate(patch, size=(12, 9), mode="bicubic", antialias=True)
    found = F.conv2d(larger, resample_patch_kernel(kernel, patch_size=(12, 9)))
    torch.testing.assert_close(found, F.conv2d(patch, kernel), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_bilinear_align_corners_is_googles_zoom(old, new):
    table = _table(old, 1)
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    grid = scipy.ndimage.zoom(table[0, 1:].reshape(*old, -1).numpy(), zoom, order=1)
    wanted = np.concatenate([table[0, :1], grid.reshape(new[0] * new[1], -1)])[None]
    found = _resample(table, old, new, "bilinear_align_corners")
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rule", RESAMPLINGS)
def test_dtype_is_kept_and_numbers_are_made_in_float32(rule):
    table = _table((4, 4), 2).bfloat16()
    found = _resample(table, (4, 4), (6, 3), rule, prefix=2)
    wanted = _resample(table.float(), (4, 4), (6, 3), rule, prefix=2).bfloat16()
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("rule", RESAMPLINGS)
def test_same_grid_changes_nothing(rule):
    table = _table((4, 3), 1)
    assert _resample(table, (4, 3), (4, 3), rule) is table


@pytest.mark.parametrize("rule", RESAMPLINGS)
def test_grid_of_the_same_count_is_still_resampled(rule):
    table = _table((4, 3), 1)
    assert not torch.equal(_resample(table, (4, 3), (3, 4), rule), table)


def test_wrong_table_is_told():
    with pytest.raises(ShapeMismatch) as caught:
        _resample(torch.zeros(1, 17, 6), (4, 3), (3, 4), "bicubic")
    assert str(caught.value) == (
        "error: shape-mismatch\n"
        "  The position table does not fit the grid it should come from.\n"
        "  found   1 17 6\n"
        "  wanted  1 13 width\n"
        "  13 = 1 + 4*3: prefix tokens, rows times columns."
    )


def test_unknown_rule_is_told():
    with pytest.raises(UsageError) as caught:
        _resample(_table((2, 2), 1), (2, 2), (3, 3), "nearest")
    assert str(caught.value) == (
        "error: usage\n"
        "  There is no rule 'nearest' for resampling positions.\n"
        "  known  bicubic_antialias, bicubic, bicubic_align_corners, bicubic_offset, "
        "bilinear, bilinear_antialias, bilinear_align_corners"
    )
    table = torch.zeros(12, 2)
    with pytest.raises(UsageError) as caught:
        resample_relative_positions(table, old_grid=(2, 2), new_grid=(3, 3), rule="bicubic")
    assert str(caught.value) == (
        "error: usage\n"
        "  There is no rule 'bicubic' for resampling positions.\n"
        "  known  geometric, bilinear"
    )


@pytest.mark.parametrize(("grid", "dim"), [((4, 3), 8), ((5, 7), 32), ((1, 1), 12)])
def test_fixed_positions_are_lucidrains(grid, dim):
    wanted = vit_pytorch.simple_vit.posemb_sincos_2d(h=grid[0], w=grid[1], dim=dim)
    assert torch.equal(sincos2d_positions(grid, dim), wanted)


@pytest.mark.parametrize(("grid", "dim"), [((4, 3), 8), ((5, 7), 32), ((1, 1), 12)])
def test_fixed_positions_of_mae_are_transformers(grid, dim):
    wanted = transformers.models.aimv2.modeling_aimv2.build_2d_sinusoidal_position_embedding(
        *grid, dim
    )
    along, across = wanted.chunk(2, dim=1)
    assert torch.equal(sincos2d_mae_positions(grid, dim), torch.cat((across, along), dim=1))


@pytest.mark.parametrize(("count", "dim"), [(17, 12), (197, 36), (1, 2)])
def test_a_sinusoid_of_a_sequence_is_that_of_transformers(count, dim):
    """Of Time Series Transformer: the sines first, then the cosines; ours are in turn."""
    like = transformers.models.time_series_transformer.modeling_time_series_transformer
    wanted = like.TimeSeriesSinusoidalPositionalEmbedding(count, dim).create_weight()
    found = sincos1d_positions(count, dim)
    assert torch.equal(torch.cat((found[:, 0::2], found[:, 1::2]), dim=1), wanted)


def _table(grid, prefix):
    return torch.randn(1, prefix + grid[0] * grid[1], 6)


def _resample(table, old, new, rule, prefix=1):
    return resample_positions(table, old_grid=old, new_grid=new, prefix=prefix, rule=rule)
