"""Answers that a user may give to the questions about a checkpoint, to try whether one helps."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.config.vocabularies import VOCABULARIES
from vitconvert.facts.gathering import Gathered
from vitconvert.tables.binding import Binding

_KINDS = {one.name: one.type for one in dataclasses.fields(ViTConfig)}
_MOST = 400  # combinations that are tried
_USUAL_PATCH, _USUAL_EPS = 16, 1e-6


def possible_answers(known: Gathered, binding: Binding) -> Iterator[Mapping[str, object]]:
    """Values for every field that is asked, as many as tell whether an answer helps.

    Nothing is yielded beyond some hundreds. Where a field may be anything, each try has one value
    for it: what the tensors lack does not depend on it.
    """
    fields = list(known.asked)
    every = [_values(field, known, binding) for field in fields]
    for values in itertools.islice(itertools.product(*every), _MOST):
        yield dict(zip(fields, values, strict=True))


def _values(field: str, known: Gathered, binding: Binding) -> Sequence[object]:
    if field in VOCABULARIES:
        return VOCABULARIES[field]
    if field == "image_size":
        return _image_sizes(known, binding)
    kind = _KINDS[field]
    if kind is bool:
        return (True, False)
    if kind is float:
        return (_USUAL_EPS,)
    divisors = _divisors(_value(known, "embed_dim", 1))
    if kind is int:
        return [*divisors, 0]
    return [(n, n) for n in (_USUAL_PATCH, *divisors)]


def _value(known: Gathered, field: str, default: Any) -> Any:
    return known.facts[field].value if field in known.facts else default


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(max(number, 0)) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _image_sizes(known: Gathered, binding: Binding) -> list[tuple[int, int]]:
    """The sizes of images whose patches may have the positions that are stored."""
    height, width = _value(known, "patch_size", (_USUAL_PATCH, _USUAL_PATCH))
    positions = binding.sizes.known.get("position")
    if positions is None:
        return [(height, width), (_USUAL_PATCH * height, _USUAL_PATCH * width)]
    prefix = int(_value(known, "class_token", False)) + _value(known, "num_registers", 0)
    return [
        (rows * height, patches // rows * width)
        for patches in dict.fromkeys((positions - prefix, positions - 1, positions))
        for rows in sorted(_divisors(patches), key=lambda rows: abs(rows - patches // rows))
    ]
