"""The benchmark of runtimes prints what the README shows; it judges no figure."""

import json
import shutil

import pytest
import torch

from benchmarks import peers, runtimes
from benchmarks.peers import Setting
from benchmarks.runtimes import (
    Case,
    Start,
    Way,
    agreements,
    as_json,
    as_markdown,
    dtypes_in_words,
    measure,
    ways,
)
from vitconvert.demo.demonstration import DIGITS
from vitconvert.runtimes.engines import TORCH


@pytest.fixture
def figures():
    seconds = {"torch": [2.0, 4.0], "openvino": [1.0, 1.0], "auto": [1.0, 1.0]}
    case = Case(title="tiny, 8", batch=8, seconds=seconds)
    process = {"torch": [1.0], "openvino": [3.0], "auto": [2.0]}
    return [case], [Start(title="tiny", export={"openvino": 9.5}, process=process)]


def test_tables_compare_with_the_fastest_of_the_others(figures):
    output = as_markdown(*figures, 3)
    rows = [line for line in output.splitlines() if line.startswith("| tiny")]
    assert rows == [
        "| tiny, 8 | 2.67 | 8 | 8 |",
        "| tiny, 8 | 0.375 (0.25..0.5) | 3 (2..4) | 1 (1..1) |",
        "| tiny | 9.5 | 1 (1..1) | 3 (3..3) | 2 (2..2) |",
    ]
    assert f"{torch.get_num_threads()} threads, 3 other processes." in output
    assert "Left out: onnxruntime, which is not installed." in output
    assert json.loads(as_json(*figures, 3))["cases"][0]["seconds"]["torch"] == [2.0, 4.0]


@pytest.mark.slow
def test_every_runtime_that_is_installed_is_measured(tmp_path, monkeypatch):
    monkeypatch.delitem(runtimes.FORMATS, "openvino")  # two exports take long
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    setting = Setting(
        folder=tmp_path, architecture="test_vit", device="cpu", dtype="float32", threads=1
    )
    peers.write_weights(setting)
    (case,) = measure("smallest", setting, (2,), 1)
    assert list(case.seconds) == ["torch", *runtimes.installed(), "auto"]
    assert case.title == "smallest, 2"


def test_fewer_bits_are_compared_with_float32_in_the_same_runtime():
    seconds = {"torch float32": [4.0, 4.0], "torch bfloat16": [2.0, 1.0]}
    seconds |= {"openvino float32": [3.0, 3.0], "openvino int8": [1.0, 1.0]}
    case = Case(title="tiny, 8", batch=8, seconds=seconds)
    weights = {"tiny": dict(zip(seconds, (21.0, 10.5, 22.0, 6.5), strict=True))}
    output = "\n".join(dtypes_in_words([case], weights, []))
    for line in (
        "| torch float32 | 2 | 21.0 |",
        "| openvino int8 | 8 | 6.5 |",
        "| torch bfloat16 | 3 (2..4) |",
        "| openvino int8 | 3 (3..3) |",
        "Left out: agreement, without --trained and --images.",
    ):
        assert line in output
    assert "| torch float32 | 1 (1..1) |" not in output
    assert "avx512_vnni" in output


def test_agreement_is_that_of_trained_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "ways", lambda: [Way(runtime=TORCH, dtype="bfloat16")])
    for path in (DIGITS / "samples").glob("*.png"):
        for copy in range(5):
            (tmp_path / path.stem).mkdir(exist_ok=True)
            shutil.copy(path, tmp_path / path.stem / f"{copy}.png")
    (row,) = agreements(tmp_path, str(DIGITS), str(tmp_path / "*" / "*.png"), 1)
    assert row[:3] == ["torch bfloat16", "10 of 10 (100.00%)", "100.00%"]
    assert 0.99 < float(row[4]) <= 1 and 1e-4 < float(row[5]) < 0.05


def test_ways_are_those_of_installed_runtimes():
    titles = [way.title for way in ways()]
    assert titles[:2] == ["torch float32", "torch bfloat16"]
    for name in runtimes.installed():
        assert f"{name} float32" in titles
    assert ("onnxruntime int8, dynamic" in titles) == ("onnxruntime" in runtimes.installed())
