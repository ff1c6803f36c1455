"""The size of every axis, from the shapes of the tensors that name it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vitconvert.tables.axes import Axes, Dim


@dataclass(frozen=True)
class Equation:
    """A tensor of this shape is laid out like this."""

    axes: Axes
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """What a file's shapes say about its axes."""

    known: Mapping[str, int]
    products: Mapping[frozenset[str], int]  # axes of which only the product is known

    def allow(self, axes: Axes, shape: tuple[int, ...]) -> bool:
        """Whether a tensor may have this layout and this shape."""
        return all(self._size(dim) == size for dim, size in zip(axes.dims, shape, strict=True))

    def _size(self, dim: Dim) -> int:
        unknown = frozenset(dim.axes).difference(self.known)
        known = math.prod(self.known[axis] for axis in dim.axes if axis in self.known)
        return dim.number * known * (self.products.get(unknown, 0) if unknown else 1)


def solve(equations: Iterable[Equation], given: Mapping[str, int]) -> Sizes:
    """Find the sizes that most tensors agree on.

    A vote, so that one misshapen tensor is reported instead of all the others. What is settled
    divides the dimensions that hold several axes, until nothing new comes of it.
    """
    equations, known = list(equations), dict(given)
    while True:
        winners = _vote(equations, known)
        found = {axis: size for axes, size in winners.items() if len(axes) == 1 for axis in axes}
        if not found:
            return Sizes(known, winners)
        known |= found


def _vote(equations: list[Equation], known: Mapping[str, int]) -> dict[frozenset[str], int]:
    """The most frequent size of each group of axes that share a dimension and are not known."""
    ballots: dict[frozenset[str], Counter[int]] = defaultdict(Counter)
    for equation in equations:
        for dim, size in zip(equation.axes.dims, equation.shape, strict=True):
            unknown = frozenset(dim.axes).difference(known)
            factor = math.prod(known[axis] for axis in dim.axes if axis in known)
            if unknown and factor and size % factor == 0:
                ballots[unknown][size // factor] += 1
    return {axes: ballot.most_common(1)[0][0] for axes, ballot in ballots.items()}
