"""Rows of a table, made of what is known of their tensors."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.drafting.matching import DraftMatch
from vitconvert.drafting.slots import ComparedValues, Place
from vitconvert.tables.canonical import canonical_tensors


@dataclass(frozen=True, kw_only=True)
class DraftRow:
    """A row of a draft.

    Attributes:
        name: Ours, as in a table; `{p}` stands for weight and bias.
        spelling: Theirs, as in a table.
        certain: Whether it is no guess.
        reason: How it is known, or why it is a guess.
        others: Spellings that the shape of theirs allows as well.
    """

    name: str
    spelling: str
    certain: bool
    reason: str
    others: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return dict(vars(self))


def rows_of(
    matches: Sequence[DraftMatch], values: ComparedValues | None
) -> tuple[list[DraftRow], dict[str, str]]:
    """Rows in the order of the canonical tensors, and names of theirs that make up none."""
    used: dict[str, list[tuple[Place, DraftMatch]]] = defaultdict(list)
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
            row = DraftRow(
                name=name,
                spelling=spelling,
                certain=match.certain,
                reason=match.reason,
                others=tuple(_part(place, replace(match, layout=one)) for one in match.others),
            )
        else:
            row = _joined(name, parts, values)
        if row:
            rows.append(row)
            continue
        why = f"a part of {name}, of which the other parts were not found"
        left |= {key: why for _, match in parts.values() for key in match.entry.keys}
    return list(_merged(rows)), left


def _joined(
    name: str, parts: Mapping[int | None, tuple[Place, DraftMatch]], values: ComparedValues | None
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
    # Those of one kind lie alike: all in their next layout, then all in the one after it.
    in_order = [parts[step] for step in sorted(parts, key=lambda step: step or 0)]
    several = zip(*(match.others for _, match in in_order), strict=False)
    turned = (
        [
            _part(place, replace(match, layout=one))
            for (place, match), one in zip(in_order, layouts, strict=True)
        ]
        for layouts in several
    )
    known = "; ".join(dict.fromkeys(match.reason for _, match in parts.values()))
    return DraftRow(
        name=name,
        spelling=f"cat({', '.join(items)})",
        certain=not reasons,
        reason="; ".join(reasons) or known,
        others=tuple(f"cat({', '.join(one)})" for one in turned if not missing),
    )


def _part(place: Place, match: DraftMatch) -> str:
    text, layout, axes = match.entry.text, str(match.layout.axes), match.slot.axes
    if match.entry.heads:
        axes = axes.without("head")
    if place.selected:
        axis, step = place.selected
        return f"{text}[{axis}={step}] : {layout}"
    if match.entry.stacked:
        return f"{text}[layer={{i}}] : layer {layout}"
    return text if layout == str(axes) else f"{text} : {layout}"


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


_NORMS = ("blocks.{i}.norm1", "blocks.{i}.norm2")


def with_shared_norm(rows: Sequence[DraftRow]) -> list[DraftRow]:
    """A norm that is the only one of its block, for both places: one that is used twice."""
    of_norms = [row for row in rows if row.name.startswith(_NORMS)]
    if len({row.name.rpartition(".")[0] for row in of_norms}) != 1:
        return [*rows]
    (module,) = {row.name.rpartition(".")[0] for row in of_norms}
    if any(row.name.startswith("blocks.{i}.norm") for row in rows if row not in of_norms):
        return [*rows]
    (other,) = (name for name in _NORMS if name != module)
    found: list[DraftRow] = []
    for row in rows:
        if row not in of_norms:
            found.append(row)
            continue
        both = (module, other) if module == _NORMS[0] else (other, module)
        found += [
            replace(
                row,
                name=row.name.replace(module, name),
                spelling=f"shared {row.spelling}",
                certain=False,
                reason="a block has only this norm, so both places may use it",
            )
            for name in both
        ]
    return found


def orders_of(rows: Sequence[DraftRow]) -> Iterator[list[DraftRow]]:
    """The rows as they are, then with guesses otherwise.

    What may be otherwise: the layout of one, which of the two norms of a block is which, and which
    of its square matrices are q, k, v and the projection.
    """
    guessed = {row.name for row in rows if not row.certain}
    layouts = [[row, *(replace(row, spelling=one) for one in row.others)] for row in rows]
    norms = [row for row in rows if row.name.startswith(_NORMS)]
    swap = any(row.name in guessed for row in norms) and len({r.spelling for r in norms}) > 1
    places = (
        _square_places(rows) if "blocks.{i}.attn.qkv" in {_module_of(n) for n in guessed} else 0
    )
    for several in itertools.islice(itertools.product(*layouts), _MOST_LAYOUTS):
        for exchanged in (False, True) if swap else (False,):
            for order in itertools.permutations(range(places)):
                kept = _exchanged(several) if exchanged else [*several]
                yield _permuted(kept, order) if places else kept


_MOST_LAYOUTS = 8
_QKV, _PROJ = "blocks.{i}.attn.qkv", "blocks.{i}.attn.proj"


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _items(spelling: str) -> list[str]:
    inside = re.fullmatch(r"cat\((.*)\)", spelling)
    return inside[1].split(", ") if inside else []


def _square_places(rows: Sequence[DraftRow]) -> int:
    """Three if q, k and v are apart, four if the projection is a guess too, or none."""
    if not all(_items(row.spelling) for row in rows if _module_of(row.name) == _QKV):
        return 0
    proj = [row for row in rows if _module_of(row.name) == _PROJ]
    alike = {row.name.rpartition(".")[2] for row in proj} == {
        row.name.rpartition(".")[2] for row in rows if _module_of(row.name) == _QKV
    }
    return 4 if alike and any(not row.certain for row in proj) else 3


def _permuted(rows: Sequence[DraftRow], order: Sequence[int]) -> list[DraftRow]:
    """With q, k, v, and the projection, in another order."""
    proj = {
        row.name.rpartition(".")[2]: row.spelling for row in rows if _module_of(row.name) == _PROJ
    }
    made: dict[str, list[str]] = {}
    for row in rows:
        if _module_of(row.name) == _QKV:
            kind = row.name.rpartition(".")[2]
            items = [*_items(row.spelling), *([proj[kind]] if len(order) > 3 else [])]
            made[kind] = [items[n] for n in order]
    found = []
    for row in rows:
        kind = row.name.rpartition(".")[2]
        if _module_of(row.name) == _QKV:
            row = replace(row, spelling=f"cat({', '.join(made[kind][:3])})")
        elif _module_of(row.name) == _PROJ and len(order) > 3:
            row = replace(row, spelling=made[kind][3])
        found.append(row)
    return found


def reordered(rows: Sequence[DraftRow]) -> Iterator[list[DraftRow]]:
    """The rows with q, k and v in other orders within the matrices that join them."""
    spelled = [one for row in rows for one in _with_axes(row)]
    for several in (spelled, *_head_by_head(spelled)):
        yield several
        if all(len(_items(row.spelling)) == 3 for row in several if _module_of(row.name) == _QKV):
            orders = [*itertools.permutations(range(3))][1:]
            yield from (_permuted(several, order) for order in orders)


def _with_axes(row: DraftRow) -> list[DraftRow]:
    """A row of q, k and v in one matrix, as a weight and a bias whose axes are written out."""
    if _module_of(row.name) != _QKV or ":" in row.spelling or _items(row.spelling):
        return [row]
    axes = canonical_tensors()
    kinds = ("weight", "bias") if "{p}" in row.name else (row.name.rpartition(".")[2],)
    return [
        replace(
            row,
            name=f"{_QKV}.{kind}",
            spelling=f"{row.spelling.replace('{p}', kind)} : {axes[f'{_QKV}.{kind}'].axes}",
        )
        for kind in kinds
    ]


def _head_by_head(rows: Sequence[DraftRow]) -> Iterator[list[DraftRow]]:
    """With all of a head before the next head's."""
    for order in (r"(head \1 dim)", r"(head dim \1)"):
        turned = [
            replace(row, spelling=re.sub(r"\((qkv|kv|qk) head dim\)", order, row.spelling))
            if _module_of(row.name) == _QKV
            else row
            for row in rows
        ]
        if turned != rows:
            yield turned


def _exchanged(rows: Sequence[DraftRow]) -> list[DraftRow]:
    """With the two norms of a block in each other's place."""
    first, second = _NORMS
    turned = {first: second, second: first}
    spelled = {row.name: row.spelling for row in rows}
    found = []
    for row in rows:
        module, _, kind = row.name.rpartition(".")
        if module in turned:
            other = spelled.get(f"{turned[module]}.{kind}", row.spelling)
            row = replace(row, spelling=other)
        found.append(row)
    return found


def with_fc_norm(rows: Sequence[DraftRow]) -> list[DraftRow]:
    """The last norm after the pooling, instead of before it."""
    return [
        replace(row, name=f"fc_{row.name}") if _module_of(row.name) == "norm" else row
        for row in rows
    ]
