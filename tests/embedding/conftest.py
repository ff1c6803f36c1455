"""What tests of outputs share."""

import pytest


@pytest.fixture
def whole():
    """Checks that an output is whole, and returns the report."""
    from vitconvert.embedding.shards import check

    def look(output):
        report = check(str(output))
        assert report.problems == ()
        return report

    return look
