"""`predict` of a file that was exported: as of the checkpoint itself."""

import json

import pytest
import torch

import vitconvert
from tests.sampling import sampled
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import ConflictingFact, MissingFact, UsageError
from vitconvert.runtimes import RUNTIMES

SAMPLES = DIGITS / "samples"


def exported(folder, to, **choices):
    for package in RUNTIMES[to].packages:
        pytest.importorskip(package)
    output = folder / f"digits{RUNTIMES[to].suffix}"
    return vitconvert.export_model(DIGITS, output, to=to, verify=False, **choices).output


def answers(model, **choices):
    found = list(vitconvert.predict(model, SAMPLES, **choices))
    assert len(found) == 10
    assert all(one.error is None for one in found)
    return [[(c.index, c.label, c.probability) for c in one.top] for one in found]


@pytest.mark.parametrize(
    ("to", "choices"),
    [
        pytest.param("onnx", {}, marks=pytest.mark.slow),
        *sampled(
            [
                ("pt2", {"probabilities": True}),
                ("pt2", {"with_preprocessing": True, "batch_size": 3}),
                ("onnx", {"with_preprocessing": True, "probabilities": True, "batch_size": 4}),
                ("openvino", {"with_preprocessing": True}),
            ],
            4,
            "slow",
        ),
    ],
    ids=str,
)
def test_a_file_predicts_as_its_checkpoint(to, choices, tmp_path):
    file = exported(tmp_path, to, **choices)
    named = {"onnx": "onnxruntime", "openvino": "openvino", "pt2": "torch"}[to]
    for found, wanted in zip(answers(file, runtime=named), answers(DIGITS), strict=True):
        assert found[0][:2] == wanted[0][:2]
        by_class = {index: (label, share) for index, label, share in wanted}
        # Sampled images are rounded to whole levels where the file itself normalises.
        for index, label, share in found[:2]:
            known = by_class.get(index)
            assert known is None or known == (label, pytest.approx(share, abs=1e-3))


@pytest.mark.slow
def test_the_command_line_prints_the_same(tmp_path, run):
    file, photo = exported(tmp_path, "pt2"), SAMPLES / "7.png"
    assert run("predict", file, photo, "-q") == run("predict", DIGITS, photo, "-q")
    first, second = (run("predict", one, photo).out.splitlines() for one in (file, DIGITS))
    assert first[:2] == second[:2]
    found = json.loads(run("predict", file, photo, "--json").out)
    assert found["top"][0]["label"] == "7"
    refused = run("predict", file, photo, "--mean", "0.5")
    assert (
        "mean: this is about how a checkpoint is read, and an exported file states" in refused.err
    )
    refused = run("predict", file, photo, "-o", tmp_path / "classes")
    assert "An exported file gives a line for each image, and no directory." in refused.err


@pytest.mark.parametrize("content", [b"", b"not a file of a runtime"])
def test_error_a_foreign_file(content, tmp_path):
    (tmp_path / "theirs.pt2").write_bytes(content)
    with pytest.raises(MissingFact) as caught:
        vitconvert.predict(tmp_path / "theirs.pt2", SAMPLES)
    assert str(caught.value) == (
        "error: missing-fact\n"
        "  This .pt2 file does not say which images it takes, nor its classes.\n"
        f"  file      {tmp_path / 'theirs.pt2'}\n"
        "  found     no metadata that can be read\n"
        "  expected  an entry 'vitconvert' of export\n"
        "  hint: give a file that vitconvert exported, or the checkpoint itself."
    )


def test_error_a_foreign_model_of_onnx(tmp_path):
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph([], "theirs", [], [])
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {"author": "somebody"})
    onnx.save(model, tmp_path / "theirs.onnx")
    with pytest.raises(MissingFact, match="metadata author"):
        vitconvert.predict(tmp_path / "theirs.onnx", SAMPLES)


@pytest.mark.slow
def test_error_features_and_other_runtimes(tmp_path):
    with pytest.raises(ConflictingFact, match="The file gives features, and no classes"):
        vitconvert.predict(exported(tmp_path, "pt2", kind="features"), SAMPLES)
    with pytest.raises(UsageError, match="runtime: the file was exported for torch"):
        vitconvert.predict(tmp_path / "digits.pt2", SAMPLES, runtime="openvino")
    with pytest.raises(UsageError, match="dtype, fast: the file was exported for torch"):
        vitconvert.predict(tmp_path / "digits.pt2", SAMPLES, fast=False, dtype=torch.bfloat16)


@pytest.mark.slow
def test_error_preprocessing_beside_that_of_the_file(tmp_path):
    file = exported(tmp_path, "pt2", with_preprocessing=True)
    preprocessing = vitconvert.load_checkpoint(DIGITS).preprocessing
    with pytest.raises(ConflictingFact, match="The file prepares its images itself"):
        vitconvert.predict(file, SAMPLES, preprocessing)
