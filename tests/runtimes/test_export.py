"""Files for other runtimes: what they say, what they compute, and what never appears."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.sampling import sampled
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    MissingPackage,
    NotRepresentable,
    OutputExists,
    ParityFailed,
    UsageError,
)
from vitconvert.formats import hash_file
from vitconvert.runtimes import RUNTIMES, check_onnx, graph, onnx
from vitconvert.runtimes import export as module
from vitconvert.runtimes.onnx import OnnxRuntime
from vitconvert.runtimes.options import ExportOptions
from vitconvert.runtimes.runtime import Pt2

SAMPLES = sorted((DIGITS / "samples").glob("*.png"))
FILES = {"onnx": ["digits.onnx"], "pt2": ["digits.pt2"], "openvino": ["digits.bin", "digits.xml"]}


def needed(to):
    for package in RUNTIMES[to].packages:
        pytest.importorskip(package)


def export(folder, to="pt2", **choices):
    needed(to)
    output = folder / f"digits{RUNTIMES[to].suffix}"
    return vitconvert.export_model(DIGITS, output, to=to, **choices)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def wrong(monkeypatch):
    """A runtime that computes something else, by a function of its output."""

    def make(change, runtime=Pt2):
        original = runtime.open

        def opened(self, path, **how):
            run = original(self, path, **how)
            return lambda images: change(run(images))

        monkeypatch.setattr(runtime, "open", opened)

    return make


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A traced graph and its file: tracing takes most of an export's time."""
    return export(tmp_path_factory.mktemp("written")).output


@pytest.fixture
def written(program, monkeypatch):
    """Exports copy a file instead of tracing the model again."""
    monkeypatch.setattr(
        module, "write_graph", lambda checkpoint, path, *_: shutil.copy(program, path)
    )


@pytest.mark.slow
@pytest.mark.parametrize("to", RUNTIMES)
def test_a_file_says_what_it_is_and_computes_it(to, tmp_path):
    exported = export(tmp_path, to, command="vitconvert export")
    assert names(tmp_path) == sorted(exported.sha256) == FILES[to]
    stated = RUNTIMES[to].metadata(exported.output)
    record = json.loads(stated["vitconvert"])
    assert record == json.loads(json.dumps(exported.record))
    assert record["command"] == "vitconvert export"
    assert record["input"]["shape"] == ["batch", 3, 32, 32]
    assert record["verified"] == RUNTIMES[to].version
    source = json.loads(stated["sha256"])
    assert source == record["source"]["sha256"]
    assert source["model.safetensors"] == hash_file(DIGITS / "model.safetensors")
    assert record["converted_from"]["reference"] == "python -m vitconvert.demo.train"
    assert json.loads(stated["labels"]) == list("0123456789")
    checkpoint = vitconvert.load_checkpoint(DIGITS)
    pixels = json.dumps(checkpoint.preprocessing.to_dict())
    assert json.loads(stated["preprocessing"]) == json.loads(pixels)
    images = torch.stack([checkpoint.preprocessing(path) for path in SAMPLES[:5]])
    found = RUNTIMES[to].open(exported.output, threads=1)(images)
    wanted = vitconvert.load_model(DIGITS)(images).detach()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    assert len(exported.comparisons) == 4
    assert all(comparison.relative < 2e-5 for comparison in exported.comparisons)
    for name in exported.sha256:  # no file tells of a place on this machine
        content = (tmp_path / name).read_bytes()
        assert not any(bytes(place) in content for place in (tmp_path, DIGITS.parent))


@pytest.mark.slow
@pytest.mark.parametrize("to", sampled(RUNTIMES, 3))
def test_raw_pixels_become_probabilities(to, tmp_path):
    exported = export(tmp_path, to, with_preprocessing=True, probabilities=True, images=SAMPLES)
    assert exported.photographs.agreed == exported.photographs.rows == len(SAMPLES)
    images = [Image.open(path).convert("RGB").resize((32, 32), 0) for path in SAMPLES]
    found = RUNTIMES[to].open(exported.output, threads=1)(torch.from_numpy(np.stack(images)))
    assert found.argmax(-1).tolist() == [int(path.stem) for path in SAMPLES]
    torch.testing.assert_close(found.sum(-1), torch.ones(len(SAMPLES)))
    told = {"name": "images", "dtype": "uint8", "shape": ["batch", 32, 32, 3]}
    assert exported.record["input"] == told | {"normalised": "inside"}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape"), [("features", (2, 48)), ("tokens", (2, 17, 48))])
def test_other_outputs_and_a_fixed_batch(kind, shape, tmp_path):
    exported = export(tmp_path, kind=kind, batch_size=2, images=SAMPLES[:3])
    assert exported.photographs.rows == 3 * (shape[1] if kind == "tokens" else 1)
    run = Pt2().open(exported.output, threads=1)
    assert run(torch.zeros(2, 3, 32, 32)).shape == shape
    assert [comparison.images for comparison in exported.comparisons] == [
        "noise, 2 at once",
        "photograph, 2 at once",
    ]


@pytest.mark.slow
def test_float16_reports_what_stays_in_float32_and_what_overflows(tmp_path):
    kept, note = export(tmp_path, dtype="float16").notes
    assert kept.startswith("in float32: ") and "every operation rounded" in kept
    assert note.startswith("largest activation ") and note.endswith(": within float16's 65504")


@pytest.mark.slow
def test_what_float16_is_too_small_for_stays_in_float32(tmp_path, monkeypatch):
    build = module.build_model

    def large(*arguments, **options):
        model = build(*arguments, **options)
        layer = model.get_submodule("blocks.1.mlp.fc2")
        layer.weight = torch.nn.Parameter(layer.weight * 1e6, requires_grad=False)
        return model

    monkeypatch.setattr(module, "build_model", large)
    kept, layers, largest = export(tmp_path, dtype="float16").notes
    assert kept.startswith("in float32: softmax, norms, the residual sum; in float16: the rest; ")
    assert layers.endswith("beyond 65504: 1 of 18 products (blocks.1.mlp.fc2)")
    assert largest.endswith(": beyond float16's 65504")


@pytest.mark.slow
def test_int8_is_measured_on_photographs(tmp_path):
    exported = export(tmp_path, "onnx", int8=True, images=SAMPLES)
    assert (exported.photographs.agreed, exported.photographs.rows) == (10, 10)
    weights = (DIGITS / "model.safetensors").stat().st_size
    assert exported.output.stat().st_size < 0.6 * weights
    assert exported.record["dtype"] == "int8"
    assert 1e-4 < max(comparison.relative for comparison in exported.comparisons) < 0.2
    stated = json.loads(check_onnx.read_model(exported.output).metadata["golden"])
    assert 1e-4 < stated["tolerance"] < 0.1  # twice what 8 bits cost, and not anything
    assert check_onnx.main([str(exported.output)]) == 0
    files = pytest.importorskip("onnx")
    model = files.load(exported.output)
    scale = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("_scale"))
    wrong = files.numpy_helper.to_array(scale) * np.float32(1.5)
    scale.CopyFrom(files.numpy_helper.from_array(wrong, scale.name))
    files.save(model, tmp_path / "wrong.onnx")
    assert check_onnx.main([str(tmp_path / "wrong.onnx")]) == 1


@pytest.mark.slow
def test_large_weights_of_onnx_an_opset_and_the_name_of_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "_LARGEST", 0)
    exported = export(tmp_path, "onnx", opset=18)
    assert names(tmp_path) == sorted(exported.sha256) == ["digits.onnx", "digits.onnx.data"]
    OnnxRuntime().open(exported.output, threads=1)(torch.zeros(1, 3, 32, 32))
    model = pytest.importorskip("onnx").load(exported.output)
    assert [opset.version for opset in model.opset_import if not opset.domain] == [18]
    (images,) = model.graph.input
    assert images.type.tensor_type.shape.dim[0].dim_param == "batch"
    with pytest.raises(UsageError, match="There is no opset 7"):
        export(tmp_path, "onnx", opset=7, overwrite=True)


def fail(output):
    raise RuntimeError("no kernel")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output: output + 1e-4 * output.abs().max(), "computes something else"),
        (lambda output: output * float("nan"), "computes something else"),
        # Right for one image.
        (lambda output: output.flip(0) if len(output) == 3 else output, "computes something else"),
        (lambda output: output[:1], "computes something else"),
        (fail, "RuntimeError: no kernel"),
    ],
)
def test_error_a_runtime_that_is_wrong(change, message, wrong, written, tmp_path):
    wrong(change)
    with pytest.raises(ParityFailed, match=message):
        export(tmp_path)
    assert names(tmp_path) == []


def test_without_a_check_the_record_says_so(wrong, tmp_path):
    wrong(fail)
    exported = export(tmp_path, verify=False)
    assert exported.comparisons == () and exported.record["verified"] is None


def test_error_an_exporter_that_fails(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise ValueError("data-dependent")

    monkeypatch.setattr(graph.torch.export, "export", fail)
    with pytest.raises(NotRepresentable, match="ValueError: data-dependent"):
        export(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.slow
def test_only_an_earlier_export_is_replaced(wrong, written, tmp_path):
    first = export(tmp_path)
    with pytest.raises(OutputExists, match="--force"):
        export(tmp_path)
    before, place = first.output.read_bytes(), first.output.stat().st_ino
    wrong(lambda output: 2 * output)
    with pytest.raises(ParityFailed):
        export(tmp_path, overwrite=True)
    assert first.output.read_bytes() == before
    assert first.output.stat().st_ino == place
    export(tmp_path, overwrite=True, verify=False)
    assert first.output.stat().st_ino != place
    first.output.write_text("somebody's")
    with pytest.raises(OutputExists, match="did not write"):
        export(tmp_path, overwrite=True)
    assert first.output.read_text() == "somebody's"


def test_somebodys_weights_are_not_replaced(tmp_path):
    (tmp_path / "digits.bin").write_text("somebody's")
    with pytest.raises(OutputExists):
        export(tmp_path, "openvino", overwrite=True)
    assert names(tmp_path) == ["digits.bin"]


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"to": "onx"}, UsageError, "did you mean onnx"),
        ({"kind": "pixels"}, UsageError, "There is no output 'pixels'"),
        ({"dtype": "bfloat16"}, UsageError, "must be one of float32, float16"),
        ({"batch_size": 0}, UsageError, "a whole number of at least 1"),
        ({"opset": 20}, UsageError, "Only ONNX has opsets"),
        ({"int8": True}, UsageError, "int8 is for ONNX"),
        ({"probabilities": True, "kind": "tokens"}, ConflictingFact, "logits of a classifier"),
    ],
)
def test_error_choices(choices, error, message, tmp_path):
    with pytest.raises(error, match=message):
        vitconvert.export_model(DIGITS, tmp_path / "x.pt2", **({"to": "pt2"} | choices))
    assert names(tmp_path) == []


def test_error_a_model_without_a_head_names_the_option():
    headless = SimpleNamespace(config=SimpleNamespace(num_classes=0))
    with pytest.raises(ConflictingFact, match="--kind features, or tokens"):
        ExportOptions(to="pt2", output="logits").shape(headless)


def test_error_names_and_places(tmp_path):
    for path, message in (
        (tmp_path / "x.onnx", "ends with .pt2"),
        (tmp_path / "absent" / "x.pt2", "directory of the output does not exist"),
    ):
        with pytest.raises(UsageError, match=message):
            vitconvert.export_model(DIGITS, path, to="pt2")


def test_error_a_runtime_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="pip install openvino"):
        vitconvert.export_model(DIGITS, tmp_path / "x.xml", to="openvino")


def test_error_nothing_says_how_images_are_normalised(tmp_path):
    weights = DIGITS / "model.safetensors"
    facts = {"num_heads": 4, "activation": "gelu", "norm_eps": 1e-6}
    (tmp_path / "model.safetensors").write_bytes(weights.read_bytes())
    source = vitconvert.load_checkpoint(tmp_path / "model.safetensors", overrides=facts)
    for choices in ({"with_preprocessing": True}, {"images": SAMPLES}):
        with pytest.raises(MissingFact):
            vitconvert.export_model(source, tmp_path / "x.pt2", to="pt2", **choices)
    assert names(tmp_path) == ["model.safetensors"]
