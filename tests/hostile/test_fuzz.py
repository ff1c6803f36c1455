"""A sample of `tests/hostile/fuzz.py`, always the same cases."""

import pytest

from tests.hostile.fuzz import fuzz, table
from tests.hostile.kinds import KINDS

FEWER = {"parity": 8}  # a whole comparison each


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_changed_file_is_read_otherwise(name):
    cases = FEWER.get(name, 400)
    count = fuzz(name, seed=12, cases=cases)
    assert not count.bad, "\n".join(count.problems)
    assert count.tried == cases, table({name: count})
    assert count.refused and count.equal, table({name: count})
