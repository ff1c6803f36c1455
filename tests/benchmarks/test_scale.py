"""The benchmark of embedding at scale runs and prints what the README shows."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale import MANY_SHARDS, NPZ, ONE_SHARD, Cluster
from tests.benchmarks.test_loading import cells

ROOT = Path(__file__).parents[2]


def test_the_slowest_part_limits_a_cluster():
    one = Cluster(nodes=1, decode_s=0.006, driver_s=0.002)
    assert one.decoding == pytest.approx(16_000)
    assert one.computing == (pytest.approx(45_211, rel=1e-3), pytest.approx(79_120, rel=1e-3))
    assert (one.rate, one.row()[3]) == (one.decoding, "decoding")
    more = Cluster(nodes=1, decode_s=0.006, driver_s=0.002, cores=400)
    assert (more.rate, more.row()[3]) == (more.computing[0], "GPUs")
    assert Cluster(nodes=8, decode_s=0.006, driver_s=0.002).rate == pytest.approx(8 * one.rate)
    assert one.driver == pytest.approx(16_000 / 65_536 * 0.002)


@pytest.mark.slow
def test_tables_have_every_output_and_every_engine(monkeypatch):
    options = ["--rounds", "1", "--images", "100", "--rows", "800", "--no-ray"]
    command = [sys.executable, "-m", "benchmarks.scale", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = cells(done.stdout)
    assert [row[0] for row in rows if len(row) == 5][2:] == [NPZ, ONE_SHARD, MANY_SHARDS]
    assert [row[0] for row in rows if len(row) == 8][2:] == ["1", "8", "100"]
