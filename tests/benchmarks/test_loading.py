"""The benchmark of loading runs and prints what the README shows; it judges no figure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.loading import PACKAGES, TIMM_FILE, Load, Loads, as_json, as_markdown
from benchmarks.measuring import machine, memory_of, peak_until_exit, ratios, spread, table
from tests.packages import without_noise

ROOT = Path(__file__).parents[2]
PAIRS = [
    ("timm, safetensors", "timm"),
    ("transformers, safetensors", "transformers"),
    ("Google, npz", "timm"),
]
OURS = ("vitconvert", "vitconvert, fast=True")


def cells(output: str) -> list[list[str]]:
    rows = [line for line in output.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.coverage
def test_table_has_every_loader_and_the_ratio_to_its_peer() -> None:
    pytest.importorskip("transformers")
    options = ["--tiny", "--rounds", "1", "--threads", "1"]
    command = [sys.executable, "-m", "benchmarks.loading", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, without_noise(done.stderr)) == (0, "")
    output = done.stdout
    rows = cells(output)
    header, _, *loading = [row for row in rows if len(row) == 6]
    assert header[:3] == ["file", "loaded by", "ready, s"]
    assert [(row[0], row[1]) for row in loading] == [
        (file, loader)
        for file, peer in PAIRS
        for loader in (*OURS, peer, *(f"*{ours} / {peer}*" for ours in OURS))
    ]
    assert all(median_in(cell) > 0 for row in loading for cell in row[2:])
    assert [row[0] for row in rows if len(row) == 3][2:] == [
        '`python -c "import click"`',
        '`python -c "import vitconvert"`',
        "`vitconvert --help`",
        '`python -c "import torch"`',
    ]
    assert f"Machine: {machine(PACKAGES)}." in output
    assert "Command: `python -m benchmarks.loading --tiny --rounds 1 --threads 1`" in output


def median_in(cell: str) -> float:
    return float(cell.split()[0])


@pytest.fixture
def loads() -> Loads:
    slow = [Load(ready=2.0, answered=4.0, anonymous=300.0, resident=600.0)] * 2
    fast = [
        Load(ready=1.0, answered=2.0, anonymous=30.0, resident=300.0),
        Load(ready=0.5, answered=4.0, anonymous=60.0, resident=300.0),
    ]
    return {**{(TIMM_FILE, ours): fast for ours in OURS}, (TIMM_FILE, "timm"): slow}


STARTS = {'python -c "import click"': [0.1, 0.2], "vitconvert --help": [0.2, 0.3]}


def test_ratios_in_the_table_are_taken_within_each_round(loads: Loads) -> None:
    output = as_markdown("vit_base_patch16_224", 330.2, loads, STARTS, ["transformers"])
    ours, _, theirs, ratio, fast_ratio = cells(output)[2:7]
    assert ours[1:] == ["vitconvert", "0.75 (0.5..1)", "3 (2..4)", "45 (30..60)", "300 (300..300)"]
    assert theirs[1:] == ["timm", "2 (2..2)", "4 (4..4)", "300 (300..300)", "600 (600..600)"]
    assert (ratio[1], fast_ratio[1]) == tuple(f"*{ours} / timm*" for ours in OURS)
    assert ratio[2:] == ["0.375 (0.25..0.5)", "0.75 (0.5..1)", "0.15 (0.1..0.2)", "0.5 (0.5..0.5)"]
    assert cells(output)[-1] == ["`vitconvert --help`", "0.25 (0.2..0.3)", "1.75 (1.5..2)"]
    assert output.endswith("\nLeft out: transformers is not installed.")


def test_json_has_every_figure_of_every_round(loads: Loads) -> None:
    figures = json.loads(as_json("vit_base_patch16_224", 330.2, loads, STARTS, []))
    assert figures["loads"][0] == {
        "file": "timm, safetensors",
        "loader": "vitconvert",
        "rounds": [
            {"ready": 1.0, "answered": 2.0, "anonymous": 30.0, "resident": 300.0},
            {"ready": 0.5, "answered": 4.0, "anonymous": 60.0, "resident": 300.0},
        ],
    }
    assert figures["starts_s"] == STARTS
    assert figures["machine"] == machine(PACKAGES)


def test_no_rounds_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.loading", "--rounds", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("error: --rounds must be at least 1\n")


def test_peak_is_found_after_the_memory_was_given_back() -> None:
    code = "input(); a = bytearray(b'1') * 64_000_000; import time; time.sleep(0.1); del a"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    before = memory_of(process.pid)
    process.stdin.write("go\n")
    process.stdin.close()
    peak = peak_until_exit(process)
    assert before is not None
    assert 60 < peak.anonymous - before.anonymous < 80
    assert peak.resident > peak.anonymous


def test_memory_of_a_process_that_has_ended_is_unknown() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert memory_of(process.pid) is None
    assert memory_of(process.pid) is None


def test_spread_shows_the_median_between_the_extremes() -> None:
    assert spread([0.30, 0.1234, 0.2]) == "0.2 (0.123..0.3)"
    assert spread([331.7, 98.76, 1234.5]) == "332 (98.8..1234)"


def test_ratios_pair_the_rounds() -> None:
    assert ratios([1, 6], [2, 3]) == [0.5, 2]


def test_table_is_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
