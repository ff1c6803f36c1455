"""The names of a file, grouped once for all tables: those alike that differ in numbers alone."""

import bisect
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vitconvert.tables.sizes import Shape
from vitconvert.tables.templates import Rest, Template, numbers_of, skeleton_of

_FEW = 64  # more than most models have blocks


class Names:
    """The names and shapes of a header, as every table asks for them.

    Attributes:
        shapes: Of the header's tensors, by name.
        alike: Skeleton -> the names that have it -> the numbers in each.
    """

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = shapes
        alike: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for name in shapes:
            alike[skeleton_of(name)][name] = numbers_of(name)
        self.alike: Mapping[str, Mapping[str, Sequence[str]]] = dict(alike)
        self._held: dict[str, bool] = {}

    def some(self) -> "Names":
        """The first few of those that differ in numbers alone, which tell dialects apart."""
        if all(len(names) <= _FEW for names in self.alike.values()):
            return self
        few = (name for names in self.alike.values() for name in list(names)[:_FEW])
        return Names({name: self.shapes[name] for name in few})

    @functools.cached_property
    def empty(self) -> frozenset[str]:
        """Names of tensors without elements."""
        return frozenset(name for name, shape in self.shapes.items() if 0 in shape)

    def may_have(self, keys: Iterable[Iterable[str]]) -> bool:
        """Whether one of these keys may be there, of each of which some letters are given."""
        return any(all(map(self._hold, letters)) for letters in keys)

    def _hold(self, letters: str) -> bool:
        if letters not in self._held:
            self._held[letters] = letters in self._text
        return self._held[letters]

    def spelled_by(self, template: Template) -> Iterator[str]:
        """The names that are keys of a template."""
        for skeleton in self._skeletons_of(template):
            for name, numbers in self.alike[skeleton].items():
                if template.read(skeleton, numbers) is not None:
                    yield name

    def _skeletons_of(self, template: Template) -> list[str]:
        if not isinstance(template.segments[-1], Rest):
            return [skeleton for skeleton in template.skeletons if skeleton in self.alike]
        found = (self._beginning_with(start) for start in template.skeletons)
        return list(dict.fromkeys(skeleton for some in found for skeleton in some))

    def _beginning_with(self, start: str) -> Iterator[str]:
        at = bisect.bisect_left(self._sorted, start)
        while at < len(self._sorted) and self._sorted[at].startswith(start):
            yield self._sorted[at]
            at += 1

    @functools.cached_property
    def _text(self) -> str:
        return "\n".join(self.alike)

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.alike)
