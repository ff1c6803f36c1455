"""How far each arithmetic is from float64, on models whose every number is random."""

import json
import math
import weakref

import pytest
import torch

import vitconvert
from tests.packages import timm
from vitconvert.errors import UsageError
from vitconvert.parity import audit as audit_module
from vitconvert.preprocessing.sample_images import sampled_images

RUNTIMES = ("compiled", "onnxruntime")
QUICK = ("bfloat16", "float16", "fast", *RUNTIMES)


@pytest.fixture
def saved(randomise, tmp_path):
    """A checkpoint of timm, after `change` was made to its weights."""

    def save(architecture="vit_tiny_patch16_224", *, change=None, **arguments):
        small = {"img_size": (32, 24), "patch_size": 8, "depth": 3, "num_classes": 7}
        model = randomise(timm.create_model(architecture, **(small | arguments)))
        if change:
            with torch.no_grad():
                change(model)
        arguments = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
        small["img_size"] = [32, 24]
        timm.models.save_for_hf(model, tmp_path / architecture, model_args=small | arguments)
        return tmp_path / architecture

    return save


def of(report, arithmetic):
    return {output.images: output for output in report.outputs if output.arithmetic == arithmetic}


def layers_of(report, arithmetic):
    return {layer.layer: layer for layer in report.layers if layer.arithmetic == arithmetic}


def images_of(checkpoint, batch):
    config = checkpoint.config
    found = checkpoint.preprocessing
    return sampled_images(config.image_size, config.in_channels, found, seed=0, batch=batch)


def test_every_figure_is_that_of_the_models(saved):
    path = saved(depth=11)
    report = vitconvert.audit(path, batch=3, without=("fast", *RUNTIMES))
    checkpoint = vitconvert.load_checkpoint(path)
    models = {
        name: vitconvert.load_model(path, dtype=getattr(torch, name))
        for name in ("float64", "float32", "bfloat16", "float16")
    }
    images = images_of(checkpoint, 3)
    with torch.no_grad():
        states = {
            (name, kind): [s.double() for s in (*m.hidden_states(x.to(d)), m(x.to(d)))]
            for name, m in models.items()
            for d in [m.head.weight.dtype]
            for kind, x in images.items()
        }
    for name in ("float32", "bfloat16", "float16"):
        apart, scale = [0.0] * 13, [0.0] * 13
        for kind in images:
            ours, exact = states[name, kind], states["float64", kind]
            output = of(report, name)[kind]
            assert output.absolute == float((ours[-1] - exact[-1]).abs().max())
            assert output.relative == output.absolute / float(exact[-1].abs().max())
            assert output.flips == int((ours[-1].argmax(-1) != exact[-1].argmax(-1)).sum())
            assert output.rows == 3
            for i in range(13):
                apart[i] = max(apart[i], float((ours[i] - exact[i]).abs().max()))
                scale[i] = max(scale[i], float(exact[i].abs().max()))
        layers = layers_of(report, name)
        assert (next(iter(layers)), [*layers][-1]) == ("patch_embed", "output")
        assert len(layers) == 2 * 11 + 5
        for i, layer in enumerate(["embedding", *(f"blocks.{b}.mlp" for b in range(11)), "output"]):
            assert layers[layer].largest == scale[i]
            assert layers[layer].relative == apart[i] / scale[i]
            assert layers[layer].finite
    # float16 has three bits more than bfloat16, and float32 thirteen more than that.
    float32, bfloat16, float16 = (
        of(report, name)["noise"].relative for name in ("float32", "bfloat16", "float16")
    )
    assert float32 < float16 / 100 < bfloat16 / 100
    assert list(report.skipped) == ["fast", *RUNTIMES]


@pytest.mark.parametrize(
    ("architecture", "arguments"),
    [
        ("vit_tiny_patch16_224", {"num_classes": 0}),
        ("vit_tiny_patch16_224", {"in_chans": 1}),
        ("vit_tiny_patch16_224", {"in_chans": 4, "global_pool": "avg"}),
        ("vit_base_patch16_siglip_224", {"embed_dim": 48, "num_heads": 3}),
        ("vit_medium_patch16_reg4_gap_256", {"embed_dim": 48, "num_heads": 3}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_tiny_r_s16_p8_224", {"img_size": (64, 32), "patch_size": 1}),
        ("vit_base_patch16_plus_240", {"embed_dim": 48, "num_heads": 3}),
    ],
    ids=["no head", "1 channel", "4 channels", "map", "registers", "distilled", "hybrid", "plus"],
)
def test_every_kind_of_model(architecture, arguments, saved):
    report = vitconvert.audit(saved(architecture, **arguments), batch=2, without=RUNTIMES)
    assert [*report.limits] == ["float32", "bfloat16", "float16", "fast"]
    assert report.ok
    for output in report.outputs:
        bound = {"bfloat16": 0.5, "float16": 0.1}.get(output.arithmetic, 1e-4)
        assert 0 < output.relative < bound, output
        assert (output.flips is None) == (arguments.get("num_classes") == 0)
    layered = {name: list(layers_of(report, name)) for name in report.limits}
    assert layered["fast"] == layered["float32"]
    assert {"patch_embed", "embedding", "blocks.2.mlp", "output"} <= set(layered["fast"])
    fast = layers_of(report, "fast")
    assert all(layer.relative < 1e-4 and layer.finite for layer in fast.values())


def test_overflow_is_told_with_its_layer(saved):
    def grow(model):
        model.blocks[4].mlp.fc2.weight *= 40_000

    report = vitconvert.audit(saved(depth=11, change=grow), batch=2, without=RUNTIMES)
    assert {name: layer.layer for name, layer in report.first_overflow.items()} == {
        "float16": "blocks.4.mlp"
    }
    layers = layers_of(report, "float16")
    assert layers["blocks.4.attn"].finite and layers["blocks.4.attn"].relative < 0.1
    assert layers["blocks.4.mlp"].infinite > 0
    assert layers["blocks.5.attn"].nan > 0
    assert layers["blocks.4.mlp"].largest > 65504
    assert report.peak > 65504
    assert report.ok
    output = of(report, "float16")["noise"]
    assert (output.relative, output.flips, output.rows) == (math.inf, 2, 2)
    assert "overflow       float16: first in blocks.4.mlp (" in report.summary()
    answer = json.loads(report.to_json())
    assert answer["first_overflow"] == {"float16": "blocks.4.mlp"}
    assert answer["outputs"][4]["relative"] is None
    assert "float16: first in blocks.4.mlp (" in report.to_html()


def test_weights_that_do_not_fit_are_named(saved):
    def grow(model):
        model.head.weight[3, 5] = 70_000
        model.blocks[1].attn.proj.bias[0] = -65_504

    report = vitconvert.audit(saved(change=grow), batch=1, without=RUNTIMES)
    assert report.unfit == {"float16": ("head.weight",)}
    assert report.first_overflow["float16"].layer == "output"
    assert "weights        head.weight does not fit into float16" in report.summary()


def test_flips_are_counted(saved):
    def nearly_tie(model):
        """Class 5 wins over class 2 by what half precision cannot hold."""
        head = model.get_classifier()
        head.weight[5] = head.weight[2]
        head.bias[:] = -1000.0
        head.bias[2], head.bias[5] = 0.5, 0.5001

    report = vitconvert.audit(saved(change=nearly_tie), batch=3, without=RUNTIMES)
    flips = {o.arithmetic: (o.flips, o.rows) for o in report.outputs if o.images == "noise"}
    assert flips == {"float32": (0, 3), "fast": (0, 3), "bfloat16": (3, 3), "float16": (3, 3)}


def test_float32_that_is_not_finite_is_not_ok(saved):
    def break_(model):
        model.blocks[1].mlp.fc1.bias[3] = math.nan

    report = vitconvert.audit(saved(change=break_), batch=1, without=QUICK)
    assert (report.ok, report.verdict) == (False, "not finite in float32")
    assert report.first_overflow["float32"].layer == "blocks.1.mlp"
    json.loads(report.to_json())
    assert "infinite" in report.to_html()


def test_parts_of_a_batch_add_up(saved, monkeypatch):
    path = saved()
    whole = vitconvert.audit(path, batch=6, without=RUNTIMES)
    seen = []
    layers = audit_module._layers
    monkeypatch.setattr(audit_module, "_layers", lambda m, x: seen.append(len(x)) or layers(m, x))
    one = 4 * max(768, 3 * 192) * 13
    monkeypatch.setattr(audit_module, "_AT_ONCE", 2 * one)
    parts = vitconvert.audit(path, batch=6, without=RUNTIMES)
    assert set(seen) == {2}
    assert [(o.flips, o.rows) for o in parts.outputs] == [(o.flips, o.rows) for o in whole.outputs]
    for ours, theirs in zip(parts.layers, whole.layers, strict=True):
        assert ours.layer == theirs.layer
        assert ours.largest == pytest.approx(theirs.largest, rel=1e-12)
        assert ours.relative == pytest.approx(theirs.relative, rel=0.5)


def test_two_models_at_a_time(saved, monkeypatch):
    alive, most = weakref.WeakSet(), []
    build = audit_module.build_model

    def counted(*arguments, **options):
        model = build(*arguments, **options)
        alive.add(model)
        most.append(len(alive))
        return model

    monkeypatch.setattr(audit_module, "build_model", counted)
    vitconvert.audit(saved(), batch=2, without=RUNTIMES)
    assert max(most) == 2
    assert len(most) == 1 + 2 * 4


def test_settings_do_not_matter_and_stay(saved):
    path = saved()
    wanted = vitconvert.audit(path, batch=1, without=RUNTIMES).to_json()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            assert vitconvert.audit(path, batch=1, without=RUNTIMES).to_json() == wanted
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.is_grad_enabled()
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")


def test_another_seed_measures_other_images(saved):
    path = saved()
    first, again, other = (
        vitconvert.audit(path, batch=1, without=QUICK, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.outputs != other.outputs


def test_what_cannot_be_measured_is_named(saved, monkeypatch):
    def refuse(model, images, folder):
        raise RuntimeError("no working C++ compiler\nfound in 3 places")

    monkeypatch.setitem(audit_module._OPAQUE, "compiled", refuse)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    build = audit_module.build_model

    def no_half(checkpoint, *, dtype, **options):
        if dtype == torch.float16:
            raise NotImplementedError("'im2col' not implemented for 'Half'")
        return build(checkpoint, dtype=dtype, **options)

    monkeypatch.setattr(audit_module, "build_model", no_half)
    report = vitconvert.audit(saved(), batch=1, without=("fast",))
    assert report.skipped == {
        "float16": "NotImplementedError: 'im2col' not implemented for 'Half'",
        "fast": "not asked for",
        "compiled": "RuntimeError: no working C++ compiler",
        "onnxruntime": "not installed: onnxruntime, onnx, onnxscript",
    }
    assert [*report.limits] == ["float32", "bfloat16"]
    assert "not measured   compiled: RuntimeError: no working C++ compiler" in report.summary()


@pytest.mark.slow
def test_compiled(saved, capfd):
    report = vitconvert.audit(saved(depth=1), batch=2, without=QUICK[:3])
    reason = report.skipped.get("compiled", "")
    if "compiler" in reason:
        pytest.skip(reason)
    assert reason == ""
    assert 0 < of(report, "compiled")["noise"].relative < 1e-4
    assert list(layers_of(report, "compiled")) == ["output"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_onnxruntime(saved):
    for name in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(name)
    report = vitconvert.audit(saved(), batch=2, without=QUICK[:4])
    assert "onnxruntime" not in report.skipped
    assert 0 < of(report, "onnxruntime")["noise"].relative < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch = 0 must be a whole number of at least 1"),
        ({"without": ("int8",)}, "There is no arithmetic 'int8' to leave out."),
        ({"without": ("float32",)}, "it cannot be left out"),
    ],
)
def test_wrong_arguments(arguments, message, saved):
    with pytest.raises(UsageError, match=message):
        vitconvert.audit(saved(), **arguments)


def test_the_page_stands_alone(saved):
    page = vitconvert.audit(saved(), batch=1, without=RUNTIMES).to_html()
    for word in ("<script", "http:", "https:", "src=", "href=", "@import", "url("):
        assert word not in page
    assert page.count('class="point"') == 4 * (2 * 3 + 5)
    assert "<td>not measured</td><td>compiled: not asked for</td>" in page
    assert "judges nothing" in page
