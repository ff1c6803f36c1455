"""The benchmark of inference runs and prints what the README shows; it judges no figure."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import inference, peers, predicting
from benchmarks.inference import Case, as_json, as_markdown, matrix_peak, measure, operations
from benchmarks.peers import OURS, PEERS, Setting
from benchmarks.predicting import Job, Photographs
from vitconvert.api import load_checkpoint
from vitconvert.demo.demonstration import DIGITS
from vitconvert.model import FastViT, ViT

TINIEST = "test_vit"  # of timm: six blocks of width 64, images of 160 pixels


@pytest.fixture
def make_setting(tmp_path):
    def make(dtype="float32", device="cpu"):
        return Setting(folder=tmp_path, architecture=TINIEST, device=device, dtype=dtype, threads=1)

    return make


@pytest.mark.coverage
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_every_project_answers_as_timm_does(dtype, bound, make_setting):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    setting = make_setting(dtype)
    peers.write_weights(setting)
    peers.export_weights(setting)
    first, second = measure("smallest", setting, (1, 3), 2)
    titles = [peer.title for peer in PEERS if peer.suits(setting) and not peer.missing]
    assert {"vitconvert fast", "vitconvert", "timm", "transformers"} <= set(titles)
    assert (first.title, second.title) == ("smallest, 1", "smallest, 3")
    for case in (first, second):
        assert list(case.seconds) == titles
        assert all(len(found) == 2 and min(found) > 0 for found in case.seconds.values())
        assert set(case.difference) == set(titles) - {"timm", "vit-pytorch"}
        assert max(case.difference.values()) < bound
        assert case.memory == {}
    assert first.operations["vitconvert fast"] < first.operations["vitconvert"]


@pytest.mark.coverage
def test_everybody_answers_for_photographs(make_setting, tmp_path):
    setting = make_setting()
    peers.write_weights(setting)
    photographs = predicting.make_photographs(tmp_path, (50, 37), 3)
    job = Job(title="three", architecture=TINIEST, photographs=photographs)
    weights = {TINIEST: tmp_path / "timm"}
    for found in (
        predicting.measure_processes(weights, [job], 1, 1),
        predicting.measure_after_start(weights, [job], 1),
    ):
        assert list(found["three"]) == ["vitconvert", "--fast-preprocessing", "timm"]
        assert all(len(one) == 1 and one[0] > 0 for one in found["three"].values())
    assert len(list(tmp_path.glob("50x37-*.jpg"))) == 3


def test_a_process_that_fails_ends_the_benchmark(tmp_path):
    job = Job(title="none", architecture=TINIEST, photographs=(tmp_path / "absent.jpg",))
    with pytest.raises(SystemExit, match=r"vitconvert predict .* failed:\n.*error: "):
        predicting.measure_processes({TINIEST: tmp_path}, [job], 1, 1)


@pytest.mark.parametrize(("kind", "wanted"), [(ViT, None), (FastViT, 1)])
def test_operations_are_those_that_torch_counts(kind, wanted):
    config = load_checkpoint(DIGITS).config
    images = torch.zeros(1, config.in_channels, *config.image_size)
    # torch counts the attention of its plain kernel in every version.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        kind(config).requires_grad_(True)(images)  # of oneDNN's it knows nothing
    assert operations(config, wanted=wanted) == counter.get_total_flops()


@pytest.fixture
def cases():
    seconds = {OURS: [0.5, 1.0], "timm": [2.0, 3.0]}
    counted = {OURS: 3e9, "timm": 4e9}
    difference = {OURS: 2e-7}
    return [
        Case(size="tiny", batch=1, seconds=seconds, operations=counted, difference=difference),
        Case(size="tiny", batch=8, seconds=seconds, operations=counted, difference={OURS: 3e-7}),
    ]


def cells(output):
    rows = [line for line in output.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_tables_have_rates_ratios_of_rounds_and_shares_of_the_peak(cases, make_setting):
    jobs = [
        Job(title="one", architecture="a", photographs=(Path("1.jpg"),)),
        Job(title="two", architecture="a", photographs=(Path("1.jpg"), Path("2.jpg"))),
    ]
    one = {"vitconvert": [1.0], "--fast-preprocessing": [0.5], "timm": [4.0]}
    two = {"vitconvert": [2.0], "--fast-preprocessing": [1.0], "timm": [12.0]}
    photographs = Photographs(
        processes=jobs,
        process_seconds={"one": one, "two": two},
        folders=jobs[1:],
        seconds={"two": {**two, "timm": [8.0]}},
    )
    output = as_markdown(cases, 16e9, photographs, make_setting())
    rows = cells(output)
    assert rows[0] == ["ViT, images at once", "vitconvert fast", "timm"]
    assert rows[2:4] == [["tiny, 1", "1.33", "0.4"], ["tiny, 8", "10.7", "3.2"]]
    assert rows[6] == ["tiny, 1", "3.5 (3..4)", "1 (1..1)"]
    assert rows[10] == ["tiny, 1", "25%", "10%"]
    assert rows[-7][0] == "images, whole process, s"
    assert rows[-5:-3] == [
        ["one", "1 (1..1)", "0.5 (0.5..0.5)", "4 (4..4)", "4 (4..4)", "8 (8..8)"],
        ["two", "2 (2..2)", "1 (1..1)", "12 (12..12)", "6 (6..6)", "12 (12..12)"],
    ]
    assert rows[-1] == ["two", "2 (2..2)", "1 (1..1)", "8 (8..8)", "4 (4..4)", "8 (8..8)"]
    assert output.startswith("Images per second, float32, 1 thread. Medians; rounds: 2.\n")
    assert "peak, measured as 16 GFLOP/s." in output
    assert "relative to the largest: vitconvert fast 3.0e-07." in output


def test_json_has_every_figure(cases, make_setting):
    figures = json.loads(as_json(cases, 16e9, None, make_setting()))
    assert figures["cases"][0]["seconds"] == {OURS: [0.5, 1.0], "timm": [2.0, 3.0]}
    assert (figures["peak_flops"], figures["dtype"]) == (16e9, "float32")


def test_projects_that_are_absent_are_named(cases, make_setting, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda package: None if "i" in package else package)
    output = as_markdown(cases, 16e9, None, make_setting())
    assert [line for line in output.splitlines() if line.startswith("Left out")] == [
        "Left out: torchvision, without torchvision.",
        "Left out: vit-pytorch, without vit_pytorch.",
        "Left out: onnxruntime, without onnxruntime and onnxscript.",
        "Left out: OpenVINO, without openvino and onnxscript.",
    ]


def test_memory_of_a_gpu_and_its_precision_are_told(cases, make_setting, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    for case in cases:
        case.memory = {OURS: 12.3, "timm": 45.6}
    output = as_markdown(cases, 16e9, None, make_setting("bfloat16", "cuda"))
    tf32 = "TF32 off in matrix products and on in convolutions"
    assert output.startswith(f"Images per second, bfloat16, a GPU, {tf32}. Medians; rounds: 2.\n")
    assert cells(output)[-1] == ["tiny, 8", "12", "46"]
    assert [peer.title for peer in PEERS if peer.suits(make_setting("float16", "cuda"))] == [
        "vitconvert fast",
        "vitconvert",
        "vitconvert compiled",
        "timm",
        "timm compiled",
        "transformers",
    ]


def test_the_peak_is_a_rate(make_setting):
    assert 1e7 < matrix_peak(make_setting(), 64) < 1e15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "error: --rounds and --threads must be at least 1\n"),
        (["--device", "cuda"], "error: --device cuda: torch sees no such device\n"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["inference", *options])
    with pytest.raises(SystemExit) as ended:
        inference.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(message)
