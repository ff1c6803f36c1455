"""The sizes of axes that shapes agree on."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vitconvert.tables.axes import Axes, Dim

Shape = tuple[int, ...]


class Equation(NamedTuple):
    """A tensor of this shape is laid out like this."""

    axes: Axes
    shape: Shape


@dataclass(frozen=True)
class Sizes:
    """What a file's shapes say about its axes."""

    known: Mapping[str, int]
    products: Mapping[frozenset[str], int]  # axes of which only the product is known
    _found: dict[tuple[str, ...], int] = field(default_factory=dict, repr=False, compare=False)

    def shape(self, axes: Axes) -> Shape:
        """The shape of a tensor of this layout; a size is 0 where nothing tells it."""
        return tuple(map(self._size, axes.dims))

    def _size(self, dim: Dim) -> int:
        if dim.axes not in self._found:
            self._found[dim.axes] = self._product(dim.axes)
        return dim.before + dim.number * self._found[dim.axes]

    def _product(self, axes: tuple[str, ...]) -> int:
        unknown = frozenset(axes).difference(self.known)
        known = math.prod(self.known[axis] for axis in axes if axis in self.known)
        return known * (self.products.get(unknown, 0) if unknown else 1)


def solve(equations: Iterable[Equation], given: Mapping[str, int]) -> Sizes:
    """Find the sizes that most tensors agree on.

    A vote, so that one misshapen tensor is reported instead of all the others. What is settled
    divides the dimensions that hold several axes, until nothing new comes of it.
    """
    # Blocks are alike, so most dimensions of one size are there many times.
    dims = Counter(
        (dim.axes, max(size - dim.before, 0))
        for equation in equations
        for dim, size in zip(equation.axes.dims, equation.shape, strict=True)
    )
    known = dict(given)
    while True:
        winners = _vote(dims, known)
        found = {axis: size for axes, size in winners.items() if len(axes) == 1 for axis in axes}
        if not found:
            return Sizes(known, winners)
        known |= found


def _vote(
    dims: Mapping[tuple[tuple[str, ...], int], int], known: Mapping[str, int]
) -> dict[frozenset[str], int]:
    """The most frequent size of each group of axes that share a dimension and are not known."""
    ballots: dict[frozenset[str], Counter[int]] = defaultdict(Counter)
    for (axes, size), count in dims.items():
        unknown = frozenset(axes).difference(known)
        factor = math.prod(known[axis] for axis in axes if axis in known)
        if unknown and factor and size % factor == 0:
            ballots[unknown][size // factor] += count
    return {axes: ballot.most_common(1)[0][0] for axes, ballot in ballots.items()}
