"""Recognising a dialect: the table that explains every key wins."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitconvert.errors import AmbiguousDialect, TensorMismatch, UnknownDialect, some
from vitconvert.tables.axes import Shape
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.dialects import builtin_tables, likely_tables
from vitconvert.tables.names import Names
from vitconvert.tables.others import COMFY_MARK, refuse_quantised, seems_to_be
from vitconvert.tables.table import Table
from vitconvert.wrappers import prefixes, why_beside

NO_TABLE = (
    "`vitconvert table FILE --like NAME -o my.toml` drafts a table of these names (NAME: of timm, "
    "or a file; your code: --module CODE:build), for --table my.toml; `vitconvert list` shows the "
    "dialects."
)
"""What to do about names that no table knows."""
# A table that uses this share of a file's keys is taken to be meant: what it does not explain is
# then reported as a problem of the file, tensor by tensor, and not as an unknown dialect.
_MEANT = 0.5

# The prefix of a wrapper that was taken off, the names without it, and the wrapper's own keys.
_Attempt = tuple[str, Names, Mapping[str, str]]


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
        tables: The candidates; by default all of `weights_map/` that are not `named_only`, or
            that the config names.
        their_config: The `config.json` beside the checkpoint. It decides between tables that
            explain the same keys.

    Raises:
        UnknownDialect: No table explains the keys, or the config names another model. Names the
            nearest and what it lacks.
        AmbiguousDialect: Several tables do. Name one.
        TensorMismatch: Tensors have no elements.
    """
    candidates, config = None if tables is None else list(tables), their_config or {}
    attempts = _attempts(shapes)
    most = sum(0 in shape for shape in shapes.values()) > _MEANT * len(shapes)
    if not most and (found := _fitting(attempts, candidates, config)):
        return found
    weights = {key: s for key, s in shapes.items() if key.rpartition(".")[2] != COMFY_MARK}
    empty = [key for key, shape in weights.items() if shape == (0,) or (most and 0 in shape)]
    # Matrices, too, have no axis but one then.
    if most or any("norm" not in key and not key.endswith("bias") for key in empty):
        raise without_elements(empty, len(shapes))
    return _nearest(attempts, candidates, config)


def without_elements(empty: Sequence[str], count: int) -> TensorMismatch:
    """The error for weights of which other processes kept the elements."""
    return TensorMismatch(
        f"{len(empty)} of {count} tensors have no elements.",
        evidence={"empty": some(empty, 4)},
        meaning="DeepSpeed leaves them so at stage 3 of ZeRO: each process keeps its own part.",
        hint="the zero_to_fp32.py that DeepSpeed puts beside its checkpoints gathers them.",
    )


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
    candidates = None if tables is None else list(tables)
    return _fitting(_attempts(shapes), candidates, their_config or {})


def _attempts(shapes: Mapping[str, Shape]) -> list[_Attempt]:
    """The names as they are, and without a wrapper's prefix and what it keeps beside."""
    own = {key: reason for key in shapes if (reason := why_beside(key))}
    wrapped = {key: shape for key, shape in shapes.items() if key not in own}
    attempts: list[_Attempt] = [("", Names(shapes), {})]
    if prefix := common_prefix(wrapped):
        inside = Names({key[len(prefix) :]: shape for key, shape in wrapped.items()})
        attempts.append((prefix, inside, own))
    return attempts


def _fitting(
    attempts: Sequence[_Attempt],
    tables: Sequence[Table] | None,
    their_config: Mapping[str, object],
) -> Recognised | None:
    found = []
    for prefix, names, own in attempts:
        candidates = tables
        if candidates is None:
            full = {name: shape for name, shape in names.shapes.items() if 0 not in shape}
            # Tensors without elements tell no dialect from another.
            likely = likely_tables(names if len(full) == len(names.shapes) else Names(full))
            candidates = [t for t in likely if not t.named_only or identifies(t, their_config)]
        bindings = (bind(table, names) for table in candidates)
        found += [Recognised(binding, prefix, own) for binding in bindings if binding.fits]
    if not found:
        return None
    # An audio spectrogram transformer, for one, has the tensors of a DeiT and overlapping patches.
    left = [one for one in found if not denied_by(one.table, their_config)]
    if not left:
        table = found[0].table
        raise UnknownDialect(
            "config.json says that these tensors are another model's.",
            evidence={
                "config.json": denied_by(table, their_config),
                "tensors": f"those of {table.name} ({table.title})",
            },
            meaning="Tensors of the same names can mean another function.",
            hint="a table of your own (--table) that extends this one can identify the model.",
        )
    # The tables that the checkpoint's own config names come first, then those that are recognised
    # by themselves, then those that ignore least.
    best = [one for one in left if identifies(one.table, their_config)] or left
    best = [one for one in best if not one.table.named_only] or best
    least = min((len(one.binding.ignored), len(one.prefix)) for one in best)
    best = [one for one in best if (len(one.binding.ignored), len(one.prefix)) == least]
    if len(best) > 1:
        raise ambiguous([one.binding for one in best])
    return best[0]


def common_prefix(keys: Iterable[str]) -> str:
    """The prefix that wrappers such as DataParallel put before every key, one or several times."""
    common, end = os.path.commonprefix(list(keys)), 0  # noqa: RUF071 (of letters)
    while found := next((p for p in prefixes() if common.startswith(p, end)), None):
        end += len(found)
    return common[:end]


def denied_by(table: Table, their_config: Mapping[str, object]) -> str:
    """Entries of a `config.json` that no model of this dialect has; "" if there are none."""
    marks = table.config_file.identify if table.config_file else {}
    said = [f"{key} = {their_config[key]!r}" for key in marks if key in their_config]
    return "" if identifies(table, their_config) else ", ".join(said)


def identifies(table: Table, their_config: Mapping[str, object]) -> bool:
    """Whether a project's `config.json` says that it belongs to this dialect."""
    config_file = table.config_file
    if config_file is None:
        return False
    named = bool(config_file.architecture) and config_file.architecture in their_config
    marks = config_file.identify.items()
    return named or any(str(their_config.get(key)) in values for key, values in marks)


def _nearest(
    attempts: Sequence[_Attempt],
    tables: Sequence[Table] | None,
    their_config: Mapping[str, object],
) -> Recognised:
    shapes = attempts[0][1].shapes
    count = len(shapes)
    refuse_quantised(shapes)
    if tables is None:
        tables = [table for table in builtin_tables().values() if not table.named_only]
    samples = [(attempt[1].some(), attempt) for attempt in attempts]
    nearest, (prefix, names, own) = max(
        ((bind(table, sample), attempt) for sample, attempt in samples for table in tables),
        # Of two that explain as much, the nearer lacks and misshapes less, then misfits less; a
        # name as it is in the file comes before one without its prefix.
        key=lambda one: (
            one[0].explained + len(one[0].ignored),
            -len(one[0].lacking) - len(one[0].misshapen),
            -len(one[0].unexplained) - len(one[0].misfits),
            not one[1][0],
        ),
    )
    if nearest.names is not names:
        nearest = bind(nearest.table, names)
    meant = bool(count) and nearest.explained >= _MEANT * count
    left = sorted([*nearest.unexplained, *nearest.misfits, *nearest.misshapen])
    lacks = bool(left or nearest.lacking) and nearest.table.builtin
    # A text model has attention's names, and nothing that reads patches.
    alike = meant and not nearest.lacking
    seems = seems_to_be(shapes, alike=alike) if lacks else None
    if meant and seems is None:
        return Recognised(nearest, prefix, own)
    evidence: dict[str, object] = {"keys": count}
    if kind := their_config.get("model_type"):
        evidence["config.json"] = f"model_type = {kind!r}"
    if nearest.explained:
        table = nearest.table
        evidence["nearest"] = f"{table.name} ({table.title}), which explains {nearest.explained}"
    fact = "No table of weights_map/ explains these tensors."
    hint = NO_TABLE
    if seems:
        what, hint = seems
        fact = f"This seems to be {what}, which vitconvert does not support."
    error = UnknownDialect(fact, evidence={**evidence, "unexplained": some(left, 4)}, hint=hint)
    error.alike = seems_to_be(shapes, alike=True) is not None
    raise error


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
