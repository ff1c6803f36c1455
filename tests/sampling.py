"""A sample of many alike cases for every run; the rest is under the marker `coverage`."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Every N-th case as it is, and the others marked."""
    return [
        case if number % every == 0 else pytest.param(*_values(case), marks=pytest.mark.coverage)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
