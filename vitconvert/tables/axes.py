"""Named axes: `(qkv head dim) width` says what every dimension of a tensor is made of.

    axes = dim*                          separated by blanks
    dim  = name | number | (number | "shared") "+" name | name "+" | "~" name | "(" name* ")"

A number is a dimension of exactly that size which carries nothing, mostly 1; a larger one counts
frames of a video, of which an image fills each. `2+position` is two rows longer than the axis: they
come first, and carry nothing. `shared+position` is one row longer: it comes first, and is added to
all others. `position+` has at least as many rows; those beyond the axis are surplus, and cut. The
first row of `~position` is the last in theirs. The order of names inside parentheses is from the
slowest to the fastest, as in einops. Two layouts of one tensor name the same axes, and the
permutation between them follows.
"""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

# Braces hold an index in the name of an axis: `mid{s}`.
_NAME = r"[A-Za-z_][A-Za-z0-9_{}]*"
_TOKEN = re.compile(rf"\s*([()]|{_NAME}\+(?!\w)|~{_NAME}|(?:(?:[0-9]+|shared)\+)?{_NAME}|[0-9]+\b)")


@dataclass(frozen=True)
class Dim:
    """One dimension: the product of its axes, or a fixed number."""

    axes: tuple[str, ...] = ()
    number: int = 1
    before: int = 0  # rows in front of its one axis
    shared: bool = False  # whether the row in front is added to the others
    surplus: bool = False  # whether there may be rows beyond the axis
    turned: bool = False  # whether the first row is the last

    def size(self, sizes: Mapping[str, int]) -> int:
        """Number of entries, given the size of each axis; without surplus ones."""
        return self.before + self.number * math.prod(sizes[axis] for axis in self.axes)

    def __str__(self) -> str:
        if not self.axes:
            return str(self.number)
        text = " ".join(self.axes)
        if self.before:
            return f"{'shared' if self.shared else self.before}+{text}"
        if self.surplus:
            return f"{text}+"
        if self.turned:
            return f"~{text}"
        return f"({text})" if len(self.axes) > 1 else text


@dataclass(frozen=True)
class Axes:
    """The dimensions of a tensor, each made of named axes."""

    dims: tuple[Dim, ...]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Every axis, slowest first."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    @functools.cached_property
    def fixed(self) -> tuple[tuple[int, int], ...]:
        """Dimensions that are numbers: the place of each, and the number."""
        return tuple((place, dim.number) for place, dim in enumerate(self.dims) if not dim.axes)

    @functools.cached_property
    def frames(self) -> tuple[tuple[int, int], ...]:
        """Dimensions that count frames: the place of each, and how many."""
        return tuple((place, number) for place, number in self.fixed if number > 1)

    @functools.cached_property
    def shared(self) -> tuple[int, ...]:
        """The places of dimensions whose first row is added to the others."""
        return tuple(place for place, dim in enumerate(self.dims) if dim.shared)

    @functools.cached_property
    def surplus(self) -> tuple[tuple[int, str], ...]:
        """Dimensions that may have rows beyond their axis: the place of each, and the axis."""
        return tuple((place, dim.axes[0]) for place, dim in enumerate(self.dims) if dim.surplus)

    @functools.cached_property
    def turned(self) -> tuple[int, ...]:
        """The places of dimensions whose first row is the last."""
        return tuple(place for place, dim in enumerate(self.dims) if dim.turned)

    @functools.cached_property
    def upright(self) -> "Axes":
        """The layout with the first rows in front."""
        return Axes(tuple(replace(dim, turned=False) for dim in self.dims))

    @property
    def summed(self) -> bool:
        """Whether an image's numbers are sums of these."""
        return bool(self.frames or self.shared)

    @functools.cached_property
    def one_frame(self) -> "Axes":
        """The layout for an image alone."""
        return Axes(tuple(dim if dim.axes else replace(dim, number=1) for dim in self.dims))

    @functools.cached_property
    def origins(self) -> tuple[tuple[str, int], ...]:
        """Axes with rows in front, and where in their dimension they begin."""
        return tuple((dim.axes[0], dim.before) for dim in self.dims if dim.before)

    @functools.cached_property
    def indexed(self) -> tuple[str, ...]:
        """Axes whose names hold an index: `mid{s}`."""
        return tuple(axis for axis in self.names if "{" in axis)

    @functools.cached_property
    def step(self) -> "Axes":
        """The layout of one step along the first axis."""
        return self.without(self.names[0])

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The tensor's shape, given the size of each axis."""
        return tuple(dim.size(sizes) for dim in self.dims)

    def takes(self, shape: "Shape", wanted: "Shape") -> bool:
        """Whether a tensor has the wanted shape, or surplus rows beyond it."""
        return len(shape) == len(wanted) and all(
            found >= size if dim.surplus else found == size
            for dim, found, size in zip(self.dims, shape, wanted, strict=True)
        )

    def without(self, axis: str) -> "Axes":
        """The layout of one step along `axis`; a dimension made of it alone disappears."""
        kept = (replace(dim, axes=tuple(a for a in dim.axes if a != axis)) for dim in self.dims)
        pairs = zip(self.dims, kept, strict=True)
        return Axes(tuple(new for old, new in pairs if new.axes or not old.axes))

    def rename(self, names: Mapping[str, str]) -> "Axes":
        """The same layout with other axis names."""
        dims = (replace(dim, axes=tuple(names.get(a, a) for a in dim.axes)) for dim in self.dims)
        return Axes(tuple(dims))

    def __str__(self) -> str:
        return " ".join(map(str, self.dims))


@functools.cache
def parse_axes(text: str) -> Axes:
    """Parse a layout.

    Raises:
        ValueError: The text is not a layout, or names an axis twice.
    """
    dims: list[Dim] = []
    group: list[str] | None = None  # the names since a "("
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if not match:
            raise ValueError(f"{text[position:].strip()!r} is not an axis")
        token, position = match[1], match.end()
        if group is not None and token == ")":
            dims.append(Dim(tuple(group)))
            group = None
        elif group is not None:
            if token[0] in "(~" or "+" in token or token[0].isdigit():
                raise ValueError(f"{token!r} inside parentheses: only names can be there")
            group.append(token)
        elif token == "(":
            group = []
        elif token == ")":
            raise ValueError("a ')' without its '('")
        elif token.isdigit():
            dims.append(Dim(number=int(token)))
        elif token.startswith("~"):
            dims.append(Dim((token[1:],), turned=True))
        elif token.endswith("+"):
            dims.append(Dim((token[:-1],), surplus=True))
        else:
            before, _, name = token.rpartition("+")
            shared = before == "shared"
            dims.append(Dim((name,), before=1 if shared else int(before or 0), shared=shared))
    if group is not None:
        raise ValueError("a '(' without its ')'")
    axes = Axes(tuple(dims))
    for name, count in Counter(axes.names).items():
        if count > 1:
            raise ValueError(f"axis {name!r} appears twice in {text.strip()!r}")
    return axes


Shape = tuple[int, ...]


class Equation(NamedTuple):
    """A tensor of this shape is laid out like this."""

    axes: Axes
    shape: Shape


@dataclass(frozen=True)
class Sizes:
    """The sizes of axes that the shapes of a file show."""

    known: Mapping[str, int]
    products: Mapping[frozenset[str], int]  # axes of which only the product is known
    _found: dict[tuple[str, ...], int] = field(default_factory=dict, repr=False, compare=False)

    def shape(self, axes: Axes) -> Shape:
        """The shape of a tensor of this layout; a size is 0 where nothing tells it."""
        return tuple(map(self._size, axes.dims))

    def _size(self, dim: Dim) -> int:
        # Blocks are alike: the same few products are asked for hundreds of times.
        if dim.axes not in self._found:
            unknown = frozenset(dim.axes).difference(self.known)
            known = math.prod(self.known[axis] for axis in dim.axes if axis in self.known)
            self._found[dim.axes] = known * (self.products.get(unknown, 0) if unknown else 1)
        return dim.before + dim.number * self._found[dim.axes]


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
        if not dim.surplus
    )
    known = dict(given)
    while True:
        # The sizes of each group of axes that share a dimension and are not known.
        ballots: dict[frozenset[str], Counter[int]] = defaultdict(Counter)
        for (axes, size), count in dims.items():
            unknown = frozenset(axes).difference(known)
            factor = math.prod(known[axis] for axis in axes if axis in known)
            if unknown and factor and size % factor == 0:
                ballots[unknown][size // factor] += count
        # A tie goes to the size that stands first in the file.
        winners = {group: ballot.most_common(1)[0][0] for group, ballot in ballots.items()}
        found = {axis: size for group, size in winners.items() if len(group) == 1 for axis in group}
        if not found:
            return Sizes(known, winners)
        known |= found
