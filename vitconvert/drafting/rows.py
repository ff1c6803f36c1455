"""Rows of a table, made of what is known of their tensors."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.drafting.matching import Match
from vitconvert.drafting.slots import Place, Values
from vitconvert.tables.canonical import canonical_tensors


@dataclass(frozen=True, kw_only=True)
class DraftRow:
    """A row of a draft.

    Attributes:
        name: Ours, as in a table; `{p}` stands for weight and bias.
        spelling: Theirs, as in a table.
        certain: Whether it is no guess.
        reason: How it is known, or why it is a guess.
    """

    name: str
    spelling: str
    certain: bool
    reason: str

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return dict(vars(self))


def rows_of(
    matches: Sequence[Match], values: Values | None
) -> tuple[list[DraftRow], dict[str, str]]:
    """Rows in the order of the canonical tensors, and names of theirs that make up none."""
    used: dict[str, list[tuple[Place, Match]]] = defaultdict(list)
    for match in matches:
        for place in match.slot.places:
            used[place.name].append((place, match))
    rows: list[DraftRow] = []
    left: dict[str, str] = {}
    for name in (name for name in canonical_tensors() if name in used):
        parts = {place.step: (place, match) for place, match in used[name]}
        row: DraftRow | None
        if None in parts:
            place, match = parts[None]
            spelling = _part(place, match)
            row = DraftRow(name=name, spelling=spelling, certain=match.certain, reason=match.reason)
        else:
            row = _joined(name, parts, values)
        if row:
            rows.append(row)
            continue
        why = f"a part of {name}, of which the other parts were not found"
        left |= {key: why for _, match in parts.values() for key in match.entry.keys}
    return list(_merged(rows)), left


def _joined(
    name: str, parts: Mapping[int | None, tuple[Place, Match]], values: Values | None
) -> DraftRow | None:
    """A row that joins several of theirs; a bias of k that is left out is zero."""
    count = FIXED_AXES[canonical_tensors()[name].axes.names[0]]
    missing = [step for step in range(count) if step not in parts]
    reasons = list(dict.fromkeys(match.reason for _, match in parts.values() if not match.certain))
    if missing:
        if name.rpartition(".")[2] != "bias" or len(missing) > 1:
            return None
        if values and not values.is_zero(name, missing[0]):
            reasons.append(f"step {missing[0]} is zero here, and not so in the reference")
    items = [_part(*parts[step]) if step in parts else "zeros" for step in range(count)]
    known = "; ".join(dict.fromkeys(match.reason for _, match in parts.values()))
    return DraftRow(
        name=name,
        spelling=f"cat({', '.join(items)})",
        certain=not reasons,
        reason="; ".join(reasons) or known,
    )


def _part(place: Place, match: Match) -> str:
    text, layout = match.entry.text, str(match.layout.axes)
    if place.selected:
        axis, step = place.selected
        return f"{text}[{axis}={step}] : {layout}"
    if match.entry.stacked:
        return f"{text}[layer={{i}}] : layer {layout}"
    return text if layout == str(match.slot.axes) else f"{text} : {layout}"


def _merged(rows: Sequence[DraftRow]) -> Iterator[DraftRow]:
    """One row for a weight and a bias that are spelled alike."""
    by_name = {row.name: row for row in rows}
    for row in rows:
        stem, _, kind = row.name.rpartition(".")
        both = [by_name.get(f"{stem}.{each}") for each in ("weight", "bias")]
        gathered = {
            replace(
                one,
                name=f"{stem}.{{p}}",
                spelling=one.spelling.replace(one.name.rpartition(".")[2], "{p}"),
            )
            for one in both
            if one
        }
        if None in both or len(gathered) != 1:
            yield row
        elif kind == "weight":
            yield from gathered
