"""The names of a file, grouped: those that differ in numbers alone are alike."""

import bisect
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vitconvert.tables.axes import Shape
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
        skeletons = [skeleton for skeleton in template.skeletons if skeleton in self.alike]
        if isinstance(template.segments[-1], Rest):
            skeletons = []
            for start in template.skeletons:
                # Names that begin alike lie beside each other.
                at = bisect.bisect_left(self._sorted, start)
                while at < len(self._sorted) and self._sorted[at].startswith(start):
                    skeletons.append(self._sorted[at])
                    at += 1
        for skeleton in dict.fromkeys(skeletons):
            for name, numbers in self.alike[skeleton].items():
                if template.read(skeleton, numbers) is not None:
                    yield name

    @functools.cached_property
    def _text(self) -> str:
        return "\n".join(self.alike)

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.alike)


def separator_of(name: str) -> str:
    """What stands between the parts of a name: Flax and Keras have "/", and dots within parts."""
    return "/" if "/" in name else "."


def first_part(name: str) -> str:
    """The part of a name before the first separator.

    Example:
        >>> first_part("encoder.norm.weight"), first_part("block_1.a/Dense_0/kernel")
        ('encoder', 'block_1.a')
    """
    return name.partition(separator_of(name))[0]


_NUMBER = re.compile(r"([0-9]+)")

Words = list[str]  # of a text; every second is a number


def runs(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Merge names that differ only in a number that counts up.

    Returns:
        Texts in the order of the first that each stands for, and how many it stands for. `{i}`
        counts from 0. Of several numbers that differ, the first counts; others may go with it.

    Example:
        >>> runs(["0.weight", "0.bias", "1.weight", "1.bias", "head"])
        [('{i}.weight', 2), ('{i}.bias', 2), ('head', 1)]
    """
    alike: dict[tuple[str, ...], list[Words]] = defaultdict(list)
    place: dict[str, int] = {}
    for text in texts:
        words = _NUMBER.split(text)
        alike[tuple(words[::2])].append(words)
        place[text] = len(place)
    found = [run for group in alike.values() for run in _runs_of(group)]
    found.sort(key=lambda run: min(place["".join(words)] for words in run))
    return [(_told(run), len(run)) for run in found]


def _runs_of(group: Sequence[Words]) -> list[list[Words]]:
    """Texts that differ in their numbers alone, apart where more than a count differs."""
    numbers = range(1, len(group[0]), 2)
    counter = next((at for at in numbers if len({words[at] for words in group}) > 1), None)
    if counter is None:
        return [[words] for words in group]
    counted = sorted(((int(words[counter]), words) for words in group), key=lambda one: one[0])
    others = [at for at in numbers if at != counter]
    # Numbers that are told more easily by their distance from the counter.
    along = {
        at
        for at in others
        if len({int(words[at]) - n for n, words in counted}) < len({words[at] for words in group})
    }
    apart: dict[tuple[int, ...], list[tuple[int, Words]]] = defaultdict(list)
    for n, words in counted:
        apart[tuple(int(words[at]) - n * (at in along) for at in others)].append((n, words))
    found: list[list[Words]] = []
    for several in apart.values():
        last: int | None = None
        for n, words in several:
            if last is None or n != last + 1:
                found.append([])
            found[-1].append(words)
            last = n
    return found


def _told(run: Sequence[Words]) -> str:
    first, last = run[0], run[-1]
    words = list(first)
    for at in range(1, len(words), 2):
        if first[at] != last[at]:
            words[at] = f"{{i+{first[at]}}}" if int(first[at]) else "{i}"
    return "".join(words)
