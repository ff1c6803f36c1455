"""The benchmark of runtimes prints what the README shows; it judges no figure."""

import json

import pytest
import torch

from benchmarks import peers, runtimes
from benchmarks.peers import Setting
from benchmarks.runtimes import Case, Start, as_json, as_markdown, measure


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
