"""Applies a table to a checkpoint's header: which of their tensors make up which of ours."""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.tables.axes import Axes, Dim, Equation, Shape, Sizes, solve
from vitconvert.tables.canonical import CanonicalTensor, Instance, instance, instantiate
from vitconvert.tables.expressions import Alternative, Part
from vitconvert.tables.names import Names
from vitconvert.tables.rows import Row
from vitconvert.tables.table import Table
from vitconvert.tables.templates import MOST_STEPS, Index, Template
from vitconvert.tables.tensor_sections import Constant


class Link(NamedTuple):
    """One of their tensors (or one step of it) is one of ours (or one step of it).

    There are hundreds, and a frozen dataclass takes five times as long to make.
    """

    ours: str
    tensor: CanonicalTensor
    indices: Mapping[str, int]
    our_axes: Axes
    our_step: int | None  # along the first axis of ours, where a row joins several of theirs
    theirs: str | None  # None: they leave this step out because it is zero
    their_axes: Axes
    their_step: tuple[str, int] | None  # along an axis of theirs, where a row selects
    counted: tuple[tuple[str, int], ...] = ()  # axes of ours, and which step of each this is
    shared: bool = False  # whether theirs may be several of ours


Counted = tuple[tuple[str, int], ...]
"""Axes of which a key counts the steps, and the step of each."""
Keys = Mapping[tuple[int, Counted], str]
"""Item number and what its key counts -> their key."""


def links_of(alternative: Alternative, one: Instance, keys: Keys, steps: int = 0) -> Iterator[Link]:
    """The links of one tensor of ours, spelled by `keys`.

    `steps` is the length of their axis where a row takes the rest of it.
    """
    ours = one.axes
    default = ours.step if alternative.joined else ours
    for number, item in enumerate(alternative.items):
        part = item if isinstance(item, Part) else None
        selected = None
        if part and part.selection:
            step = part.selection.step
            if isinstance(step, Index):
                step = step.write(one.indices[step.name])
            selected = part.selection.axis, step
        link = Link(
            ours=one.name,
            tensor=one.tensor,
            indices=one.indices,
            our_axes=ours,
            our_step=number if alternative.joined else None,
            theirs=None,
            their_axes=instantiate(part.axes, one.indices) if part and part.axes else default,
            their_step=selected,
        )
        if not part:
            yield link
            continue
        if part.axes is None:
            for axis in part.counted:
                link = link._replace(their_axes=link.their_axes.without(axis))
        for (item_number, counted), key in keys.items():
            if item_number != number:
                continue
            spelled = link._replace(theirs=key, counted=counted, shared=part.shared)
            if not selected or not alternative.rest:
                yield spelled
                continue
            axis, begin = selected
            for step, theirs in enumerate(range(begin, steps)):
                yield spelled._replace(our_step=step, their_step=(axis, theirs))


def all_counted(part: Part, sizes: Mapping[str, int]) -> Iterator[Counted]:
    """Every step of the axes that a key counts; one, of none, where it counts nothing."""
    steps = ([(axis, n) for n in range(sizes.get(axis, 0))] for axis in part.counted)
    yield from itertools.product(*steps)


NO_ELEMENTS = "has no elements"
"""Why a tensor is ignored that no row, no [ignore] and no [constants] of its table explains."""


@dataclass(frozen=True)
class Binding:
    """A table laid over the header of a checkpoint."""

    table: Table
    links: Mapping[str, tuple[Link, ...]]  # by canonical name
    ignored: Mapping[str, str]  # their key -> reason
    unexplained: tuple[str, ...]  # keys that no row and no ignore entry matches
    misfits: Mapping[str, str]  # keys whose dimensions fit no row -> the row
    doubled: Mapping[str, tuple[str, ...]]  # canonical name -> their keys, of which one too many
    partial: Mapping[str, tuple[str, ...]]  # canonical name -> their keys that are missing
    names: Names  # all their keys
    sizes: Sizes

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all their keys."""
        return self.names.shapes

    @property
    def fits(self) -> bool:
        """Whether the table explains every key and finds what it requires."""
        problems = self.unexplained or self.misfits or self.lacking or self.misshapen
        return bool(self.links) and not problems

    @functools.cached_property
    def misshapen(self) -> tuple[str, ...]:
        """Keys whose shape contradicts the sizes that most others agree on."""
        links = (link for links in self.links.values() for link in links if link.theirs)
        shapes = {link.theirs: link.their_axes for link in links}
        return tuple(
            key
            for key, axes in shapes.items()
            if key is not None and not axes.takes(self.shapes[key], self.sizes.shape(axes))
        )

    @property
    def lacking(self) -> tuple[tuple[str, ...], ...]:
        """Rows that the table requires, and that nothing in the file fills."""
        found = {link.tensor.text for links in self.links.values() for link in links}
        if self.ignored and self.table.requires:
            asked = {name for group in self.table.requires for name in group}
            ignored = (template for template, _ in self.table.ignore if template.text in asked)
            found |= {t.text for t in ignored if any(self._ignored_by(t))}
        return tuple(group for group in self.table.requires if not found & set(group))

    @property
    def missed(self) -> tuple[tuple[str, ...], ...]:
        """The same, but for tensors that play no part: they tell dialects apart, and no more.

        Where numbers that they hold decide what others mean, they do play a part.
        """
        inert = self.table.section("ignore").keys() - self.table.section("holds").keys()
        return tuple(group for group in self.lacking if not inert & set(group))

    @functools.cached_property
    def guarded(self) -> Mapping[str, Constant]:
        """Ignored keys that must hold certain numbers to play no part."""
        return {
            key: constant
            for template, constant in self.table.holds
            for key in self._ignored_by(template)
        }

    def _ignored_by(self, template: Template) -> Iterator[str]:
        return (key for key in self.names.spelled_by(template) if key in self.ignored)

    @property
    def explained(self) -> int:
        """Number of keys that rows use."""
        return len({link.theirs for links in self.links.values() for link in links} - {None})


def _has_rank(axes: Axes, shape: Shape) -> bool:
    alike = len(axes.dims) == len(shape)
    return alike and all(shape[place] == number for place, number in axes.fixed)


@dataclass(frozen=True)
class _Place:
    """A part, with its place in the table."""

    row: Row
    alternative: int
    item: int
    part: Part

    @functools.cached_property
    def axes(self) -> Axes:
        """Theirs, of all blocks: names may hold an index."""
        ours = self.row.tensor.axes
        if self.row.alternatives[self.alternative].joined:
            ours = ours.step
        for axis in self.part.counted:
            ours = ours.without(axis)
        return self.part.axes or ours

    def has_rank(self, shape: Shape) -> bool:
        """Whether a shape has the number of dimensions, and the fixed ones, of the row."""
        return _has_rank(self.axes, shape)


_Indices = tuple[tuple[str, int], ...]
# (row name, indices) -> alternative -> item and what its key counts -> their key
_Spellings = dict[tuple[str, _Indices], dict[int, dict[tuple[int, Counted], str]]]


def bind(table: Table, shapes: Mapping[str, Shape] | Names) -> Binding:
    """Lay a table over the names and shapes of a checkpoint. Reads no weights, raises nothing.

    Whoever lays several tables over the same names groups them once.
    """
    return _Binder(table, shapes if isinstance(shapes, Names) else Names(shapes)).binding()


def links_alone(table: Table, shapes: Mapping[str, Shape]) -> dict[str, tuple[Link, ...]]:
    """Links each key by itself, whether or not the other parts of a row are there.

    A key that no row of the table spells has no entry.
    """
    binder = _Binder(table, Names(shapes))
    found: dict[str, dict[tuple[str, int | None], Link]] = defaultdict(dict)
    for key, matched in binder.matched.items():
        for place, indices in matched:
            if not place.has_rank(shapes[key]):
                continue
            alternative = place.row.alternatives[place.alternative]
            counted, indices = _counted(place.part, indices)
            for complete in binder.with_selected(place, indices, key):
                one = instance(place.row.tensor, complete)
                steps = binder.rest_length(alternative, key)
                for link in links_of(alternative, one, {(place.item, counted): key}, steps):
                    if link.theirs:
                        found[key].setdefault((one.name, link.our_step), link)
    return {key: tuple(links.values()) for key, links in found.items()}


def _counted(part: Part, indices: Mapping[str, int]) -> tuple[Counted, dict[str, int]]:
    """What a key counts, and the indices of ours that it spells."""
    counted = tuple((axis, indices[axis]) for axis in part.counted)
    return counted, {name: n for name, n in indices.items() if name not in part.counted}


class _Binder:
    """Collects the places of every key, then decides for each of our tensors."""

    def __init__(self, table: Table, names: Names) -> None:
        self.table = table
        self.names = names
        self.shapes = names.shapes
        self.matched = dict(self.matches())
        self.reasons: dict[str, str] = {}
        for template, reason in table.ignore:
            for key in names.spelled_by(template):
                self.reasons.setdefault(key, reason)
        self.empty: dict[str, Axes] = {}  # arrays that the project keeps without elements
        for template, axes in table.empty:
            for key in names.spelled_by(template):
                if _has_rank(axes, self.shapes[key]):
                    self.empty.setdefault(key, axes)
        self.spellings: _Spellings = defaultdict(dict)
        self.counts: dict[str, int] = {}  # axes that keys count, and how many steps there are
        self.ignored: dict[str, str] = {}
        self.unexplained: list[str] = []
        self.misfits: dict[str, str] = {}
        self.doubled: dict[str, tuple[str, ...]] = {}
        self.partial: dict[str, tuple[str, ...]] = {}

    def binding(self) -> Binding:
        known = {*self.matched, *self.reasons, *self.empty, *self.names.empty}
        # Most tables know no key of a file, and go through none.
        if known:
            for key in self.shapes:
                if key in known:
                    self.explain(key)
                else:
                    self.unexplained.append(key)
        links = dict(self.links())
        return Binding(
            table=self.table,
            links=links,
            ignored=self.ignored,
            unexplained=tuple(self.unexplained if known else self.shapes),
            misfits=self.misfits,
            doubled=self.doubled,
            partial=self.partial,
            names=self.names,
            sizes=solve(self.equations(links), {**self.counts, **FIXED_AXES}),
        )

    def explain(self, key: str) -> None:
        """Note of which tensors of ours a key is a part, or why of none."""
        if key in self.empty:
            self.ignored[key] = f"the library keeps an empty {self.empty[key]} here"
            return
        matched = self.matched.get(key, ())
        fitting = [(p, indices) for p, indices in matched if p.has_rank(self.shapes[key])]
        for place, spelled in fitting:
            counted, indices = _counted(place.part, spelled)
            for axis, step in counted:
                self.counts[axis] = max(self.counts.get(axis, 0), step + 1)
            for complete in self.with_selected(place, indices, key):
                spelling = self.spellings[place.row.name, tuple(sorted(complete.items()))]
                item = place.item, counted
                other = spelling.setdefault(place.alternative, {}).setdefault(item, key)
                if other != key:
                    self.doubled[place.row.tensor.name.write(complete)] = (other, key)
        if fitting:
            return
        if reason := self.reasons.get(key):
            self.ignored[key] = reason
        elif key in self.names.empty:
            self.ignored[key] = NO_ELEMENTS
        elif matched:
            self.misfits[key] = matched[0][0].row.text
        else:
            self.unexplained.append(key)

    def matches(self) -> Iterator[tuple[str, list[tuple[_Place, dict[str, int]]]]]:
        """Yields each key that a row spells, with its places in the table."""
        found: dict[str, list[_Place]] = defaultdict(list)  # by skeleton
        for row in (row for row in self.table.rows if row.may_use(self.names)):
            for number, alternative in enumerate(row.alternatives):
                for n, item in enumerate(alternative.items):
                    if isinstance(item, Part):
                        for skeleton in item.key.skeletons.keys() & self.names.alike.keys():
                            found[skeleton].append(_Place(row, number, n, item))
        for skeleton, places in found.items():
            for key, numbers in self.names.alike[skeleton].items():
                read = ((place, place.part.key.read(skeleton, numbers)) for place in places)
                if fitting := [(place, indices) for place, indices in read if indices is not None]:
                    yield key, fitting

    def with_selected(
        self, place: _Place, indices: dict[str, int], key: str
    ) -> Iterator[dict[str, int]]:
        """Add the index of blocks that are stacked in one array, or share one tensor."""
        if place.part.shared and set(place.row.tensor.name.indices) - indices.keys():
            yield from ({"i": number} for number in range(self.table.shared_depth))
            return
        selection = place.part.selection
        step = selection.step if selection else None
        if not isinstance(step, Index) or step.name in indices or not selection:
            yield indices
            return
        dims = instantiate(place.axes, indices).dims
        along = next(n for n, dim in enumerate(dims) if selection.axis in dim.axes)
        # The length is the file's own word: 10^12 steps must cost nothing.
        for number in range(min(self.shapes[key][along], MOST_STEPS)):
            value = step.read(number)
            if value is not None:
                yield {**indices, step.name: value}

    def links(self) -> Iterator[tuple[str, tuple[Link, ...]]]:
        for (row_name, pairs), spelling in self.spellings.items():
            row = self.table.row_of[row_name]
            one = instance(row.tensor, dict(pairs))
            # Of historic spellings the first that is whole counts.
            lacking = {a: tuple(self.lacking(row.alternatives[a], spelling[a])) for a in spelling}
            number = next((a for a in sorted(spelling) if not lacking[a]), None)
            if number is None:
                self.partial[one.name] = tuple(
                    part.key.write({**one.indices, **dict(counted)})
                    for part, counted in lacking[min(spelling)]
                )
                continue
            keys = spelling.pop(number)
            others = {key for other in spelling.values() for key in other.values()}
            if others := others.difference(keys.values()):
                self.doubled[one.name] = (*keys.values(), *sorted(others))
            alternative = row.alternatives[number]
            steps = self.rest_length(alternative, next(iter(keys.values())))
            if found := tuple(links_of(alternative, one, keys, steps)):
                yield one.name, found

    def lacking(self, alternative: Alternative, keys: Keys) -> Iterator[tuple[Part, Counted]]:
        """The parts that are not among these keys, and what the key of each would count."""
        sizes = {**self.counts, **FIXED_AXES}
        for number, item in enumerate(alternative.items):
            if isinstance(item, Part):
                for counted in all_counted(item, sizes):
                    if (number, counted) not in keys:
                        yield item, counted

    def rest_length(self, alternative: Alternative, key: str) -> int:
        """The length of their axis of which a row takes the rest."""
        rest, axes = alternative.rest, alternative.parts[0].axes
        if rest is None or axes is None:
            return 0
        dims = zip(axes.dims, self.shapes[key], strict=True)
        return next(size for dim, size in dims if rest.axis in dim.axes)

    def equations(self, links: Mapping[str, tuple[Link, ...]]) -> Iterator[Equation]:
        for parts in links.values():
            for link in parts:
                if link.theirs is not None:
                    yield Equation(link.their_axes, self.shapes[link.theirs])
                    if link.their_axes.names == ("quarter_dim",):
                        # DINOv3's periods of the rotary embedding, one for four channels of a
                        # head, tell the width of heads that q, k and v share with their number:
                        # layers/rope_position_encoding.py of facebookresearch/dinov3 6876159.
                        (length,) = self.shapes[link.theirs]
                        yield Equation(Axes((Dim(("dim",)),)), (4 * length,))
