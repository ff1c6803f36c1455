"""How far float16 and bfloat16 take a model, whose every number is random, from float64."""

import json
import math
import weakref

import pytest
import torch

import vitconvert
from tests.packages import timm
from vitconvert.parity import precision as precision_module
from vitconvert.preprocessing.sample_images import sampled_images

LOWER = ("bfloat16", "float16")


def measured(path, **options):
    report = vitconvert.verify(path, dtypes=("float32", *LOWER), **options)
    return report, {one.dtype: one for one in report.precision}


@pytest.mark.slow
def test_every_figure_is_that_of_the_models(timm_checkpoint):
    path = timm_checkpoint(depth=11)
    report, precision = measured(path, batch=3)
    assert report.ok
    found = vitconvert.load_checkpoint(path).preprocessing
    images = sampled_images((32, 24), 3, found, seed=0, batch=3)
    exact = vitconvert.load_model(path, dtype=torch.float64)
    for dtype in LOWER:
        model = vitconvert.load_model(path, dtype=getattr(torch, dtype))
        apart = dict.fromkeys(range(12), 0.0)
        for kind, x in images.items():
            with torch.no_grad():
                ours, theirs = model(x.to(model.head.weight.dtype)).double(), exact(x)
                half = model.hidden_states(x.to(model.head.weight.dtype))
                states = zip(half, exact.hidden_states(x), strict=True)
            (output,) = (c for c in report.comparisons if (c.dtype, c.images) == (dtype, kind))
            assert output.absolute == float((ours - theirs).abs().max())
            assert output.relative == output.absolute / float(theirs.abs().max())
            assert output.agreed == int((ours.argmax(-1) == theirs.argmax(-1)).sum())
            for i, (mine, right) in enumerate(states):
                relative = float((mine.double() - right).abs().max() / right.abs().max())
                apart[i] = max(apart[i], relative)
        layers = {d.layer: d.relative for d in report.layers if d.dtype == dtype}
        assert len(layers) == 2 * 11 + 5
        names = ["embedding", *(f"blocks.{i}.mlp" for i in range(11))]
        assert [layers[name] for name in names] == pytest.approx([*apart.values()], rel=1e-9)
        assert (precision[dtype].overflow, precision[dtype].weights) == ("", ())
    assert precision["float16"].limit == 65504


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "arguments"),
    [
        ("vit_tiny_patch16_224", {"num_classes": 0, "in_chans": 1}),
        ("vit_base_patch16_siglip_224", {"embed_dim": 48, "num_heads": 3}),
        ("vit_medium_patch16_reg4_gap_256", {"embed_dim": 48, "num_heads": 3}),
        ("vit_tiny_r_s16_p8_224", {"img_size": [64, 32], "patch_size": 1}),
    ],
    ids=["no head", "map", "registers", "hybrid"],
)
def test_every_kind_of_model(architecture, arguments, timm_checkpoint):
    report, precision = measured(timm_checkpoint(architecture, **arguments), batch=1)
    assert report.ok
    assert not any(one.problem or one.overflow for one in precision.values())
    half = [c for c in report.comparisons if c.dtype in LOWER]
    assert len(half) == 4
    assert all(0 < c.relative < 0.5 for c in half)


def test_overflow_is_told_with_its_layer(timm_checkpoint):
    def grow(model):
        model.blocks[4].mlp.fc2.weight *= 40_000
        model.head.weight[3, 5] = 70_000

    report, precision = measured(timm_checkpoint(change=grow, depth=11))
    assert report.ok, "lower precision is not judged"
    assert precision["bfloat16"].overflow == ""
    half = precision["float16"]
    assert (half.overflow, half.infinite > 0, half.nan) == ("blocks.4.mlp", True, 0)
    assert half.largest > 65504 and half.module
    assert half.weights == ("head.weight",)
    text = report.summary()
    assert "  overflow       float16: first in blocks.4.mlp (" in text
    assert "  weights        head.weight does not fit into float16" in text
    (output,) = (c for c in report.comparisons if (c.dtype, c.images) == ("float16", "noise"))
    assert (output.relative, output.agreed) == (math.inf, 0)
    answer = json.loads(report.to_json())
    assert answer["precision"][1]["overflow"] == "blocks.4.mlp"
    assert "<td>not judged</td>" in report.to_html()


def test_a_dtype_that_an_operation_lacks_is_named(timm_checkpoint, monkeypatch):
    build = precision_module.build_model

    def no_half(checkpoint, *, dtype):
        if dtype == torch.float16:
            raise NotImplementedError("'im2col' not implemented for 'Half'\nsomewhere")
        return build(checkpoint, dtype=dtype)

    monkeypatch.setattr(precision_module, "build_model", no_half)
    report, precision = measured(timm_checkpoint())
    assert (
        precision["float16"].problem == "NotImplementedError: 'im2col' not implemented for 'Half'"
    )
    assert {c.dtype for c in report.comparisons} == {"float32", "bfloat16"}
    assert "  not measured   float16: NotImplementedError" in report.summary()


def test_two_models_at_a_time(timm_checkpoint, monkeypatch):
    alive, most = weakref.WeakSet(), []
    build = precision_module.build_model

    def counted(*arguments, **options):
        model = build(*arguments, **options)
        alive.add(model)
        most.append(len(alive))
        return model

    monkeypatch.setattr(precision_module, "build_model", counted)
    measured(timm_checkpoint())
    assert (max(most), len(most)) == (2, 1 + 2 * 2)


def test_without_a_reference_it_is_still_measured(timm_checkpoint, monkeypatch):
    from vitconvert.programs import reference

    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    path = timm_checkpoint()
    monkeypatch.setattr(reference, "import_module", fail)
    report, precision = measured(path)
    assert not report.verified and not report.ok
    assert {c.dtype for c in report.comparisons} == set(LOWER) == set(precision)
    assert report.summary().startswith("not verified: timm is not installed")


def test_a_model_of_ones_own_is_not_measured(timm_checkpoint):
    model = timm.create_model("vit_tiny_patch16_224", img_size=(32, 24), patch_size=8, depth=3)
    with pytest.raises(vitconvert.VitConvertError, match="where a checkpoint is verified"):
        vitconvert.compare(model, against=timm_checkpoint(), dtypes=("float16",))


def test_the_audit_names_what_is_in_its_place():
    with pytest.raises(AttributeError, match=r"verify\(\.\.\., dtypes="):
        vitconvert.audit  # noqa: B018
