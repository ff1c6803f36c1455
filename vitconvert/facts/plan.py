"""Turns a table and a header into a plan: a list of copies.

A plan knows names, axes and sizes and no bytes. Each target tensor is assembled from pieces; a
piece is one source tensor, or one step of it, laid into the target or into one step of it. The
same structure reads a dialect into our names and writes our names into a dialect.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vitconvert.config import Config, ViTConfig
from vitconvert.errors import NotRepresentable, some
from vitconvert.tables.axes import Axes
from vitconvert.tables.binding import Binding, Link, all_counted, links_of
from vitconvert.tables.canonical import expected_tensors, instances
from vitconvert.tables.expressions import Part
from vitconvert.tables.table import Table
from vitconvert.tables.tensor_sections import Constant

Pick = tuple[str, int]  # an axis, and which step along it
Picks = tuple[Pick, ...]  # along as many axes; () is all of a tensor


class Piece(NamedTuple):
    """A source tensor with its layout, what is taken of it and where that goes."""

    source: str | None  # None: zeros
    axes: Axes
    take: Picks = ()  # of the source
    put: Picks = ()  # into the target

    @property
    def taken(self) -> str:
        """The part of the source, as a table would write it."""
        steps = "".join(f"[{axis}={step}]" for axis, step in self.take)
        return "zeros" if self.source is None else f"{self.source}{steps}"

    def __str__(self) -> str:
        return self.taken if self.source is None else f"{self.taken} : {self.axes}"


@dataclass(frozen=True)
class Assembly:
    """A target tensor with its layout and the pieces that fill it."""

    target: str
    axes: Axes
    pieces: tuple[Piece, ...]
    fill: tuple[float, ...] = (0.0,)  # without pieces: one number, or one for each first step
    dtype: str = ""  # without pieces, where it is not that of the others

    def __str__(self) -> str:
        if not self.pieces:
            return f"{self.target} : {self.axes} = {' '.join(f'{n:g}' for n in self.fill)}"
        pieces = ", ".join(map(str, self.pieces))
        joined = f"cat({pieces})" if len(self.pieces) > 1 else pieces
        return f"{self.target} : {self.axes} = {joined}"


@dataclass(frozen=True)
class Plan:
    """Every target tensor, each exactly once, and what must hold for the plan to be right."""

    assemblies: tuple[Assembly, ...]
    sizes: Mapping[str, int]
    zeros: tuple[Piece, ...] = ()  # steps that are left out
    shared: tuple[Assembly, ...] = ()  # target tensors that are several of ours, made of the others
    constants: Mapping[str, Constant] = field(default_factory=dict)  # ignored source tensors

    def shape(self, assembly: Assembly) -> tuple[int, ...]:
        """The shape of a target tensor."""
        return assembly.axes.shape(self.sizes)


def plan_reading(binding: Binding, config: Config) -> Plan:
    """From a dialect to our names. What the model has no tensor for has no elements."""
    expected = expected_tensors(config)
    assemblies = [
        Assembly(name, parts[0].our_axes, tuple(_reading(link) for link in parts))
        for name, parts in binding.links.items()
        if name in expected
    ]
    return Plan(tuple(assemblies), config.axes(), constants=binding.guarded)


def plan_writing(table: Table, config: Config) -> Plan:
    """From our names to a dialect, in the order of its rows.

    Raises:
        NotRepresentable: The dialect has no row for a tensor that the model has, or keeps surplus
            rows, which no model of ours has.
    """
    check_rows(table, config)
    # Of what is shared, each of our tensors makes all of theirs.
    pieces: dict[str, dict[str, list[Piece]]] = {}
    axes: dict[str, Axes] = {}
    zeros = []
    for link in _links_for(table, config):
        if link.theirs is None:
            zeros.append(_writing(link))
            continue
        _check_surplus(table, link)
        axes[link.theirs] = link.their_axes
        maker = f"{link.ours} {link.our_step}" if link.shared else ""
        pieces.setdefault(link.theirs, {}).setdefault(maker, []).append(_writing(link))
    made = {
        key: [Assembly(key, axes[key], tuple(one)) for one in p.values()]
        for key, p in pieces.items()
    }
    first = (several[0] for several in made.values())
    inert = (assembly for assembly in _inert(table, config) if assembly.target not in pieces)
    shared = tuple(other for several in made.values() for other in several[1:])
    return Plan((*first, *inert), config.axes(), tuple(zeros), shared)


def _check_surplus(table: Table, link: Link) -> None:
    if link.their_axes.surplus:
        raise NotRepresentable(
            f"{table.title} keeps more rows than a model uses, and what they hold is not known.",
            evidence={"table": table.file, "tensor": f"{link.theirs} : {link.their_axes}"},
            hint="a row without + is for a class that keeps as many positions as it uses.",
        )


def _inert(table: Table, config: Config) -> Iterable[Assembly]:
    """Tensors that the project's class has, and that play no part."""
    first = table.first_texts(config)
    for key, constant in (*table.constants, *table.holds):
        for i in range(config.depth if key.indices else 1):
            numbers = constant.along(config.axes())
            yield Assembly(key.write({"i": i}, first), constant.axes, (), numbers, constant.dtype)


def plan_back(links: Mapping[str, Iterable[Link]], sizes: Mapping[str, int]) -> Plan:
    """From our names to tensors of theirs, by the links of each of these."""
    assemblies = []
    for key, found in links.items():
        several = tuple(found)
        pieces = tuple(map(_writing, several))
        assemblies.append(Assembly(key, several[0].their_axes, pieces))
    return Plan(tuple(assemblies), sizes)


def plan_overlay(reading: Plan, links: Iterable[Link]) -> Plan:
    """Our tensors as they are read, or none, with the parts of these links laid over them."""
    made = {assembly.target: assembly for assembly in reading.assemblies}
    for link in links:
        below = made.get(link.ours) or Assembly(link.ours, link.our_axes, ())
        made[link.ours] = replace(below, pieces=(*below.pieces, _reading(link)))
    return replace(reading, assemblies=tuple(made.values()))


def check_rows(table: Table, config: Config) -> None:
    """Make sure that a dialect has a row for each tensor that a model has.

    Raises:
        NotRepresentable: It has none for some.
    """
    missing = [several for name, several in instances(config).items() if name not in table.row_of]
    if names := [one.name for several in missing for one in several]:
        raise NotRepresentable(
            f"{table.title} has no place for {len(names)} tensors of this model.",
            evidence={"table": table.file, "tensors": some(names)},
            hint="choose a target that has the feature; `vitconvert list` shows them.",
        )


def _links_for(table: Table, config: Config) -> Iterator[Link]:
    first = table.first_texts(config)
    prefix = config.prefix_of_window if isinstance(config, ViTConfig) else 0
    found, sizes = instances(config), config.axes()
    for name, row in table.row_of.items():
        several = found.get(name, ())
        if not several:
            continue
        alternative = row.alternatives[0]
        parts = [
            (number, part, counted)
            for number, part in enumerate(alternative.items)
            if isinstance(part, Part)
            for counted in all_counted(part, sizes)
        ]
        for one in several:
            keys = {
                (number, counted): part.key.write({**one.indices, **dict(counted)}, first)
                for number, part, counted in parts
            }
            yield from links_of(alternative, one, keys, prefix)


def _our_picks(link: Link) -> Picks:
    step = () if link.our_step is None else ((link.our_axes.names[0], link.our_step),)
    return (*step, *link.counted)


def _their_picks(link: Link) -> Picks:
    return () if link.their_step is None else (link.their_step,)


def _reading(link: Link) -> Piece:
    return Piece(link.theirs, link.their_axes, take=_their_picks(link), put=_our_picks(link))


def _writing(link: Link) -> Piece:
    return Piece(link.ours, link.our_axes, take=_our_picks(link), put=_their_picks(link))


def compose(reading: Plan, writing: Plan) -> Plan:
    """From one dialect straight to another: our names disappear between the two.

    What is joined and then split again is neither: `slice(cat(q, k, v))` is `q`.
    """
    made = {assembly.target: assembly for assembly in reading.assemblies}

    def through(several: Iterable[Assembly]) -> tuple[Assembly, ...]:
        return tuple(replace(a, pieces=tuple(_through_all(a.pieces, made))) for a in several)

    assemblies = through(writing.assemblies)
    return Plan(
        assemblies,
        writing.sizes,
        zeros=tuple(p for p in _through_all(writing.zeros, made) if p.source is not None),
        # What is shared in both needs no comparison.
        shared=tuple(a for a in through(writing.shared) if a not in assemblies),
        constants=reading.constants,
    )


def _through_all(pieces: Iterable[Piece], made: Mapping[str, Assembly]) -> Iterator[Piece]:
    for piece in pieces:
        assert piece.source is not None  # only what is read is filled with zeros
        yield from _through(piece, made[piece.source])


def _through(piece: Piece, between: Assembly) -> Iterator[Piece]:
    """A piece of a tensor that is itself made of pieces, as pieces of theirs."""
    taken = dict(piece.take)
    for inner in between.pieces:
        filled = dict(inner.put)
        # Of `cat(q, k, v)`, whoever takes k meets q and v too.
        if any(taken.get(axis, step) != step for axis, step in inner.put):
            continue  # another step of the tensor between
        further = tuple(step for step in piece.take if step[0] not in filled)
        rest = tuple(step for step in inner.put if step[0] not in taken)
        yield Piece(inner.source, inner.axes, inner.take + further, piece.put + rest)
