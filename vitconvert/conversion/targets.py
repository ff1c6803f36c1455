"""What `--to` means for a model: the dialect that holds it, and the steps to get there."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from vitconvert.config import ViTConfig
from vitconvert.conversion.families import nearness
from vitconvert.errors import NotRepresentable, OtherFunction, OtherKind, UsageError
from vitconvert.facts.gauges import GAUGES, NORM_EPS, Gauge, replace_norm_eps
from vitconvert.facts.target import Target, check_place
from vitconvert.programs import DescribedModel, program_of
from vitconvert.tables.architectures import architectures
from vitconvert.tables.candidates import ecosystem_of
from vitconvert.tables.canonical import instances
from vitconvert.tables.dialects import builtin_tables, find_tables
from vitconvert.tables.table import Table

OWN = "vit"
_UNSURE = "leaves out a part that is not known to be zero"


def choose_target(
    to: str | Table, model: DescribedModel, allow: Sequence[str] = ()
) -> tuple[Target, dict[str, str]]:
    """The dialect that `to` means for this model.

    Args:
        to: An ecosystem, a dialect, `vit`, or a table of somebody's own.
        model: The model.
        allow: Changed classes (`allowed_as` of their table) that may open it, by name.

    Returns:
        The target, and why other dialects of the ecosystem (or for `vit`, other layouts) were
        passed over: name -> reason.

    Raises:
        NotRepresentable: None of them can compute this function. The reasons of all are given.
        UsageError: `to` is neither an ecosystem nor a dialect.
    """
    refused: dict[str, str] = {}
    errors: dict[str, NotRepresentable] = {}
    for tables in _candidates(to, model, allow):
        unsure: list[Table] = []  # that are tried after all others
        for table in itertools.chain(tables, unsure):
            if table not in unsure and _leaves_out(table, model.config):
                unsure.append(table)
                continue
            try:
                target = program_of(table).fit(table, model)
            except NotRepresentable as error:
                refused[table.name] = error.in_one_line()
                errors[table.name] = error
                continue
            rest = () if table in unsure else unsure
            return target, refused | {table.name: _UNSURE for table in rest}
    if len(errors) == 1:
        raise next(iter(errors.values()))
    raise _none_of_them(to, errors)


def _none_of_them(to: str | Table, errors: Mapping[str, NotRepresentable]) -> NotRepresentable:
    """Led by the dialect that comes nearest; the others are in the details.

    It has a place for all tensors (of several, it is the one that the ecosystem is called after),
    or its models are at least of this kind, or the least is said.
    """
    reasons = {name: f"{name}: {error.in_one_line()}" for name, error in errors.items()}
    nearest = min(
        reasons,
        key=lambda name: (_distance(name, errors[name], to), len(reasons[name])),
        default=None,
    )
    come_near = f"; the nearest is {reasons[nearest]}" if nearest else ""
    others = f"{len(reasons) - 1}; -v lists them (in Python, details)"
    refusal = NotRepresentable(
        f"No dialect of {_name(to)!r} computes the function of these weights{come_near}.",
        evidence={"others": others} if len(reasons) > 1 else {},
        details=list(reasons.values()),
    )
    refusal.folded = True
    return refusal


def _distance(name: str, error: NotRepresentable, to: str | Table) -> int:
    if isinstance(error, OtherFunction):
        return 0 if name == to else 1
    return 3 if isinstance(error, OtherKind) else 2


def _leaves_out(table: Table, config: ViTConfig) -> bool:
    """Whether a dialect with a place for the model leaves out a part, which must be zero."""
    try:
        check_place(table, config, only=False)
    except NotRepresentable:
        return False
    return any(table.row_of[name].leaves_out for name, some in instances(config).items() if some)


def choose_gauged_target(
    to: str | Table, model: DescribedModel, allow: Sequence[str]
) -> tuple[Target, tuple[Gauge, ...], dict[str, str]]:
    """As `choose_target`, after as few of the allowed steps as make the function fit.

    Returns:
        The target, the steps to take first, and why other dialects were passed over.

    Raises:
        NotRepresentable: No dialect fits. The hint names all steps that together would help.
        UsageError: There is no step of this name.
    """
    _check_known(to, allow)
    if NORM_EPS in allow:
        model = _with_any_eps(model)
    try:
        target, passed_over = choose_target(to, model, allow)
        return target, _for_zeros(target, model, allow), passed_over
    except NotRepresentable as error:
        for gauges in _combinations(allow, _lossy_steps(to, model, allow)):
            if found := _fitting(to, model, gauges, allow):
                target, passed_over = found
                return target, (*gauges, *_for_zeros(target, model, allow)), passed_over
        error.steps, offer = _offer(to, model) or ((), None)
        error.hint = offer or _without_head(to, model) or error.hint
        error.holders = tuple(_fitting_ecosystems(model))
        if model.dialect is not None and model.dialect in builtin_tables():
            error.source = ecosystem_of(model.dialect)
        error.meaning = f"Targets that hold it as it is: {', '.join(error.holders)}."
        raise


def _with_any_eps(model: DescribedModel) -> DescribedModel:
    """The model whose text tower may become one of another eps."""
    return replace(model, text=replace(model.text, any_eps=True)) if model.text else model


def _fitting_ecosystems(model: DescribedModel) -> list[str]:
    held = (builtin_tables()[name] for name, why in holders(model).items() if why is None)
    return sorted({table.ecosystem for table in held if not table.allowed_as})


def _check_known(to: str | Table, allow: Sequence[str]) -> None:
    known = (*GAUGES, NORM_EPS, *_adapted_modules(to))
    if unknown := [name for name in allow if name not in known]:
        raise UsageError(
            f"There is no step {unknown[0]!r} to allow.", evidence={"steps": ", ".join(known)}
        )


def _offer(to: str | Table, model: DescribedModel) -> tuple[tuple[str, ...], str] | None:
    """All steps that together would help, if any do, and what is to be said of them."""
    exact = [name for name, gauge in GAUGES.items() if not gauge.free]
    lossy = _lossy_steps(to, model, [NORM_EPS])
    if model.text and _fitting(to, _with_any_eps(model), (), ()):
        return (NORM_EPS,), f"--allow {NORM_EPS} makes it fit; it changes the text tower's norms."
    for steps in ((), *((step,) for step in lossy)):
        for modules in dict.fromkeys(((), _adapted_modules(to))):
            for more in _combinations(exact):
                gauges = (*steps, *more)
                if (gauges or modules) and (found := _fitting(to, model, gauges, modules)):
                    return _hint(found[0], gauges, modules, model)
    return None


def _without_head(to: str | Table, model: DescribedModel) -> str | None:
    """What makes the ViT fit without its head, if only that stands in the way."""
    if not model.config.num_classes:
        return None
    bare = replace(model, config=model.config.replace(num_classes=0), labels=None)
    if _fitting(to, bare, (), ()):
        return "without its head it fits: --num-classes 0."
    steps, _ = _offer(to, bare) or ((), None)
    names = " ".join(f"--allow {step}" for step in steps)
    return f"without its head it fits: --num-classes 0 {names}." if steps else None


def _hint(
    target: Target, gauges: Sequence[Gauge], modules: Sequence[str], model: DescribedModel
) -> tuple[tuple[str, ...], str]:
    zeroing = [gauge.name for gauge in _for_zeros(target, model, tuple(GAUGES))]
    allowed = [gauge.name for gauge in gauges if not gauge.free]
    steps = (*allowed, *modules, *zeroing)
    names = " ".join(f"--allow {step}" for step in steps)
    # Headers do not tell whether what the target leaves out is zero.
    condition = "".join(f"; {step} only if the bias of the keys is not zero" for step in zeroing)
    if fewer := [gauge.change for gauge in gauges if gauge.narrows]:
        return steps, f"{names} makes it fit: {', '.join(fewer)}{condition}."
    if lossy := [gauge.change for gauge in gauges if gauge.lossy]:
        changes = f"it is lossy ({', '.join(lossy)}), and its effect on the outputs is measured"
        return steps, f"{names} makes it fit; {changes}{condition}."
    return steps, f"{names} makes it fit, with the same function and other bytes{condition}."


def _lossy_steps(to: str | Table, model: DescribedModel, allow: Sequence[str]) -> list[Gauge]:
    """The step to each eps that models of the target have, the nearest first."""
    if NORM_EPS not in allow:
        return []
    ours = model.config.norm_eps
    found: set[float] = set()
    for table in itertools.chain(*_candidates(to, model, allow)):
        if table.name in architectures():
            rows = architectures()[table.name].stating("norm_eps")
            found |= {row["norm_eps"] for row in rows.values()}
        found |= {default.value for default in table.defaults if default.name == "norm_eps"}
    nearest = sorted(found - {ours}, key=lambda eps: (abs(math.log(eps / ours)), eps))
    return [replace_norm_eps(eps) for eps in nearest]


def _adapted_modules(to: str | Table) -> tuple[str, ...]:
    """Changed classes of the ecosystem, by the names that they are allowed as."""
    if isinstance(to, Table):
        return ()
    tables = itertools.chain(*(find_tables(layout) for layout in _layouts(to)))
    return tuple(dict.fromkeys(table.allowed_as for table in tables if table.allowed_as))


def _combinations(names: Iterable[str], lossy: Sequence[Gauge] = ()) -> Iterator[tuple[Gauge, ...]]:
    """No step, one or two, since no dialect needs more; each also with as many that are free.

    After all of them, each comes behind a step that is lossy.
    """
    gauges = [GAUGES[name] for name in names if name in GAUGES]
    free = [gauge for gauge in GAUGES.values() if gauge.free]
    for first in ((), *((step,) for step in lossy)):
        for count in (0, 1, 2):
            for steps in itertools.permutations(gauges, count):
                for more in (0, 1, 2):
                    for some in itertools.combinations(free, more):
                        yield (*first, *steps, *some)


def _fitting(
    to: str | Table, model: DescribedModel, gauges: tuple[Gauge, ...], allow: Sequence[str]
) -> tuple[Target, dict[str, str]] | None:
    config = model.config
    for gauge in gauges:
        after = gauge.config(config)
        if after is None or after == config:
            return None
        config = after
    try:
        return choose_target(to, replace(model, config=config), allow)
    except NotRepresentable:
        return None


def _for_zeros(target: Target, model: DescribedModel, allow: Sequence[str]) -> tuple[Gauge, ...]:
    """The step that makes zero what the target leaves out."""
    gauge = GAUGES["drop-key-bias"]
    fits = target.plan.zeros and gauge.name in allow and gauge.config(model.config)
    return (gauge,) if fits else ()


def _candidates(to: str | Table, model: DescribedModel, allow: Sequence[str]) -> list[list[Table]]:
    """The tables of each layout that may be written: those of its family, the one read, others."""
    if isinstance(to, Table):
        return [[to]]
    return [
        sorted(
            (t for t in find_tables(layout) if t.name == to or _may_be_chosen(t, allow)),
            key=lambda t: (nearness(t, model), t.name != model.dialect),
        )
        for layout in _layouts(to)
    ]


def _name(to: str | Table) -> str:
    return to if isinstance(to, str) else to.name


def _layouts(to: str) -> tuple[str, ...]:
    tables = builtin_tables()
    return (tables[to].layouts if to in tables else ()) or (to,)


def _may_be_chosen(table: Table, allow: Sequence[str]) -> bool:
    return not table.historic and (not table.allowed_as or table.allowed_as in allow)


def holders(model: DescribedModel) -> dict[str, str | None]:
    """For every dialect, None if it can hold the model, else why it cannot."""
    found: dict[str, str | None] = {}
    for name, table in builtin_tables().items():
        try:
            left_out = program_of(table).fit(table, model).plan.zeros
            found[name] = (
                f"leaves out {left_out[0].taken}, which is not known to be zero"
                if left_out
                else None
            )
        except NotRepresentable as error:
            found[name] = error.in_one_line()
    return found
