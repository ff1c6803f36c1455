import threading
import time
from collections.abc import Iterator

import pytest

from vitconvert.inference import ahead
from vitconvert.inference.ahead import mapped_ahead


@pytest.fixture(autouse=True)
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "processors", lambda: 3)


def test_results_keep_the_order_of_the_items() -> None:
    def late_if_early(n: int) -> int:
        time.sleep(0.002 * (7 - n % 7))
        return n * n

    assert list(mapped_ahead(late_if_early, range(40), ahead=5)) == [n * n for n in range(40)]


def test_items_are_worked_on_at_once() -> None:
    together = threading.Barrier(3)
    assert len(list(mapped_ahead(lambda _: together.wait(timeout=10), range(6), ahead=3))) == 6


def test_no_more_items_are_taken_than_allowed() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(100):
            taken += 1
            yield n

    results = mapped_ahead(abs, items(), ahead=4)
    for n in range(20):
        assert next(results) == n
        assert taken == n + 5
    results.close()  # type: ignore[attr-defined]
    assert taken == 24


def test_an_error_is_raised_in_its_turn() -> None:
    results = mapped_ahead(lambda n: 6 // n, [3, 2, 0, 1], ahead=9)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_threads_end_with_whoever_needed_them() -> None:
    before = threading.active_count()
    results = mapped_ahead(abs, range(9), ahead=2)
    next(results)
    assert threading.active_count() > before
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
