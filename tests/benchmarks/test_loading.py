"""The benchmark of loading runs and prints what the README shows; it judges no figure."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.loading import PACKAGES
from benchmarks.measuring import machine
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
