"""Every kind of ViT computes the same in other runtimes, for one image and for three."""

import pytest
import torch

from tests.model.test_families_equal_to_timm import FAMILIES, SMALL
from tests.sampling import sampled
from tests.small_models import randomise, small_config
from vitconvert.comparison import TOLERANCE
from vitconvert.config import ViTConfig
from vitconvert.model import FastViT, ViT
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.check import Expected, compare_exported
from vitconvert.runtimes.export import quiet
from vitconvert.runtimes.graph import Graph, Shape, traced

# Packed gates, attention pooling, mixed angles, parallel and differential blocks; tests/coverage
# has all families in every runtime, in their own width.
KINDS = (
    *("vit_giant_patch14_reg4_dinov2", "vit_pe_core_base_patch16_224"),
    *("vit_small_patch16_rope_mixed_ape_224", "vit_dpwee_patch16_reg1_gap_256"),
)
# Other parts of a model.
PARTS = {
    "windows": {"window_size": 3, "relative_positions": "decomposed", "neck_dim": 8}
    | {"class_token": False, "pooling": "avg", "final_norm": False},
    "positions resized": {"position_embedding": "grid", "position_grid": (5, 3)}
    | {"class_token": False, "pooling": "avg", "position_resampling": "bicubic_antialias"},
    "resnet": {"stem": True, "stem_depths": (1,), "stem_style": "timm", "patch_size": (1, 1)},
    "mobileclip": {"stem": True, "stem_style": "mobileclip", "patch_size": (1, 1)},
    "mae": {"position_embedding": "sincos2d_mae", "embed_dim": 48, "head_dim": 16},
    "pixels normed": {"patch_pre_norm": True, "patch_norm": True},
    "tokens": {"pooling": "none"},
    "positions of an MLP": {"relative_positions": "block_mlp", "relative_mlp_dim": 5},
    "overlapping": {"patch_stride": (5, 3), "dist_token": True, "pooling": "prefix_avg"},
    "token and mean": {"pooling": "token_avg", "activation": "quick_gelu"},
    "post-LN": {"block_order": "post_norm", "activation": "relu", "final_norm": False},
    "scaled after softmax": {"attention_scale": 1.0, "post_softmax_scale": 30**-0.5}
    | {"mlp_out_activation": True},
}


def config_of(kind):
    if kind in PARTS:
        return small_config(**(PARTS[kind] | {"depth": 1}))
    patch, fields = FAMILIES[kind]
    fields = fields | ({"kv_heads": (2,)} if "kv_heads" in fields else {})
    sizes = {"image_size": (4 * patch, 3 * patch), "patch_size": (patch, patch), "depth": 1}
    return ViTConfig(**(SMALL | sizes | fields))


def compared(config, to, folder, **shape):
    """How far the runtime is from the usual model, on noise and a photograph."""
    torch.manual_seed(6)
    model = randomise(ViT(config))
    fast = FastViT(config, device="meta")
    fast.load_state_dict(model.state_dict(), assign=True)
    runtime, path = RUNTIMES[to], folder / f"model{RUNTIMES[to].suffix}"
    for package in runtime.packages:
        pytest.importorskip(package)
    with quiet():
        runtime.write(traced(Graph(fast, Shape(**shape))), path, {})
        run = runtime.open(path, threads=1)
        return compare_exported(run, Expected(model, Shape(**shape)), None, tolerance=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *sampled(PARTS, 6)])
def test_onnx_runtime(kind, tmp_path):
    found = compared(config_of(kind), "onnx", tmp_path)
    assert [comparison.images for comparison in found] == [
        *("noise, 1 at once", "photograph, 1 at once"),
        *("noise, 3 at once", "photograph, 3 at once"),
    ]
    assert all(comparison.ok for comparison in found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "kind"),
    [
        ("openvino", "beit_base_patch16_224"),
        ("openvino", "positions resized"),
        ("onnx", "post-LN"),
        ("openvino", "post-LN"),
        ("openvino", "scaled after softmax"),
        ("pt2", "vit_base_patch16_sapiens2"),
        ("pt2", "post-LN"),
        ("pt2", "scaled after softmax"),
    ],
)
def test_other_runtimes(to, kind, tmp_path):
    assert all(found.ok for found in compared(config_of(kind), to, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("to", sampled(RUNTIMES, 3))
def test_tokens_of_a_deep_model(to, tmp_path):
    found = compared(small_config(depth=11), to, tmp_path, output="tokens", batch=2)
    assert [comparison.output for comparison in found] == ["tokens"] * 2
    assert all(comparison.ok for comparison in found)
