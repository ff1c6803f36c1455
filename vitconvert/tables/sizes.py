"""The size of every axis, from the shapes of the tensors that name it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vitconvert.tables.axes import Axes


@dataclass(frozen=True)
class Equation:
    """A tensor of this shape is laid out like this."""

    key: str
    axes: Axes
    shape: tuple[int, ...]
    row: str


@dataclass(frozen=True)
class Sizes:
    """What a file's shapes say about its axes."""

    known: Mapping[str, int]
    products: Mapping[tuple[str, ...], int]  # axes of which only the product is known
    conflicts: tuple[Equation, ...] = field(default=())


def solve(equations: Iterable[Equation], given: Mapping[str, int]) -> Sizes:
    """Find the sizes that most tensors agree on, and the tensors that contradict them.

    Axes that stand alone in a dimension are settled first, by the most frequent size, so that
    one misshapen tensor is reported instead of all the others.
    """
    equations = list(equations)
    known = {**_vote(equations), **given}
    products: dict[tuple[str, ...], int] = {}
    conflicts: dict[str, Equation] = {}
    progress = -1
    while progress != len(known):
        progress = len(known)
        products.clear()
        for equation in equations:
            if not _apply(equation, known, products):
                conflicts[equation.key] = equation
    return Sizes(known, products, tuple(conflicts.values()))


def _vote(equations: list[Equation]) -> dict[str, int]:
    ballots: dict[str, Counter[int]] = defaultdict(Counter)
    for equation in equations:
        for dim, size in zip(equation.axes.dims, equation.shape, strict=True):
            if len(dim.axes) == 1 and dim.number == 1:
                ballots[dim.axes[0]][size] += 1
    return {axis: ballot.most_common(1)[0][0] for axis, ballot in ballots.items()}


def _apply(equation: Equation, known: dict[str, int], products: dict[tuple[str, ...], int]) -> bool:
    """Learn from one tensor; False if it contradicts what is known."""
    for dim, size in zip(equation.axes.dims, equation.shape, strict=True):
        unknown = tuple(axis for axis in dim.axes if axis not in known)
        factor = dim.number * math.prod(known[a] for a in dim.axes if a in known)
        if not unknown:
            if factor != size:
                return False
            continue
        rest, remainder = divmod(size, factor) if factor else (0, size)
        if remainder or products.get(unknown, rest) != rest:
            return False
        if len(unknown) == 1:
            known[unknown[0]] = rest
        else:
            products[unknown] = rest
    return True
