"""Recognising a dialect: the table that explains every key wins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitconvert.errors import AmbiguousDialect, TensorMismatch, UnknownDialect, some
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.dialects import builtin_tables, likely_tables
from vitconvert.tables.others import refuse_quantised, seems_to_be
from vitconvert.tables.sizes import Shape
from vitconvert.tables.table import Table
from vitconvert.wrappers import prefixes, why_beside

# A table that uses this share of a file's keys is taken to be meant: what it does not explain is
# then reported as a problem of the file, tensor by tensor, and not as an unknown dialect.
_MEANT = 0.5

_Attempt = tuple[str, Binding]  # the prefix that was taken off, and what came of it


@dataclass(frozen=True)
class Recognised:
    """The dialect of a checkpoint, with the wrapper prefix that was taken off its keys.

    Attributes:
        binding: The table laid over the keys that have the prefix, which is taken off.
        prefix: What the wrapper put before them.
        wrappers_own: The wrapper's keys beside them, which have no prefix, and what they are.
    """

    binding: Binding
    prefix: str
    wrappers_own: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """The dialect's table."""
        return self.binding.table


def recognise(
    shapes: Mapping[str, Shape],
    tables: Iterable[Table] | None = None,
    their_config: Mapping[str, object] | None = None,
) -> Recognised:
    """Find the one table that explains every key.

    Args:
        shapes: Names and shapes from the checkpoint's header.
        tables: The candidates; by default all of `weights_map/` that are not `named_only`.
        their_config: The `config.json` beside the checkpoint. It decides between tables that
            explain the same keys.

    Raises:
        UnknownDialect: No table explains the keys, or the config names another model. Names the
            nearest and what it lacks.
        AmbiguousDialect: Several tables do. Name one.
        TensorMismatch: Most tensors have no elements.
    """
    _check_not_empty(shapes)
    candidates = None if tables is None else list(tables)
    found = fitting(shapes, candidates, their_config)
    if found is not None:
        return found
    own, attempts = _attempts(shapes)
    every = _recognisable_tables() if candidates is None else candidates
    prefix, binding = _nearest(
        [(p, bind(table, s)) for p, s in attempts for table in every], len(shapes)
    )
    return Recognised(binding, prefix, own if prefix else {})


def fitting(
    shapes: Mapping[str, Shape],
    tables: Iterable[Table] | None = None,
    their_config: Mapping[str, object] | None = None,
) -> Recognised | None:
    """The one table that explains every key, or None; the arguments are those of `recognise`.

    Raises:
        UnknownDialect: The config names another model.
        AmbiguousDialect: Several tables do.
    """
    own, attempts = _attempts(shapes)
    candidates = None if tables is None else list(tables)
    found = [
        (p, binding)
        for p, s in attempts
        for table in (likely_tables(_with_elements(s)) if candidates is None else candidates)
        if (binding := bind(table, s)).fits
    ]
    if not found:
        return None
    prefix, binding = _the_one(found, their_config or {})
    return Recognised(binding, prefix, own if prefix else {})


def _attempts(
    shapes: Mapping[str, Shape],
) -> tuple[Mapping[str, str], list[tuple[str, Mapping[str, Shape]]]]:
    """A wrapper's own keys, and the others: as they are, and without a wrapper's prefix."""
    own = {key: reason for key in shapes if (reason := why_beside(key))}
    wrapped = {key: shape for key, shape in shapes.items() if key not in own}
    prefix = common_prefix(wrapped)
    if not prefix:
        return own, [("", shapes)]
    return own, [("", shapes), (prefix, {key[len(prefix) :]: s for key, s in wrapped.items()})]


def _with_elements(shapes: Mapping[str, Shape]) -> list[str]:
    """The keys that tell one dialect from another."""
    return [key for key, shape in shapes.items() if 0 not in shape]


def _recognisable_tables() -> list[Table]:
    return [table for table in builtin_tables().values() if not table.named_only]


def _check_not_empty(shapes: Mapping[str, Shape]) -> None:
    empty = [key for key, shape in shapes.items() if 0 in shape]
    if len(empty) > _MEANT * len(shapes):
        raise TensorMismatch(
            f"{len(empty)} of {len(shapes)} tensors have no elements.",
            evidence={"empty": some(empty, 4)},
            meaning="DeepSpeed leaves them so at stage 3 of ZeRO: each process keeps its own part.",
            hint="the zero_to_fp32.py that DeepSpeed puts beside its checkpoints gathers them.",
        )


def common_prefix(keys: Iterable[str]) -> str:
    """What wrappers such as DataParallel put before every key, taken off repeatedly."""
    keys, prefix = list(keys), ""
    while keys:
        found = next((p for p in prefixes() if all(k.startswith(p) for k in keys)), None)
        if found is None:
            return prefix
        prefix += found
        keys = [key[len(found) :] for key in keys]
    return prefix


def _not_denied(
    fitting: Sequence[_Attempt], their_config: Mapping[str, object]
) -> Sequence[_Attempt]:
    """Those that the checkpoint's own config does not call another model.

    An audio spectrogram transformer, for one, has the tensors of a DeiT and overlapping patches.
    """
    left = [(p, b) for p, b in fitting if not _denied_by(b.table, their_config)]
    if left:
        return left
    table = fitting[0][1].table
    raise UnknownDialect(
        "config.json says that these tensors are another model's.",
        evidence={
            "config.json": _denied_by(table, their_config),
            "tensors": f"those of {table.name} ({table.title})",
        },
        meaning="Tensors of the same names can mean another function.",
        hint="a table of your own (--table) that extends this one can identify the model.",
    )


def _denied_by(table: Table, their_config: Mapping[str, object]) -> str:
    marks = table.config_file.identify if table.config_file else {}
    said = [f"{key} = {their_config[key]!r}" for key in marks if key in their_config]
    return "" if identifies(table, their_config) else ", ".join(said)


def _the_one(fitting: Sequence[_Attempt], their_config: Mapping[str, object]) -> _Attempt:
    best = _decide(_not_denied(fitting, their_config), their_config)
    if len(best) > 1:
        raise _ambiguous([binding for _, binding in best])
    return best[0]


def _decide(fitting: Sequence[_Attempt], their_config: Mapping[str, object]) -> list[_Attempt]:
    """Prefer the tables that the checkpoint's own config names, then those that ignore least."""
    best = [(p, b) for p, b in fitting if identifies(b.table, their_config)] or list(fitting)
    least = min((len(b.ignored), len(p)) for p, b in best)
    return [(p, b) for p, b in best if (len(b.ignored), len(p)) == least]


def identifies(table: Table, their_config: Mapping[str, object]) -> bool:
    """Whether a project's `config.json` says that it belongs to this dialect."""
    config_file = table.config_file
    if config_file is None:
        return False
    named = bool(config_file.architecture) and config_file.architecture in their_config
    marks = config_file.identify.items()
    return named or any(str(their_config.get(key)) in values for key, values in marks)


def _nearest(bindings: Sequence[_Attempt], count: int) -> _Attempt:
    shapes = bindings[0][1].shapes if bindings else {}
    refuse_quantised(shapes)
    prefix, nearest = max(
        bindings,
        key=lambda attempt: (
            attempt[1].explained + len(attempt[1].ignored),
            -len(attempt[1].lacking),
            -len(attempt[1].misshapen),
            -len(attempt[1].unexplained) - len(attempt[1].misfits),
            not attempt[0],
        ),
    )
    meant = bool(count) and nearest.explained >= _MEANT * count
    left = sorted([*nearest.unexplained, *nearest.misfits])
    seems = seems_to_be(shapes, alike=meant) if left and nearest.table.builtin else None
    if meant and seems is None:
        return prefix, nearest
    evidence: dict[str, object] = {"keys": count}
    if nearest.explained:
        table = nearest.table
        evidence["nearest"] = f"{table.name} ({table.title}), which explains {nearest.explained}"
    if seems:
        what, step = seems
        raise UnknownDialect(
            f"This seems to be {what}, which is no Vision Transformer that vitconvert knows.",
            evidence={**evidence, "unexplained": some(left, 4)},
            hint=step,
        )
    raise UnknownDialect(
        "No table of weights_map/ explains these tensors.",
        evidence={**evidence, "unexplained": some(left, 4)},
        hint="`vitconvert list` shows the dialects; --table FILE.toml adds one.",
    )


def _ambiguous(bindings: Sequence[Binding]) -> AmbiguousDialect:
    names = [binding.table.name for binding in bindings]
    return AmbiguousDialect(
        "Several dialects explain every tensor of this file.",
        evidence={b.table.name: b.table.title for b in bindings},
        hint=f"name the one it was written by: --dialect {names[0]}.",
    )
