"""The benchmark of conversions runs and prints what the README shows; it judges no figure."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.converting import JOBS
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
