"""What `--to` means: which dialect, with which companions, holds a model's function."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.conversion.derivation import state
from vitconvert.conversion.gauges import GAUGES, Gauge
from vitconvert.conversion.project_config import look_up
from vitconvert.conversion.target import Target, check_place, fit_target
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.export.huggingface_config import huggingface_config
from vitconvert.export.openclip_config import openclip_config
from vitconvert.export.timm_config import timm_config, timm_config_by_name
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.canonical import instances
from vitconvert.tables.dialects import builtin_tables, find_tables
from vitconvert.tables.table import Table

OWN = "vit"
_BY_ARGUMENTS = ("timm", "timm_root_stem")  # what timm's VisionTransformer can be told to be
_UNSURE = "leaves out a part that is not known to be zero"
_OWN_LAYOUTS = ("timm", "hf", "vit")  # what `vit` writes: the first that holds the function


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A model and what travels with it, on the way to a target."""

    config: ViTConfig
    preprocessing: Preprocessing | None = None
    labels: Labels | None = None
    dialect: str | None = None  # that the model was read from
    architecture: str | None = None  # of timm, that the model came with
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of timm, that it came with
    pretrained_cfg: dict[str, Any] | None = None


def choose_target(to: str, wish: Wish, allow: Sequence[str] = ()) -> tuple[Target, dict[str, str]]:
    """The dialect that `to` means for this model.

    Args:
        to: An ecosystem, a dialect or `vit`.
        wish: The model.
        allow: Changed classes (`allowed_as` of their table) that may open it, by name.

    Returns:
        The target, and why other dialects of the ecosystem (or for `vit`, other layouts) were
        passed over: name -> reason.

    Raises:
        NotRepresentable: None of them can compute this function. The reasons of all are given.
        UsageError: `to` is neither an ecosystem nor a dialect.
    """
    refused: dict[str, str] = {}
    errors = []
    for tables in _candidates(to, wish.dialect, allow):
        unsure: list[Table] = []  # that are tried after all others
        for table in itertools.chain(tables, unsure):
            if table not in unsure and _leaves_out(table, wish.config):
                unsure.append(table)
                continue
            try:
                target = _fit(table, wish)
            except NotRepresentable as error:
                refused[table.name] = reason(error)
                errors.append(error)
                continue
            rest = () if table in unsure else unsure
            return target, refused | {table.name: _UNSURE for table in rest}
    if len(errors) == 1:
        raise errors[0]
    raise NotRepresentable(
        f"No dialect of {to!r} computes the function of these weights.",
        details=[f"{name}: {reason}" for name, reason in refused.items()],
    )


def _leaves_out(table: Table, config: ViTConfig) -> bool:
    """Whether a dialect with a place for the model leaves out a part, which must be zero."""
    try:
        check_place(table, config, only=False)
    except NotRepresentable:
        return False
    return any(table.row_of[name].leaves_out for name, some in instances(config).items() if some)


def choose_gauged_target(
    to: str, wish: Wish, allow: Sequence[str]
) -> tuple[Target, tuple[Gauge, ...], dict[str, str]]:
    """As `choose_target`, after as few of the allowed steps as make the function fit.

    Returns:
        The target, the steps to take first, and why other dialects were passed over.

    Raises:
        NotRepresentable: No dialect fits. The hint names all steps that together would help.
        UsageError: There is no step of this name.
    """
    _check_known(to, allow)
    try:
        target, passed_over = choose_target(to, wish, allow)
        return target, _for_zeros(target, wish, allow), passed_over
    except NotRepresentable as error:
        for gauges in _combinations(allow):
            if found := _fitting(to, wish, gauges, allow):
                target, passed_over = found
                return target, (*gauges, *_for_zeros(target, wish, allow)), passed_over
        error.hint = _offer(to, wish) or error.hint
        error.meaning = f"Targets that hold it as it is: {', '.join(_fitting_ecosystems(wish))}."
        raise


def _fitting_ecosystems(wish: Wish) -> list[str]:
    held = (builtin_tables()[name] for name, why in holders(wish).items() if why is None)
    return sorted({table.ecosystem for table in held if not table.allowed_as})


def _check_known(to: str, allow: Sequence[str]) -> None:
    known = (*GAUGES, *_adapted_modules(to))
    if unknown := [name for name in allow if name not in known]:
        raise UsageError(
            f"There is no step {unknown[0]!r} to allow.", evidence={"steps": ", ".join(known)}
        )


def _offer(to: str, wish: Wish) -> str | None:
    """All steps that together would help, if any do."""
    for modules in dict.fromkeys(((), _adapted_modules(to))):
        for gauges in _combinations(name for name, gauge in GAUGES.items() if not gauge.free):
            if (gauges or modules) and (found := _fitting(to, wish, gauges, modules)):
                zeroing = [gauge.name for gauge in _for_zeros(found[0], wish, tuple(GAUGES))]
                steps = [gauge.name for gauge in gauges if not gauge.free]
                return _hint([*steps, *modules, *zeroing], zeroing)
    return None


def _hint(steps: Sequence[str], zeroing: Sequence[str]) -> str:
    names = " ".join(f"--allow {step}" for step in steps)
    # Headers do not tell whether what the target leaves out is zero.
    condition = "".join(f"; {step} only if the bias of the keys is not zero" for step in zeroing)
    return f"{names} makes it fit, with the same function and other bytes{condition}."


def _adapted_modules(to: str) -> tuple[str, ...]:
    """Changed classes of the ecosystem, by the names that they are allowed as."""
    tables = itertools.chain(*(find_tables(layout) for layout in _layouts(to)))
    return tuple(dict.fromkeys(table.allowed_as for table in tables if table.allowed_as))


def _combinations(names: Iterable[str]) -> Iterator[tuple[Gauge, ...]]:
    """No step, one or two, since no dialect needs more; each also with as many that are free."""
    gauges = [GAUGES[name] for name in names if name in GAUGES]
    free = [gauge for gauge in GAUGES.values() if gauge.free]
    for count in (0, 1, 2):
        for steps in itertools.permutations(gauges, count):
            for more in (0, 1, 2):
                yield from ((*steps, *some) for some in itertools.combinations(free, more))


def _fitting(
    to: str, wish: Wish, gauges: tuple[Gauge, ...], allow: Sequence[str]
) -> tuple[Target, dict[str, str]] | None:
    config = wish.config
    for gauge in gauges:
        after = gauge.config(config)
        if after is None or after == config:
            return None
        config = after
    try:
        return choose_target(to, replace(wish, config=config), allow)
    except NotRepresentable:
        return None


def _for_zeros(target: Target, wish: Wish, allow: Sequence[str]) -> tuple[Gauge, ...]:
    """The step that makes zero what the target leaves out."""
    gauge = GAUGES["drop-key-bias"]
    fits = target.plan.zeros and gauge.name in allow and gauge.config(wish.config)
    return (gauge,) if fits else ()


def _candidates(to: str, dialect: str | None, allow: Sequence[str]) -> list[list[Table]]:
    """The tables of each layout that may be written, the one that was read first."""
    return [
        sorted(
            (t for t in find_tables(layout) if t.name == to or _may_be_chosen(t, allow)),
            key=lambda t: t.name != dialect,
        )
        for layout in _layouts(to)
    ]


def _layouts(to: str) -> tuple[str, ...]:
    return _OWN_LAYOUTS if to == OWN else (to,)


def _may_be_chosen(table: Table, allow: Sequence[str]) -> bool:
    return not _historic(table) and (not table.allowed_as or table.allowed_as in allow)


def _historic(table: Table) -> bool:
    """Spellings that today's release of the project does not write."""
    return table.name.endswith("_memory") or table.name == "timm_2020"


def _fit(table: Table, wish: Wish) -> Target:
    match table.ecosystem:
        case "timm":
            return _fit_timm(table, wish)
        case "hf":
            check_place(table, wish.config)
            companion = huggingface_config(table, wish.config, labels=wish.labels)
            return fit_target(table, wish.config, companion)
        case "openclip":
            return _fit_openclip(table, wish)
        case ecosystem if ecosystem == OWN:
            own = {name: getattr(wish.config, name) for name in field_names()}
            stated = {name: value for name, value in own.items() if value is not None}
            return fit_target(table, wish.config, named=state(stated, "vitconvert.json"))
    return fit_target(table, wish.config)


def _fit_openclip(table: Table, wish: Wish) -> Target:
    """Beside its own configuration, but for towers of timm's that it has no name for.

    Of these, only a plain ViT is known to be of the class whose tensors a dialect spells.
    """
    path = table.config_file.architecture if table.config_file else ""
    try:
        written = openclip_config(table, wish.config)
    except NotRepresentable:
        plain = table.name.removeprefix("openclip_") in _BY_ARGUMENTS
        if not path or not (plain or table.name == wish.dialect):
            raise
        return fit_target(table, wish.config)
    row = find_architecture("timm", look_up(written, path)) if path else {}
    return fit_target(table, wish.config, written, state(row, "architecture"))


def _fit_timm(table: Table, wish: Wish) -> Target:
    """By arguments, which describe a plain ViT, or else by an architecture's name."""
    if table.name not in _BY_ARGUMENTS:
        return _fit_timm_by_name(table, wish)
    try:
        return _fit_timm_by_arguments(table, wish)
    except NotRepresentable as by_arguments:
        try:
            return _fit_timm_by_name(table, wish)
        except NotRepresentable:
            raise by_arguments from None


def _fit_timm_by_arguments(table: Table, wish: Wish) -> Target:
    check_place(table, wish.config)
    companions = _timm_companions(wish)
    written = timm_config(table, wish.config, architecture=wish.architecture, **companions)
    # All else about the architecture is overruled by the arguments that go with it.
    eps = find_architecture("timm", written["architecture"])["norm_eps"]
    return fit_target(table, wish.config, written, state({"norm_eps": eps}, "architecture"))


def _fit_timm_by_name(table: Table, wish: Wish) -> Target:
    """The name that the checkpoint came with, or one that fits."""
    written = timm_config_by_name(
        table,
        wish.config,
        architecture=wish.architecture if wish.dialect == table.name else None,
        arguments=wish.arguments,
        **_timm_companions(wish),
    )
    row = find_architecture("timm", written["architecture"])
    return fit_target(table, wish.config, written, state(row, "architecture"), only=False)


def _timm_companions(wish: Wish) -> dict[str, Any]:
    return {
        "preprocessing": wish.preprocessing,
        "labels": wish.labels,
        "pretrained_cfg": wish.pretrained_cfg,
    }


def holders(wish: Wish) -> dict[str, str | None]:
    """For every dialect, None if it can hold the model, else why it cannot."""
    found: dict[str, str | None] = {}
    for name, table in builtin_tables().items():
        try:
            left_out = _fit(table, wish).plan.zeros
            found[name] = (
                f"leaves out {left_out[0].taken}, which is not known to be zero"
                if left_out
                else None
            )
        except NotRepresentable as error:
            found[name] = reason(error)
    return found


def reason(error: NotRepresentable) -> str:
    """Why a dialect was refused, in one line."""
    evidence = (f"{k} {v}" for k, v in error.evidence.items() if k != "table")
    return "; ".join(error.details) or "; ".join((error.fact.rstrip("."), *evidence))
