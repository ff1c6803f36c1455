"""A minute of `tests/hostile/fuzz.py`, always with the same cases."""

import pytest

from tests.hostile.fuzz import fuzz, kinds, table

SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds())
def test_no_changed_file_is_read_otherwise(name):
    count = fuzz(name, seed=12, seconds=SECONDS / len(kinds()))
    assert not count.bad, "\n".join(count.problems)
    assert count.refused, table({name: count})
    assert count.equal, table({name: count})
