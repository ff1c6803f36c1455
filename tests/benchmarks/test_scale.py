"""The benchmark of embedding at scale: its arithmetic, and that it measures something."""

import pytest

from benchmarks.scale import Cluster, measure_machinery
from vitconvert.embedding.shards import check


def test_the_slowest_part_limits_a_cluster():
    one = Cluster(nodes=1, decode_s=0.006, driver_s=0.002)
    assert one.decoding == pytest.approx(16_000)
    assert one.computing == (pytest.approx(45_211, rel=1e-3), pytest.approx(79_120, rel=1e-3))
    assert (one.rate, one.row()[3]) == (one.decoding, "decoding")
    more = Cluster(nodes=1, decode_s=0.006, driver_s=0.002, cores=400)
    assert (more.rate, more.row()[3]) == (more.computing[0], "GPUs")
    assert Cluster(nodes=8, decode_s=0.006, driver_s=0.002).rate == pytest.approx(8 * one.rate)
    assert one.driver == pytest.approx(16_000 / 65_536 * 0.002)


def test_the_machinery_is_measured_without_a_model(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.jpg").touch()
    assert 0 < measure_machinery(tmp_path, tmp_path / "out") < 1
    assert check(str(tmp_path / "out")).whole
