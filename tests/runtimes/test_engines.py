"""`predict` and `embed` by other runtimes: exported once, kept, and as right as torch."""

import json

import pytest
import torch

import vitconvert
from tests.sampling import sampled
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import MissingPackage, ParityFailed, UsageError
from vitconvert.model import fast
from vitconvert.runtimes import RUNTIMES, engines
from vitconvert.runtimes.engines import FORMATS, TORCH, Speed, calls_per_second
from vitconvert.runtimes.onnx import OnnxRuntime

SAMPLES = DIGITS / "samples"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engines, "busy", lambda: 0)
    monkeypatch.setattr(fast, "_COMPARES", False)  # two measurements of torch's may differ
    for runtime in (RUNTIMES[name] for name in FORMATS.values()):
        for package in runtime.packages:
            pytest.importorskip(package)
    return tmp_path / "vitconvert" / "runtimes"


@pytest.fixture
def told():
    return []


def files(cache):
    return sorted(path.suffix for path in cache.rglob("*") if path.suffix)


def logits(runtime, told, batch_size=4):
    answers = vitconvert.predict(
        DIGITS, SAMPLES, topk=10, batch_size=batch_size, runtime=runtime, tell=told.append
    )
    found = [{c.index: c.logit for c in answer.top} for answer in answers]
    return torch.tensor([[row[index] for index in range(10)] for row in found])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "threads", "kept"),
    [("onnxruntime", 1, [".onnx"]), ("openvino", 2, [".bin", ".xml"])],  # two compute a batch each
)
def test_a_runtime_answers_as_torch_and_its_file_is_kept(runtime, threads, kept, cache, told):
    torch.set_num_threads(threads)
    try:
        expected = logits("torch", told)
        assert told == []
        first, again = logits(runtime, told), logits(runtime, told)
    finally:
        torch.set_num_threads(1)
    assert len(told) == 1 and "exported once" in told[0]
    assert files(cache) == kept
    assert torch.equal(first, again)
    assert 0 < (first - expected).abs().max() / expected.abs().max() < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("choice", sampled([{}, {"tokens": True}], 2))
def test_features_by_a_runtime(choice, cache):
    (usual,), (found,) = (
        list(vitconvert.embed(DIGITS, SAMPLES / "3.png", runtime=name, **choice))
        for name in ("torch", "onnxruntime")
    )
    torch.testing.assert_close(found.features, usual.features, rtol=0, atol=1e-4)
    assert not torch.equal(found.features, usual.features)


@pytest.mark.slow
def test_error_a_wrong_file_is_not_kept(cache, told, monkeypatch):
    opened = OnnxRuntime.open

    def wrong(self, path, **how):
        right = opened(self, path, **how)
        return lambda images: right(images) * 1.001

    monkeypatch.setattr(OnnxRuntime, "open", wrong)
    with pytest.raises(ParityFailed):
        logits("onnxruntime", told)
    assert files(cache) == []


def test_other_weights_and_outputs_have_other_files(cache):
    checkpoint = vitconvert.load_checkpoint(DIGITS)
    one = engines.folder_of(checkpoint, "logits")
    assert one == engines.folder_of(vitconvert.load_checkpoint(DIGITS), "logits")
    assert one != engines.folder_of(checkpoint, "features")
    with torch.no_grad():
        tensors = {name: x.clone() for name, x in checkpoint.tensors.items()}
        tensors["norm.bias"][0] += 1e-6
    changed = vitconvert.load_checkpoint(DIGITS)
    object.__setattr__(changed, "tensors", tensors)
    assert one != engines.folder_of(changed, "logits")


@pytest.fixture
def measured(monkeypatch):
    """Rates by runtime and threads, in the place of measurements; who was opened."""
    seen = []

    def make(rates):
        def opened(self, folder, name, threads, streams):
            seen.append((name, threads))
            return Counted(self.answer, rates[name, threads])

        monkeypatch.setattr(engines.Fastest, "_open", opened)
        monkeypatch.setattr(engines, "engine_of", lambda *arguments, **options: None)
        monkeypatch.setattr(engines, "calls_per_second", lambda run, images, streams: run.rate)
        return seen

    return make


class Counted:
    """An answer that is said to be so fast."""

    def __init__(self, answer, rate):
        self.answer, self.rate = answer, rate

    def __call__(self, images):
        return self.answer(images)


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({TORCH: 30.0, "onnxruntime": 20.0, "openvino": 10.0}, []),
        ({TORCH: 10.0, "onnxruntime": 30.0, "openvino": 20.0}, [("onnxruntime", 1)]),
        ({TORCH: 10.0, "onnxruntime": 20.0, "openvino": 30.0}, [("openvino", 1)]),
    ],
)
def test_the_fastest_is_measured_once_and_taken(rates, chosen, measured, cache, told):
    seen = measured({(name, 1): rate for name, rate in rates.items()})
    expected = logits("torch", told)
    assert torch.equal(logits("auto", told), expected)
    candidates = [(name, 1) for name in rates]
    assert seen == candidates + chosen
    logits("auto", told)
    assert seen == candidates + chosen * 2
    logits("auto", told, batch_size=3)  # which was not measured
    assert seen == (candidates + chosen * 2) + candidates + chosen
    (kept,) = cache.rglob("speed.json")
    assert len(json.loads(kept.read_text())) == 2
    kept.write_text("damaged")
    logits("auto", told)
    assert seen[-len(candidates + chosen) :] == candidates + chosen


def test_for_a_single_batch_nothing_is_measured(measured, told):
    seen = measured({})
    logits("auto", told, batch_size=10)
    assert seen == []


def test_opening_counts_for_few_images(measured, told, monkeypatch):
    rates = {TORCH: 100.0, "onnxruntime": 200.0, "openvino": 1.0}
    seen = measured({(name, 1): rate for name, rate in rates.items()})
    quick = Speed(runtime=TORCH, threads=1, opening=0.0, rate=100.0)
    slow = Speed(runtime="onnxruntime", threads=1, opening=0.5, rate=200.0)
    monkeypatch.setattr(engines, "_read", lambda path, case: [quick, slow])
    logits("auto", told, batch_size=10)
    assert seen == []
    logits("auto", told, batch_size=4)
    assert seen == [("onnxruntime", 1)]


@pytest.mark.parametrize(("policy", "of_torch"), [("active", [2]), ("passive", [2, 3])])
def test_where_others_compute_fewer_threads_are_tried(
    policy, of_torch, measured, told, monkeypatch
):
    monkeypatch.setattr(engines, "busy", lambda: 1)
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    cases = [(TORCH, n) for n in of_torch] + [(name, n) for name in FORMATS for n in (2, 3)]
    seen = measured(dict.fromkeys(cases, 9.0) | {(TORCH, 2): 20.0})
    model = vitconvert.load_model(DIGITS, fast=True)
    choice = engines.chosen(
        vitconvert.load_checkpoint(DIGITS), model, name="auto", kind="logits", tell=told.append
    )
    assert choice.ready(images=None, batch=1, threads=3, streams=1).answer is model
    assert seen == [*cases, (TORCH, 2)]


def test_a_runtime_that_cannot_is_no_candidate(told, monkeypatch):
    def fail(checkpoint, name, **how):
        raise ParityFailed(f"{name} computes something else.")

    monkeypatch.setattr(engines, "engine_of", fail)
    expected = logits("torch", told)
    assert torch.equal(logits("auto", told), expected)
    assert told == [f"{name} is left out: {name} computes something else." for name in FORMATS]


def test_calls_are_counted():
    seen = []
    assert calls_per_second(seen.append, torch.zeros(1), 2) > 100
    assert len(seen) > 100


def test_error_what_only_torch_does(told):
    for choice in ({"fast": False}, {"dtype": torch.bfloat16}, {"device": "cuda"}):
        with pytest.raises(UsageError, match="computes in float32 on the CPU"):
            vitconvert.predict(DIGITS, SAMPLES, runtime="openvino", **choice)
    with pytest.raises(UsageError, match="did you mean onnxruntime"):
        vitconvert.embed(DIGITS, SAMPLES, runtime="onnxruntim")
    checkpoint = vitconvert.load_checkpoint(DIGITS)
    with pytest.raises(UsageError, match="needs a checkpoint"):
        vitconvert.predict(
            vitconvert.load_model(DIGITS), SAMPLES, checkpoint.preprocessing, runtime="auto"
        )


def test_error_a_runtime_is_absent(told, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="OpenVINO needs packages"):
        vitconvert.predict(DIGITS, SAMPLES, runtime="openvino")
