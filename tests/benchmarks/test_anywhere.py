"""The table of other machines has a row for each, and says where `auto` is at its worst."""

from benchmarks.anywhere import tables


def test_the_least_of_auto_is_told():
    found = {
        "as it is": {"tiny, 1": {"torch": [0.5, 0.6], "auto": [1.1, 1.0]}},
        "1 thread": {"tiny, 1": {"torch": [1.0, 1.2], "auto": [0.95, 0.99]}},
    }
    lines = tables(found).splitlines()
    assert lines[4] == "| as it is | tiny, 1 | 0.55 (0.5..0.6) | 1.05 (1..1.1) |"
    assert "The least of `auto` is 0.97 (tiny, 1, 1 thread)." in lines
