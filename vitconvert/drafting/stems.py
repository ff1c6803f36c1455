"""Their modules, and everything that each may be: by shapes, by kinds of names, by values."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitconvert.drafting.entries import Entry, other_kind
from vitconvert.drafting.slots import ComparedValues, Slot, SlotLayout, by_module, layouts_of


@dataclass
class Stem:
    """The tensors of one of their modules, and what they may be.

    Attributes:
        text: Its name.
        entries: Its tensors, by kind.
        options: Module of ours -> entry -> slot and layouts.
        valued: Whether the options are those of which the values are equal.
    """

    text: str
    entries: Mapping[str, Entry]
    options: dict[str, dict[str, tuple[Slot, list[SlotLayout]]]] = field(default_factory=dict)
    valued: bool = False

    @property
    def words(self) -> frozenset[str]:
        """The words of its name."""
        return next(iter(self.entries.values())).words

    @property
    def place(self) -> int:
        """Its place in the file."""
        return min(entry.place for entry in self.entries.values())

    def wants(self, slots: Iterable[Slot]) -> set[str]:
        """The modules among its options that need one of these slots."""
        wanted = set(slots)
        return {
            module
            for module, of_kind in self.options.items()
            if any(slot in wanted for slot, _ in of_kind.values())
        }

    def drop(self, modules: Iterable[str]) -> None:
        """Take options away."""
        for module in modules:
            self.options.pop(module, None)


def stems_of(
    entries: Sequence[Entry],
    slots: Sequence[Slot],
    sizes: Mapping[str, int],
    values: ComparedValues | None,
) -> list[Stem]:
    """Their modules with everything that each may be, by shapes and, if there are, by values."""
    groups: dict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        groups[entry.stem if entry.kind else entry.text][entry.kind] = entry
    modules = by_module(slots)
    stems = [Stem(text, kinds) for text, kinds in groups.items()]
    for stem in stems:
        for module, of_kind in modules.items():
            if option := _option(stem, of_kind, sizes):
                stem.options[module] = option
    filled = {
        module
        for stem in stems
        for module, option in stem.options.items()
        if len(option) == len(modules[module])
    }
    for stem in stems:
        # What fills a weight alone comes after those that have its bias too.
        partly = {m for m, one in stem.options.items() if len(one) < len(modules[m])} & filled
        if partly != stem.options.keys():
            stem.drop(partly)
        differing = {
            module
            for module, of_kind in stem.options.items()
            if any(layouts[0].differing for _, layouts in of_kind.values())
        }
        # What fits as it is comes before what fits a reference of another size; and a norm is no
        # scale, whatever its shape.
        for others in (differing, {m for m in stem.options if other_kind(stem.words, m)}):
            if others != stem.options.keys():
                stem.drop(others)
        if values:
            _keep_valued(stem, values)
    return stems


def _option(
    stem: Stem, of_kind: Mapping[str, Slot], sizes: Mapping[str, int]
) -> dict[str, tuple[Slot, list[SlotLayout]]]:
    """Slots and layouts by which a module of theirs may be one of ours; empty if it cannot be."""
    found = {}
    for kind, entry in stem.entries.items():
        slot = of_kind.get(kind) or (of_kind.get("") if kind == "weight" else None)
        if slot is None and not kind:
            slot = of_kind.get("weight")
        if slot is None or slot.looped != entry.looped:
            return {}
        if entry.stacked and slot.places[0].selected:
            return {}  # one of two selections is all that a row can have
        layouts = layouts_of(slot, entry.shape, sizes, of_head=bool(entry.heads))
        if not layouts:
            return {}
        found[kind] = slot, layouts
    return found


def _keep_valued(stem: Stem, values: ComparedValues) -> None:
    """If any option has the reference's values, only such are left."""
    equal: dict[str, dict[str, tuple[Slot, list[SlotLayout]]]] = {}
    for module, of_kind in stem.options.items():
        kept = {
            kind: (slot, [x for x in layouts if values.equal(stem.entries[kind], slot, x)])
            for kind, (slot, layouts) in of_kind.items()
        }
        if all(layouts for _, layouts in kept.values()):
            equal[module] = kept
    if equal:
        stem.options, stem.valued = equal, True
