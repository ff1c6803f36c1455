"""Recognising a dialect: the table that explains every key wins."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitconvert.errors import AmbiguousDialect, TensorMismatch, UnknownDialect, some
from vitconvert.tables.axes import Shape
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.dialects import builtin_tables, likely_tables
from vitconvert.tables.names import Names
from vitconvert.tables.others import refuse_quantised, seems_to_be
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
    own, attempts = _attempts(shapes)
    attempt = _fitting(attempts, candidates, their_config or {})
    if attempt is None:
        every = _recognisable_tables() if candidates is None else candidates
        attempt = _nearest(attempts, every, their_config or {})
    prefix, binding = attempt
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
    attempt = _fitting(attempts, None if tables is None else list(tables), their_config or {})
    if attempt is None:
        return None
    prefix, binding = attempt
    return Recognised(binding, prefix, own if prefix else {})


def _fitting(
    attempts: Sequence[tuple[str, Names]],
    tables: Sequence[Table] | None,
    their_config: Mapping[str, object],
) -> _Attempt | None:
    found = [
        (prefix, binding)
        for prefix, names in attempts
        for table in (likely_tables(_with_elements(names)) if tables is None else tables)
        if (binding := bind(table, names)).fits
    ]
    return _the_one(found, their_config) if found else None


def _attempts(shapes: Mapping[str, Shape]) -> tuple[Mapping[str, str], list[tuple[str, Names]]]:
    """A wrapper's own keys, and the others: as they are, and without a wrapper's prefix."""
    own = {key: reason for key in shapes if (reason := why_beside(key))}
    wrapped = {key: shape for key, shape in shapes.items() if key not in own}
    prefix = common_prefix(wrapped)
    attempts = [("", Names(shapes))]
    if prefix:
        attempts.append((prefix, Names({key[len(prefix) :]: s for key, s in wrapped.items()})))
    return own, attempts


def _with_elements(names: Names) -> Names:
    """The names that tell one dialect from another."""
    if not names.empty:
        return names
    return Names({name: shape for name, shape in names.shapes.items() if 0 not in shape})


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
    common, end = os.path.commonprefix(list(keys)), 0  # noqa: RUF071 (of letters)
    while found := next((p for p in prefixes() if common.startswith(p, end)), None):
        end += len(found)
    return common[:end]


def _not_denied(
    fitting: Sequence[_Attempt], their_config: Mapping[str, object]
) -> Sequence[_Attempt]:
    """Those that the checkpoint's own config does not call another model.

    An audio spectrogram transformer, for one, has the tensors of a DeiT and overlapping patches.
    """
    left = [(p, b) for p, b in fitting if not denied_by(b.table, their_config)]
    if left:
        return left
    table = fitting[0][1].table
    raise UnknownDialect(
        "config.json says that these tensors are another model's.",
        evidence={
            "config.json": denied_by(table, their_config),
            "tensors": f"those of {table.name} ({table.title})",
        },
        meaning="Tensors of the same names can mean another function.",
        hint="a table of your own (--table) that extends this one can identify the model.",
    )


def denied_by(table: Table, their_config: Mapping[str, object]) -> str:
    """What a project's `config.json` says that is of no model of this dialect; "" if nothing."""
    marks = table.config_file.identify if table.config_file else {}
    said = [f"{key} = {their_config[key]!r}" for key in marks if key in their_config]
    return "" if identifies(table, their_config) else ", ".join(said)


def _the_one(fitting: Sequence[_Attempt], their_config: Mapping[str, object]) -> _Attempt:
    best = _decide(_not_denied(fitting, their_config), their_config)
    if len(best) > 1:
        raise ambiguous([binding for _, binding in best])
    return best[0]


def _decide(fitting: Sequence[_Attempt], their_config: Mapping[str, object]) -> list[_Attempt]:
    """Prefer the tables that the checkpoint's own config names, then those that ignore least.

    Those that are `named_only` come after the others, which read the same files.
    """
    best = [(p, b) for p, b in fitting if identifies(b.table, their_config)] or list(fitting)
    best = [(p, b) for p, b in best if not b.table.named_only] or best
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


def _nearest(
    attempts: Sequence[tuple[str, Names]],
    tables: Sequence[Table],
    their_config: Mapping[str, object],
) -> _Attempt:
    shapes = attempts[0][1].shapes
    count = len(shapes)
    refuse_quantised(shapes)
    few = ((prefix, names, names.some()) for prefix, names in attempts)
    bound = [(p, names, bind(table, some)) for p, names, some in few for table in tables]
    prefix, names, nearest = max(
        bound,
        key=lambda attempt: (
            attempt[2].explained + len(attempt[2].ignored),
            -len(attempt[2].lacking),
            -len(attempt[2].misshapen),
            -len(attempt[2].unexplained) - len(attempt[2].misfits),
            not attempt[0],
        ),
    )
    if nearest.names is not names:
        nearest = bind(nearest.table, names)
    meant = bool(count) and nearest.explained >= _MEANT * count
    left = sorted([*nearest.unexplained, *nearest.misfits])
    seems = seems_to_be(shapes, alike=meant) if left and nearest.table.builtin else None
    if meant and seems is None:
        return prefix, nearest
    evidence: dict[str, object] = {"keys": count}
    if kind := their_config.get("model_type"):
        evidence["config.json"] = f"model_type = {kind!r}"
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


def ambiguous(bindings: Sequence[Binding]) -> AmbiguousDialect:
    """The error that names several dialects."""
    names = [binding.table.name for binding in bindings]
    error = AmbiguousDialect(
        "Several dialects explain every tensor of this file.",
        evidence={b.table.name: b.table.title for b in bindings},
        hint=f"name the one it was written by: {' or '.join(f'--dialect {n}' for n in names)}.",
    )
    error.dialects = tuple(names)
    return error
