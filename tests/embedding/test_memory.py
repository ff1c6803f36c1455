"""Memory does not grow with the number of images, nor of shards."""

import os

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.embedding.null_model import NullTask, embed_null
from vitconvert.inference.embed import Embedding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="memory is that of a fork"),
]


class Untouched(NullTask):
    """Features of images that nobody opens."""

    def answers(self, pictures):
        numbers = torch.from_numpy(np.arange(self.width, dtype=np.float32))
        for _ in pictures:
            yield Embedding(path=None, features=numbers)


def peaks(work, *counts):
    """MiB of work of each size, in processes of their own."""
    from tests.hostile.harness import call_limited

    work(1000)  # whatever is imported
    answers = [call_limited(work, count, seconds=60, mebibytes=4096) for count in counts]
    assert [answer.code for answer in answers] == [0] * len(counts), answers
    return [answer.peak_mib for answer in answers]


def listed(count):
    return (f"/nowhere/{number:07d}.jpg" for number in range(count))


def test_memory_does_not_grow_with_the_number_of_shards(tmp_path):
    def work(count):
        task, output = Untouched(width=256), tmp_path / str(count)
        embed_null(output, "-", listed=listed(count), task=task, shard_rows=2000)

    small, large = peaks(work, 10_000, 100_000)
    assert large < small + 30  # all features are 98 MiB


@pytest.mark.coverage
def test_names_that_are_known_take_40_bytes():
    from vitconvert.embedding.shards import Keys

    def work(count):
        group = 1000
        groups = (pa.array(map(str, range(n, n + group))) for n in range(0, count, group))
        known = Keys(groups, count)
        assert known.take(["7", "-7"]) == [True, False]

    small, large = peaks(work, 50_000, 1_000_000)
    assert large < small + 60  # 17 stay
