"""The benchmark of conversions runs and prints what the README shows; it judges no figure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.converting import JOBS, Proofs, Run, Runs, as_json, as_markdown, as_proof_table
from tests.benchmarks.test_loading import cells, median_in
from tests.packages import without_noise

ROOT = Path(__file__).parents[2]


@pytest.mark.coverage
def test_table_has_every_conversion_and_its_ratio_to_the_copy() -> None:
    pytest.importorskip("transformers")
    options = ["--architecture", "vit_tiny_patch16_224", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.converting", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, without_noise(done.stderr)) == (0, "")
    _, _, *rows = [row for row in cells(done.stdout) if len(row) == 5]
    assert [row[0] for row in rows] == [job.title for job in JOBS.values()]
    assert all(median_in(cell) > 0 for row in rows for cell in row[1:] if cell)
    assert [row[0] for row in rows if not row[-1]] == [JOBS["copy"].title]
    assert f"Command: `python -m benchmarks.converting {' '.join(options)}`" in done.stdout


RUNS: Runs = {
    "copy": [
        Run(work=2.0, process=2.0, resident=None),
        Run(work=4.0, process=4.0, resident=None),
    ],
    "split": [
        Run(work=1.0, process=3.0, resident=40.0),
        Run(work=2.0, process=4.0, resident=50.0),
    ],
}


def test_ratios_are_taken_within_each_round() -> None:
    output = as_markdown("vit_base_patch16_224", 330.2, RUNS)
    copy, split = cells(output)[2:4]
    assert copy[1:] == ["3 (2..4)", "1 (1..1)", "1 (1..1)", ""]
    assert split[1:] == ["1.5 (1..2)", "0.5 (0.5..0.5)", "1.25 (1..1.5)", "45 (40..50)"]
    assert output.endswith("\nLeft out: transformers is not installed.")


def test_json_has_every_figure() -> None:
    figures = json.loads(as_json("vit_base_patch16_224", 330.2, RUNS))
    title = JOBS["split"].title
    assert figures["runs"][title][1] == {"work": 2.0, "process": 4.0, "resident": 50.0}


def test_a_proof_is_measured_against_the_imports_of_its_round() -> None:
    found: Proofs = {"timm to hf": [((2.0, 1.0), (3.0, 4.0)), ((4.0, 1.0), (4.0, 4.0))]}
    _, _, row = cells(as_proof_table("vit_tiny_patch16_224", found))
    assert row[1:] == ["3.5 (3..4)", "1.25 (1..1.5)", "4 (4..4)", "4 (4..4)"]
