"""Which tensor of theirs is which of ours: what is certain, then what is a guess."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vitconvert.drafting.entries import (
    Entry,
    groups_of,
    has,
    knowledge,
    order_of,
    score,
    speaks_against,
)
from vitconvert.drafting.slots import Slot, SlotLayout
from vitconvert.drafting.stems import Stem


@dataclass(frozen=True, kw_only=True)
class DraftMatch:
    """A tensor of theirs, and what it is.

    Attributes:
        entry: Theirs.
        slot: Ours.
        layout: Of theirs.
        reason: How that is known, or why it is a guess.
        certain: Whether it is no guess.
        others: Layouts that its shape allows as well, where that is a doubt.
    """

    entry: Entry
    slot: Slot
    layout: SlotLayout
    reason: str
    certain: bool
    others: tuple[SlotLayout, ...] = ()


class Matching:
    """Decides step by step; what is decided leaves less for the rest.

    Args:
        stems: From `stems_of`.
        by_values: Whether the reference has the same weights, so that other values are a doubt.
    """

    def __init__(self, stems: Sequence[Stem], *, by_values: bool) -> None:
        self.open = [stem for stem in stems if stem.options]
        self.by_values = by_values
        self.found: list[tuple[Stem, str, str, bool]] = []  # stem, module, reason, certain
        self.guessed: set[Slot] = set()
        self._own_words = {stem.text: _own_words(stem, self.open) for stem in self.open}
        self._first = {stem.text: dict(stem.options) for stem in self.open}

    def matches(self) -> list[DraftMatch]:
        """A match for each module that has a place."""
        sure = (self._by_values, self._by_shape, self._by_name, self._by_number, self._by_side)
        # What is surest goes first: each decision leaves fewer places for what is less sure.
        while any(step() for step in (*sure, self._by_order)):
            pass
        return _with_layouts(self.found)

    def _settle(self, stem: Stem, module: str, reason: str, *, certain: bool) -> bool:
        of_kind = stem.options[module]
        slots = [slot for slot, _ in of_kind.values()]
        doubt = self._doubt(stem, module) if certain else ""
        self.found.append((stem, module, doubt or reason, certain and not doubt))
        self.open.remove(stem)
        if doubt or not certain:
            self.guessed.update(slots)
        for other in self.open:
            other.drop(other.wants(_excluded(slots, other)))
        return True

    def _doubt(self, stem: Stem, module: str) -> str:
        """Why what would be certain is not, or nothing."""
        if self.by_values:
            return "" if stem.valued else "its values are not the reference's"
        if other := speaks_against(stem.words, module):
            return f"the only place of its shape, but its name sounds like {other}"
        first = self._first[stem.text]
        taken = (slot for of_kind in first.values() for slot, _ in of_kind.values())
        if self.guessed & set(taken):
            return "what else it may be is a guess"
        return ""

    def _by_values(self) -> bool:
        """Settle a module that has the values of one place alone."""
        for stem in self.open:
            if stem.valued and len(stem.options) == 1:
                (module,) = stem.options
                if not any(rival.valued for rival in self._rivals(stem, module)):
                    return self._settle(stem, module, "equal values", certain=True)
        return False

    def _by_shape(self) -> bool:
        """Settle a module that alone has the shape of one place."""
        for stem in self.open:
            if len(stem.options) != 1:
                continue
            (module,) = stem.options
            if self._rivals(stem, module):
                continue
            slots = [slot for slot, _ in stem.options[module].values()]
            named = score(stem.words, module) > 0
            sure = named or any(slot.is_distinct for slot in slots)
            left = "left " if len(self._first[stem.text]) > 1 else ""
            reason = f"the only one {left}of its shape" if sure else "only its shape fits"
            return self._settle(stem, module, reason, certain=sure)
        return False

    def _by_name(self) -> bool:
        """Settle a module that alone has the words of a place, among those that may be there."""
        claims: dict[str, list[Stem]] = defaultdict(list)
        for stem in self.open:
            if module := self._named(stem):
                claims[module].append(stem)
        for module, stems in claims.items():
            if len(stems) == 1:
                reason = f"its name, among {len(stems[0].options)} of one shape"
                return self._settle(stems[0], module, reason, certain=True)
        return False

    def _by_number(self) -> bool:
        """Two that differ in a number alone are the first and the second of a pair."""
        for first, second in _PAIRS:
            stems = [stem for stem in self.open if {first, second} == stem.options.keys()]
            if len(stems) == 2 and (ordered := _by_their_number(stems)):
                self._settle(ordered[0], first, "the first of two that are numbered", certain=True)
                reason = "the second of two that are numbered"
                return self._settle(ordered[1], second, reason, certain=True)
        return False

    def _by_side(self) -> bool:
        """Drop options whose matrix would lie otherwise than all matrices of its name."""
        lies = _orientations(self.found)
        for stem in self.open:
            other = {
                module
                for module, of_kind in stem.options.items()
                for kind, (slot, layouts) in of_kind.items()
                if (turned := _side(stem.entries[kind], slot, lies)) is not None
                and all(layout.turned(slot.axes) != turned for layout in layouts)
            }
            if other and other != stem.options.keys():
                stem.drop(other)
                return True
        return False

    def _by_order(self) -> bool:
        """A guess: what comes first in the file is what comes first in a block of ours."""
        for stem in sorted(self.open, key=self._least_doubtful):
            if not stem.options:
                continue
            best = max(score(self._own_words[stem.text], m) for m in stem.options)
            kept = [m for m in stem.options if score(self._own_words[stem.text], m) == best]
            # Modules of a block mostly lie in the order in which they compute.
            kept.sort(key=order_of)
            rivals = self._rivals(stem, kept[0])
            reason = "only its place in the file fits"
            if rivals:
                reason = f"the order in the file; {rivals[0].text} may be it as well"
            return self._settle(stem, kept[0], reason, certain=False)
        return False

    def _least_doubtful(self, stem: Stem) -> tuple[int, int]:
        words = self._own_words[stem.text]
        return -max((score(words, m) for m in stem.options), default=0), stem.place

    def _rivals(self, stem: Stem, module: str) -> list[Stem]:
        """Others that may be in the place."""
        slots = {slot for slot, _ in stem.options[module].values()}
        return [other for other in self.open if other is not stem and other.wants(slots)]

    def _named(self, stem: Stem) -> str:
        """The one option that its name speaks for, or nothing."""
        words = self._own_words[stem.text]
        scores = {module: score(words, module) for module in stem.options}
        best = max(scores.values(), default=0)
        named = [module for module, points in scores.items() if points == best]
        if best < _NAMED or len(named) > 1:
            return ""
        # Words of one group say nothing against a matrix that is in another.
        groups = set(groups_of(named[0]))
        matrices = [
            module
            for module, of_kind in stem.options.items()
            if any(slot.is_distinct for slot, _ in of_kind.values())
        ]
        return named[0] if all(groups & set(groups_of(m)) for m in matrices) else ""


_NUMBER = re.compile(r"([0-9]+)")
_NAMED = 2  # of `score`: a word of the place itself, not only of its kind
# Modules of one shape, of which the first is applied first.
_PAIRS = (("blocks.{i}.norm1", "blocks.{i}.norm2"), ("blocks.{i}.ls1", "blocks.{i}.ls2"))


def _own_words(stem: Stem, stems: Sequence[Stem]) -> frozenset[str]:
    """The words that tell it from others of its shape: those that all have tell nothing."""
    alike = [other for other in stems if other.options.keys() & stem.options.keys()]
    shared = frozenset.intersection(*(other.words for other in alike))
    return stem.words - shared if len(alike) > 1 else stem.words


def _by_their_number(stems: Sequence[Stem]) -> list[Stem]:
    """Two modules in the order of the one number in which their names differ, or none."""
    pieces = [_NUMBER.split(next(iter(stem.entries.values())).keys[0]) for stem in stems]
    first, second = pieces
    if first[::2] != second[::2]:
        return []
    pairs = [(int(a), int(b)) for a, b in zip(first[1::2], second[1::2], strict=True) if a != b]
    if len(pairs) != 1:
        return []
    return [*stems] if pairs[0][0] < pairs[0][1] else [*reversed(stems)]


def _excluded(slots: Sequence[Slot], other: Stem) -> Iterator[Slot]:
    """Slots of another module that are filled with these: a whole, or its steps."""
    filled = {(place.name, place.step) for slot in slots for place in slot.places}
    whole = {name for name, step in filled if step is None}
    names = {name for name, _ in filled}
    for of_kind in other.options.values():
        for slot, _ in of_kind.values():
            for place in slot.places:
                is_whole = place.step is None and place.name in names
                if is_whole or place.name in whole or (place.name, place.step) in filled:
                    yield slot


def _with_layouts(found: Sequence[tuple[Stem, str, str, bool]]) -> list[DraftMatch]:
    """One layout for each; a square matrix lies as the others of that name do."""
    lies = _orientations(found)
    matches = []
    for stem, module, reason, certain in found:
        for kind, (slot, several) in stem.options[module].items():
            entry = stem.entries[kind]
            layouts = _as_beside(several, [one for _, one in stem.options[module].values()])
            shown = stem.valued and len(layouts) == 1  # numbers that are all alike show nothing
            layout, doubt = _layout(entry, slot, layouts, lies, shown=shown)
            others = tuple(one for one in layouts if doubt and one != layout and not one.rare)
            doubt = doubt or _joining(entry, slot, shown=shown)
            doubt = doubt if certain else ""
            matches.append(
                DraftMatch(
                    entry=entry,
                    slot=slot,
                    layout=layout,
                    reason=doubt or reason,
                    certain=certain and not doubt,
                    others=others,
                )
            )
    return matches


def _as_beside(
    layouts: Sequence[SlotLayout], beside: Sequence[Sequence[SlotLayout]]
) -> Sequence[SlotLayout]:
    """Layouts of a bias in the order of axes that its weight has, if there are any."""
    orders = [other[0].axes.names for other in beside if len(other) == 1]
    kept = [
        layout
        for layout in layouts
        for order in orders
        if layout.axes.names == tuple(axis for axis in order if axis in layout.axes.names)
    ]
    return kept if kept and len(layouts) > 1 else layouts


def _orientations(found: Sequence[tuple[Stem, str, str, bool]]) -> Mapping[str, set[bool]]:
    """Leaf -> whether the matrices of that name are turned, as far as their shapes tell."""
    lies: dict[str, set[bool]] = defaultdict(set)
    for stem, module, _, certain in found:
        for kind, (slot, layouts) in stem.options[module].items():
            one_way = len({layout.turned(slot.axes) for layout in layouts}) == 1
            if certain and one_way and len(slot.axes.dims) == 2:
                lies[stem.entries[kind].leaf].add(layouts[0].turned(slot.axes))
    return lies


def _side(entry: Entry, slot: Slot, lies: Mapping[str, set[bool]]) -> bool | None:
    """Whether a matrix is turned, as others of its name are and that name is known for, or None."""
    known = lies.get(entry.leaf, set())
    for turned, way in ((False, "ours"), (True, "turned")):
        named = entry.leaf in knowledge()["orientation"][way]
        if named and known == {turned} and len(slot.axes.dims) == 2:
            return turned
    return None


def _layout(
    entry: Entry,
    slot: Slot,
    layouts: Sequence[SlotLayout],
    lies: Mapping[str, set[bool]],
    *,
    shown: bool,
) -> tuple[SlotLayout, str]:
    """The layout, and why it is a guess, or nothing."""
    usual = [layout for layout in layouts if shown or not layout.rare] or list(layouts)
    first = usual[0]
    if first.differing and not score(entry.words, slot.module):
        return first, f"{first.differing[0]} is of another size than the reference's"
    if first.surplus:
        return first, "it has more positions than the reference"
    if len(usual) == 1:
        return first, "" if shown or not first.rare else "a rare layout"
    turned = _side(entry, slot, lies)
    kept = [layout for layout in usual if layout.turned(slot.axes) == turned]
    if len(kept) == 1:
        return kept[0], ""
    known = lies.get(entry.leaf, set()) if len(slot.axes.dims) == 2 else set()
    if len(known) == 1:
        usual = [x for x in usual if x.turned(slot.axes) in known] or usual
    others = " or ".join(str(layout.axes) for layout in usual[1:])
    return usual[0], f"its shape fits {others or first.axes} as well"


def _joining(entry: Entry, slot: Slot, *, shown: bool) -> str:
    """Why the order within a matrix that joins several is a guess, or nothing."""
    joins = slot.axes.names and slot.axes.names[0] in ("qkv", "kv", "qk", "gate")
    if shown or not joins:
        return ""
    if has(entry.words, knowledge()["joined"].get(slot.module, [])):
        return ""
    return f"the order is unknown along {slot.axes.names[0]}"
