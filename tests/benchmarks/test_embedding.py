"""The benchmark of embedding's parts measures each of them by itself."""

from benchmarks.embedding import measure_stages, one_thread
from benchmarks.predicting import make_photographs
from vitconvert.api import load_checkpoint
from vitconvert.demo.demonstration import DIGITS


def test_each_stage_is_measured(tmp_path):
    make_photographs(tmp_path, (1200, 900), 3)
    seen = []
    preprocessing = load_checkpoint(DIGITS).preprocessing
    stages = measure_stages(tmp_path, preprocessing)
    assert all(value > 0 for value in vars(stages).values())
    one_thread(seen.append, [1, 2], images=2)
    assert seen == [1, 1, 2]  # the first once more, for what is made once
