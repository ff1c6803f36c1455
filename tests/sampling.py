"""A sample of many alike cases for every run; the rest is under a marker."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int, marker: str = "coverage") -> list[Any]:
    """Every N-th case as it is, and the others marked."""
    mark = getattr(pytest.mark, marker)
    return [
        case if number % every == 0 else pytest.param(*_values(case), marks=mark)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
