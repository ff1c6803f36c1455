"""A plan says what a conversion then does, and reads no weights."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import vitconvert
from tests.conversion.test_stream import simple
from tests.facts.test_pairs import told
from tests.spelling import google_arrays
from vitconvert.conversion import conversion_plan, stream
from vitconvert.conversion.search import Fit
from vitconvert.conversion.steps import STEPS
from vitconvert.facts.materialise import materialise
from vitconvert.formats import open_container, weights_in, write_safetensors
from vitconvert.formats.container import Container
from vitconvert.model.rope import dinov3_periods
from vitconvert.programs.target import Target

ARRAYS = {"depth": 11, "heads": 3, "width": 36, "size": 32}


@pytest.fixture
def google(tmp_path):
    """Google's file."""
    np.savez(tmp_path / "vit.npz", **google_arrays(**ARRAYS))
    return tmp_path / "vit.npz"


@pytest.fixture
def no_weights(monkeypatch):
    """Whoever reads weights fails."""

    def read(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr(Container, "read", read)
    monkeypatch.setattr(stream, "chunks_of", read)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"to": "big_vision_scan"},
        {"to": "torchvision", "overrides": {"activation": "gelu"}},
        {"dtype": torch.bfloat16, "image_size": (40, 24)},
        {"num_classes": 3, "in_channels": 1},
        {"patch_size": 4, "classes": [4, 1]},
        {"max_shard_size": "40KB", "to": "hf"},
        {"max_shard_size": "40KB", "to": "hf_flax"},
        {"to": "keras_vit", "overrides": {"activation": "gelu"}},
    ],
    ids=[
        *("own", "stacked", "other target", "changed", "ends", "patches"),
        *("shards", "shards of msgpack", "files"),
    ],
)
def test_the_conversion_does_what_the_plan_says(wish, google, tmp_path):
    plan = vitconvert.plan_conversion(google, **wish)
    done = vitconvert.convert(google, output=tmp_path / "out", verify=False, **wish)
    assert plan.target_dialect == done.target_dialect
    assert plan.config == done.config
    assert set(plan.files) == {path.name for path in (tmp_path / "out").iterdir()}
    with open_container(weights_in(tmp_path / "out")) as written:
        assert {t.assembly.target: t.info for t in plan.tensors} == written.manifest
    changes = [change.partition("; logits")[0] for change in done.ledger.changed]
    assert list(plan.ledger.changed) == changes
    assert plan.streamed == (not changes)


def test_steps_of_every_kind(google, no_weights):
    plan = vitconvert.plan_conversion(google, to="vit")
    steps = {tensor.assembly.target: tensor.steps for tensor in plan.tensors}
    assert plan.target_dialect == "timm"
    assert steps["blocks.10.norm1.bias"] == ("rename",)
    assert steps["blocks.10.mlp.fc1.weight"] == ("layout",)
    assert steps["blocks.10.attn.qkv.weight"] == ("layout", "structure")
    assert steps["patch_embed.proj.weight"] == ("layout",)
    assert plan.guards == ()


def test_bytes_in_ranges_and_others(google, no_weights):
    plan = vitconvert.plan_conversion(google)
    arrays = google_arrays(**ARRAYS)
    kernels = sum(a.nbytes for name, a in arrays.items() if name.endswith("kernel"))
    assert plan.nbytes == sum(array.nbytes for array in arrays.values())
    assert plan.rearranged == kernels
    assert plan.in_ranges == plan.nbytes - kernels
    assert plan.filled == 0


def test_changes_are_lossy_where_they_change_numbers(google, no_weights):
    plan = vitconvert.plan_conversion(google, image_size=(40, 24))
    lossy = [t.assembly.target for t in plan.tensors if "lossy" in t.steps]
    assert lossy == ["pos_embed"]
    position = next(t for t in plan.tensors if t.assembly.target == "pos_embed")
    assert position.info.shape == (1, 16, 36)
    assert plan.ledger.changed == (
        "positions resampled from 4x4 to 5x3 patches (bilinear_align_corners)",
    )
    assert not plan.streamed
    for dtype, step in ((torch.float16, "lossy"), (torch.float64, "step")):
        cast = vitconvert.plan_conversion(google, dtype=dtype)
        assert all(tensor.steps[-1] == step for tensor in cast.tensors)
    same = vitconvert.plan_conversion(google, dtype=torch.float32)
    assert not any({"lossy", "step"} & set(tensor.steps) for tensor in same.tensors)


@pytest.fixture
def beit(tmp_path, monkeypatch):
    """Dialects with and without a bias of the keys, one as a file and the other as the target."""
    config, canonical, tables = simple(layer_scale=True, relative_positions="block", pooling="avg")
    without = next(held for held in tables.values() if held[1].zeros)
    fused = tables["vit"]
    for name, tensor in canonical.items():
        if name.endswith("qkv.bias"):
            tensor.unflatten(0, (3, -1))[1] = 0.0

    def plan(*, keyless):
        (source, writing), (table, target) = (without, fused) if keyless else (fused, without)
        path = tmp_path / "model.safetensors"
        write_safetensors(path, materialise(writing, canonical.__getitem__))
        chosen = Target(table=table, plan=target, their_config={})
        fit = Fit(target=chosen, steps=(), passed_over={})
        monkeypatch.setattr(conversion_plan, "choose_target", lambda *_: fit)
        options = {"dialect": source.name, "overrides": told(config)}
        return vitconvert.plan_conversion(path, **options)

    return plan


def test_an_allowed_step_is_a_step(timm_directory, tmp_path):
    source = timm_directory(depth=2, embed_dim=36, num_heads=3, img_size=48, no_embed_class=True)
    wish = {"to": "hf_vit", "allow": ["zero-class-position"]}
    plan = vitconvert.plan_conversion(source, **wish)
    step = [tensor for tensor in plan.tensors if "step" in tensor.steps]
    assert [tensor.assembly.target for tensor in step] == ["vit.embeddings.position_embeddings"]
    assert step[0].info.shape == (1, 10, 36)
    done = vitconvert.convert(source, output=tmp_path / "out", verify=False, **wish)
    (said,) = done.ledger.changed
    assert said.startswith(plan.ledger.changed[0])
    with open_container(weights_in(tmp_path / "out")) as written:
        assert {t.assembly.target: t.info for t in plan.tensors} == written.manifest


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STEPS))
def test_a_step_alters_what_it_says(name):
    step = STEPS[name]
    pooled_first = name == "norm-before-pooling"
    grid = (
        {"position_embedding": "grid", "position_grid": (4, 5)} if name == "fit-positions" else {}
    )
    rope = {"rope": "dinov3", "rope_periods": True} if name == "compute-rope-periods" else {}
    config, canonical, _ = simple(
        **grid,
        **rope,
        no_embed_class=name == "zero-class-position",
        final_norm=not pooled_first,
        fc_norm=pooled_first,
        head_bias=name != "zero-head-bias",
        dist_token=name == "token-as-register",
        num_registers=int(name == "register-as-token"),
    )
    canonical = canonical | {key: torch.zeros_like(canonical[key]) for key in step.zero}
    if rope:
        canonical["rope.periods"] = dinov3_periods(config.head_dim // 4, config.rope_temperature)
    after = step.tensors(canonical, config)
    altered = {key for key, tensor in after.items() if tensor is not canonical.get(key)}
    said = {key.replace("{i}", str(i)) for key in step.alters for i in range(config.depth)}
    assert altered - {*step.zero} == said & set(after)
    assert not {*step.zero} & after.keys()


def test_what_has_to_be_zero_is_a_guard(beit, no_weights):
    plan = beit(keyless=False)
    assert plan.guards == tuple(f"blocks.{i}.attn.qkv.bias[qkv=1] is zero" for i in range(11))
    guarded = [tensor for tensor in plan.tensors if "guarded" in tensor.steps]
    assert len(guarded) == 22
    assert all("qkv.bias" in str(tensor.assembly) for tensor in guarded)
    assert plan.filled == 0


def test_zeros_are_filled_in(beit, no_weights):
    plan = beit(keyless=True)
    assert plan.guards == ()
    assert plan.filled == 11 * 12 * 4
    guarded = [t.assembly.target for t in plan.tensors if "guarded" in t.steps]
    assert guarded == [f"blocks.{i}.attn.qkv.bias" for i in range(11)]


def test_what_bytes_cannot_do_goes_through_memory(tmp_path, no_weights):
    np.savez_compressed(tmp_path / "vit.npz", **google_arrays(**ARRAYS))
    plan = vitconvert.plan_conversion(tmp_path / "vit.npz")
    assert not plan.streamed
    assert plan.nbytes == sum(array.nbytes for array in google_arrays(**ARRAYS).values())
    assert {tensor.in_ranges for tensor in plan.tensors} == {None}
    assert plan.to_dict()["streamed"] is False


def test_why_others_were_passed_over(google):
    plan = vitconvert.plan_conversion(google, to="hf")
    assert plan.target_dialect == "hf_vit"
    assert plan.passed_over["hf_deit"] == "dist_token is always True there, and False here"


def test_a_plan_imports_nothing_slow(google):
    code = (
        "import sys, vitconvert\n"
        f"vitconvert.plan_conversion({str(google)!r}, to='hf')\n"
        "slow = {'torch', 'numpy', 'timm', 'transformers', 'difflib'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
