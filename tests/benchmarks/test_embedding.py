"""The benchmark of embedding's parts: its limit, and that each part is measured by itself."""

import pytest

from benchmarks.embedding import Rates, as_markdown, measure_stages, one_thread
from benchmarks.predicting import make_photographs
from vitconvert.api import load_checkpoint
from vitconvert.demo.demonstration import DIGITS


def test_the_limit_is_of_parts_that_share_the_processors():
    rates = Rates(decoding=300, model=100, embed={"folder": [60, 74, 72]})
    assert rates.limit == pytest.approx(75)
    row = as_markdown({}, {"tiny": rates}, {"tiny": 10.0}, 0.1, 3).splitlines()[-4]
    assert row == "| tiny | 300 | 100 | 75 | 72 (60..74), 96% |"


def test_each_stage_is_measured(tmp_path):
    make_photographs(tmp_path, (1200, 900), 3)
    seen = []
    preprocessing = load_checkpoint(DIGITS).preprocessing
    stages = measure_stages(tmp_path, preprocessing)
    assert all(value > 0 for value in vars(stages).values())
    one_thread(seen.append, [1, 2], images=2)
    assert seen == [1, 1, 2]  # the first once more, for what is made once
