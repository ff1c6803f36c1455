"""What becomes of which tensor: a table and a header turned into a list of copies.

A plan knows names, axes and sizes and no bytes. Each target tensor is assembled from pieces; a
piece is one source tensor, or one step of it, laid into the target or into one step of it. The
same structure reads a dialect into our names and writes our names into a dialect.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.tables.axes import Axes
from vitconvert.tables.binding import Binding, Link, links_of
from vitconvert.tables.canonical import canonical_tensors, instances
from vitconvert.tables.constants import Constant
from vitconvert.tables.expressions import Part
from vitconvert.tables.table import Table

Step = tuple[str, int]  # an axis, and which step along it


@dataclass(frozen=True)
class Piece:
    """A source tensor with its layout, what is taken of it and where that goes."""

    source: str | None  # None: zeros
    axes: Axes
    take: Step | None = None  # of the source; None takes all
    put: Step | None = None  # into the target; None fills all

    def __str__(self) -> str:
        if self.source is None:
            return "zeros"
        step = f"[{self.take[0]}={self.take[1]}]" if self.take else ""
        return f"{self.source}{step} : {self.axes}"


@dataclass(frozen=True)
class Assembly:
    """A target tensor with its layout and the pieces that fill it."""

    target: str
    axes: Axes
    pieces: tuple[Piece, ...]
    fill: float = 0.0  # of what no piece covers

    def __str__(self) -> str:
        if not self.pieces:
            return f"{self.target} : {self.axes} = {self.fill:g}"
        pieces = ", ".join(map(str, self.pieces))
        joined = f"cat({pieces})" if len(self.pieces) > 1 else pieces
        return f"{self.target} : {self.axes} = {joined}"


@dataclass(frozen=True)
class Plan:
    """Every target tensor, each exactly once, and what must hold for the plan to be right."""

    assemblies: tuple[Assembly, ...]
    sizes: Mapping[str, int]
    zeros: tuple[Piece, ...] = ()  # steps that are left out
    constants: Mapping[str, Constant] = field(default_factory=dict)  # ignored source tensors

    def shape(self, assembly: Assembly) -> tuple[int, ...]:
        """The shape of a target tensor."""
        return assembly.axes.shape(self.sizes)


def sizes_of(config: ViTConfig) -> dict[str, int]:
    """The size of every axis that a table can name."""
    return {**config.axes(), "layer": config.depth}


def plan_reading(binding: Binding, config: ViTConfig) -> Plan:
    """From a dialect to our names."""
    assemblies = [
        Assembly(name, parts[0].our_axes, tuple(_reading(link) for link in parts))
        for name, parts in binding.links.items()
    ]
    return Plan(tuple(assemblies), sizes_of(config), constants=binding.guarded)


def plan_writing(table: Table, config: ViTConfig) -> Plan:
    """From our names to a dialect.

    Raises:
        NotRepresentable: The dialect has no row for a tensor that the model has.
    """
    pieces: dict[str, list[Piece]] = {}
    axes: dict[str, Axes] = {}
    zeros = []
    for link in _links_for(table, config):
        if link.theirs is None:
            zeros.append(_writing(link))
            continue
        axes[link.theirs] = link.their_axes
        pieces.setdefault(link.theirs, []).append(_writing(link))
    assemblies = [Assembly(key, axes[key], tuple(found)) for key, found in pieces.items()]
    inert = (assembly for assembly in _inert(table, config) if assembly.target not in pieces)
    return Plan((*assemblies, *inert), sizes_of(config), tuple(zeros))


def _inert(table: Table, config: ViTConfig) -> Iterable[Assembly]:
    """Tensors that the project's class has, and that play no part."""
    first = table.first_texts(config)
    for key, layout in table.empty:
        yield Assembly(key.write({}, first), layout, ())
    for key, value, layout in table.constants:
        yield Assembly(key.write({}, first), layout, (), value)


def _links_for(table: Table, config: ViTConfig) -> Iterable[Link]:
    missing, first = [], table.first_texts(config)
    for name, tensor in canonical_tensors().items():
        for indices in instances(tensor, config):
            row = table.row_of.get(name)
            if row is None:
                missing.append(tensor.name.write(indices))
                continue
            alternative = row.alternatives[0]
            items = enumerate(alternative.items)
            keys = {n: i.key.write(indices, first) for n, i in items if isinstance(i, Part)}
            yield from links_of(row, alternative, indices, keys)
    if missing:
        raise _no_rows(table, missing)


def _no_rows(table: Table, missing: list[str]) -> NotRepresentable:
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
    return NotRepresentable(
        f"{table.title} has no place for {len(missing)} tensors of this model.",
        evidence={"table": table.file, "tensors": shown},
        hint="Choose a target that has the feature; `vitconvert list` shows them.",
    )


def _our_step(link: Link) -> Step | None:
    return None if link.our_step is None else (link.our_axes.names[0], link.our_step)


def _reading(link: Link) -> Piece:
    return Piece(link.theirs, link.their_axes, take=link.their_step, put=_our_step(link))


def _writing(link: Link) -> Piece:
    return Piece(link.ours, link.our_axes, take=_our_step(link), put=link.their_step)
