"""The benchmark of embedding at scale measures something."""

from benchmarks.scale import measure_machinery
from vitconvert.embedding.shards import check


def test_the_machinery_is_measured_without_a_model(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.jpg").touch()
    assert 0 < measure_machinery(tmp_path, tmp_path / "out") < 1
    assert check(str(tmp_path / "out")).whole
