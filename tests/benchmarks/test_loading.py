"""The benchmark of loading runs and prints what the README shows; it judges no figure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measuring import machine, memory_of, peak_until_exit, ratios, spread, table

ROOT = Path(__file__).parents[2]
PAIRS = [
    ("timm, safetensors", "timm"),
    ("transformers, safetensors", "transformers"),
    ("Google, npz", "timm"),
]


def run_benchmark(*options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.loading", "--tiny", "--rounds", "1", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(output: str) -> list[list[str]]:
    rows = [line for line in output.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.slow
def test_table_has_every_loader_and_the_ratio_to_its_peer() -> None:
    pytest.importorskip("transformers")
    output = run_benchmark("--threads", "1")
    rows = cells(output)
    names = [(row[0], row[1]) for row in rows if len(row) == 6]
    assert names == [
        ("file", "loaded by"),
        ("---", "---:"),
        *(
            (file, loader)
            for file, peer in PAIRS
            for loader in ("vitconvert", peer, f"*vitconvert / {peer}*")
        ),
    ]
    assert [row[0] for row in rows if len(row) == 3][2:] == [
        '`python -c "import click"`',
        '`python -c "import vitconvert"`',
        "`vitconvert --help`",
        '`python -c "import torch"`',
    ]
    assert f"Machine: {machine(['torch', 'timm', 'transformers', 'safetensors'])}." in output
    assert "Command: `python -m benchmarks.loading --tiny --rounds 1 --threads 1`" in output


@pytest.mark.slow
def test_json_has_every_figure_of_every_round() -> None:
    pytest.importorskip("transformers")
    figures = json.loads(run_benchmark("--threads", "1", "--json"))
    assert [(load["file"], load["loader"]) for load in figures["loads"]] == [
        (file, loader) for file, peer in PAIRS for loader in ("vitconvert", peer)
    ]
    for load in figures["loads"]:
        (once,) = load["rounds"]
        assert 0 < once["ready"] < once["answered"]
        assert 0 < once["anonymous"] <= once["resident"]
    assert all(len(seconds) == 1 for seconds in figures["starts_s"].values())


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
        process.wait()
    assert memory_of(process.pid) is None


def test_spread_shows_the_median_between_the_extremes() -> None:
    assert spread([0.30, 0.1234, 0.2]) == "0.2 (0.123..0.3)"
    assert spread([331.7, 98.76, 1234.5]) == "332 (98.8..1234)"


def test_ratios_pair_the_rounds() -> None:
    assert ratios([1, 6], [2, 3]) == [0.5, 2]


def test_table_is_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
