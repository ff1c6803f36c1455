"""A minute of `tests/hostile/fuzz.py`, always with the same cases."""

import pytest

from tests.hostile.fuzz import fuzz, table
from tests.hostile.kinds import KINDS

SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_changed_file_is_read_otherwise(name):
    count = fuzz(name, seed=12, seconds=SECONDS / len(KINDS))
    assert not count.bad, "\n".join(count.problems)
    assert count.refused, table({name: count})
    assert count.equal, table({name: count})
