"""`predict` and `embed` by other runtimes: exported once, kept, and as right as torch."""

import json

import pytest
import torch

import vitconvert
from tests.sampling import sampled
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import MissingPackage, ParityFailed, UsageError
from vitconvert.model import fast
from vitconvert.runtimes import RUNTIMES, engines, fastest
from vitconvert.runtimes.engines import FORMATS, TORCH
from vitconvert.runtimes.fastest import Speed, calls_per_second
from vitconvert.runtimes.onnx import OnnxRuntime

SAMPLES = DIGITS / "samples"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fastest, "busy", lambda: 0)
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


def logits(runtime, told, batch_size=4, dtype=None):
    how = {"batch_size": batch_size, "runtime": runtime, "dtype": dtype}
    answers = vitconvert.predict(DIGITS, SAMPLES, topk=10, tell=told.append, **how)
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
        def opened(self, folder, way, threads, streams):
            if way == (TORCH, threads, "float32"):
                return None
            case = way[:2] if len(self.dtypes) == 1 else (way.runtime, way.dtype)
            seen.append(case)
            return Counted(self.answer, rates[case])

        monkeypatch.setattr(fastest.Fastest, "_open", opened)
        monkeypatch.setattr(fastest.Fastest, "_engine", lambda *arguments: None)
        monkeypatch.setattr(fastest, "calls_per_second", lambda run, images, streams: run.rate)
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
    monkeypatch.setattr(fastest, "_read", lambda path, case: [quick, slow])
    logits("auto", told, batch_size=10)
    assert seen == []
    logits("auto", told, batch_size=4)
    assert seen == [("onnxruntime", 1)]


@pytest.mark.parametrize(("policy", "of_torch"), [("active", [2]), ("passive", [2, 3])])
def test_where_others_compute_fewer_threads_are_tried(
    policy, of_torch, measured, told, monkeypatch
):
    monkeypatch.setattr(fastest, "busy", lambda: 1)
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    cases = [(TORCH, n) for n in of_torch] + [(name, n) for name in FORMATS for n in (2, 3)]
    seen = measured(dict.fromkeys(cases, 9.0) | {(TORCH, 2): 20.0})
    model = vitconvert.load_model(DIGITS, fast=True)
    choice = fastest.chosen(
        vitconvert.load_checkpoint(DIGITS), model, name="auto", kind="logits", tell=told.append
    )
    assert choice.ready(images=None, batch=1, threads=3, streams=1).answer is model
    assert seen == [*cases, (TORCH, 2)]


def test_a_runtime_that_cannot_is_no_candidate(told, monkeypatch):
    def fail(checkpoint, name, **how):
        raise ParityFailed(f"{name} computes something else.")

    monkeypatch.setattr(fastest, "engine_of", fail)
    expected = logits("torch", told)
    assert torch.equal(logits("auto", told), expected)
    assert told == [f"{name} is left out: {name} computes something else." for name in FORMATS]


@pytest.mark.parametrize(
    ("runtime", "rates", "chosen", "told_of"),
    [
        ("torch", {(TORCH, "bfloat16"): 30.0}, (TORCH, "bfloat16"), "torch is 1.5 times as fast"),
        # What loses bits has to be worth it.
        ("torch", {(TORCH, "bfloat16"): 21.0}, (TORCH, "float32"), "computing in float32"),
        ("openvino", {("openvino", "bfloat16"): 40.0}, ("openvino", "bfloat16"), "2 times"),
        (
            "",  # nothing is named: all that is installed
            {(TORCH, "float32"): 25.0, (TORCH, "bfloat16"): 40.0, ("openvino", "bfloat16"): 50.0},
            ("openvino", "bfloat16"),
            "in bfloat16, openvino is 2 times as fast as torch in float32",
        ),
    ],
)
def test_bfloat16_is_measured_on_request(
    runtime, rates, chosen, told_of, measured, cache, told, monkeypatch
):
    names = (runtime,) if runtime else (TORCH, *FORMATS)
    usual = {(name, "float32"): 20.0 for name in names}
    seen = measured(usual | rates)
    expected = logits("torch", [])
    assert torch.equal(logits(runtime, told, dtype="auto"), expected)
    opened = [] if chosen == (TORCH, "float32") else [chosen]
    assert seen == [
        *sorted(usual | rates, key=lambda w: (names.index(w[0]), w[1] != "float32")),
        *opened,
    ]
    assert told_of in told[0]
    assert len(told) == 1 + ("bfloat16" in chosen)
    measured_once = len(seen)
    logits(runtime, told, dtype="auto")
    assert seen[measured_once:] == opened
    if not runtime:  # what `--runtime auto` measured says nothing of bfloat16
        monkeypatch.setattr(fastest, "calls_per_second", lambda run, images, streams: 1.0)
        (kept,) = cache.rglob("speed.json")
        assert len(json.loads(kept.read_text())) == 1
        chosen = fastest.chosen(
            vitconvert.load_checkpoint(DIGITS),
            vitconvert.load_model(DIGITS, fast=True),
            name="auto",
            kind="logits",
            tell=told.append,
        )
        assert chosen.dtypes == ("float32",)


def faster_in_bfloat16(name):
    speeds = {"float32": 10.0, "bfloat16": 30.0}
    return lambda path, case: [
        Speed(runtime=name, threads=1, dtype=dtype, opening=0.0, rate=rate)
        for dtype, rate in speeds.items()
    ]


def test_in_bfloat16_the_first_images_are_compared_with_float32(told, monkeypatch):
    monkeypatch.setattr(fastest, "_read", faster_in_bfloat16(TORCH))
    expected, rounded = logits("torch", []), logits("torch", [], dtype=torch.bfloat16)
    found = logits("torch", told, dtype="auto")
    assert torch.equal(found, rounded) and not torch.equal(found, expected)
    relative = (found[:4] - expected[:4]).abs().max() / expected[:4].abs().max()
    assert told[1] == (
        f"on the first 4 images, from float32: largest difference {relative:.1e} of the largest "
        f"output, 4 of 4 with the same maximum, cosine at least "
        f"{torch.cosine_similarity(found[:4].double(), expected[:4].double()).min():.4f}"
    )
    (usual,), (embedded,) = (
        list(vitconvert.embed(DIGITS, SAMPLES / "3.png", dtype=dtype))
        for dtype in (torch.bfloat16, "auto")
    )
    assert torch.equal(usual.features, embedded.features)


@pytest.mark.coverage
def test_openvino_in_bfloat16(told, monkeypatch):
    monkeypatch.setattr(fastest, "_read", faster_in_bfloat16("openvino"))
    expected = logits("openvino", told)
    found = logits("openvino", told, dtype="auto")
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
    assert "4 of 4 with the same maximum" in told[-1]


def test_for_a_single_batch_bfloat16_is_not_measured(measured, told):
    seen = measured({})
    assert torch.equal(logits("torch", told, 10, dtype="auto"), logits("torch", told, 10))
    assert seen == told == []


def test_error_what_is_not_measured(tmp_path):
    for choice in ({"fast": False}, {"device": "cuda"}):
        with pytest.raises(UsageError, match="--dtype auto measures fast arithmetic on the CPU"):
            vitconvert.predict(DIGITS, SAMPLES, dtype="auto", **choice)
    with pytest.raises(UsageError, match="compares the model's own features"):
        vitconvert.embed(DIGITS, SAMPLES, dtype="auto", layer=1)
    with pytest.raises(UsageError, match="computed in one dtype"):
        vitconvert.embed_dataset(DIGITS, SAMPLES, tmp_path / "features", dtype="auto")
    with pytest.raises(UsageError, match="a dtype of torch that models compute in, or auto"):
        vitconvert.predict(DIGITS, SAMPLES, dtype="half")
    with pytest.raises(UsageError, match="a dtype of torch that models compute in"):
        vitconvert.load_model(DIGITS, dtype="auto")


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
