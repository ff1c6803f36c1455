"""Whether a target holds a model, as it is or after steps: the search, without its words."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vitconvert.config import ViTConfig
from vitconvert.conversion.families import family_word, identifying_mark, is_of_family
from vitconvert.conversion.steps import STEPS, Step, config_after, replace_norm_eps
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import DescribedModel, program_of
from vitconvert.programs.target import Target, check_place
from vitconvert.tables.architectures import architectures
from vitconvert.tables.canonical import instances
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table

OWN_LAYOUT = "vit"
_UNSURE = "leaves out a part that is not known to be zero"

Attempt = tuple[tuple[Step, ...], tuple[str, ...]]
"""Steps to take, and changed classes to write for (`adapted` of their program)."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A dialect that holds a model.

    Attributes:
        target: Where it goes, once the steps are taken.
        steps: The steps, in their order.
        passed_over: Why other dialects of the library (or for `vit`, other layouts) cannot hold
            it: name -> reason.
        classes: Changed classes that were allowed.
    """

    target: Target
    steps: tuple[Step, ...]
    passed_over: Mapping[str, str]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why no dialect of a target holds a model: name of the dialect -> its refusal."""

    refusals: Mapping[str, NotRepresentable]


def fit(
    to: str | Table,
    model: DescribedModel,
    steps: tuple[Step, ...] = (),
    classes: Sequence[str] = (),
) -> Fit | Misfit:
    """The dialect that `to` means for a model after steps, each of which must change something.

    Args:
        to: A library, a dialect, `vit`, or a table of somebody's own.
        model: The model before the steps.
        steps: The steps, in their order.
        classes: Changed classes that may be written for.

    Raises:
        UsageError: `to` is neither a library nor a dialect.
    """
    config = config_after(steps, model.config)
    if config is None:
        return Misfit(refusals={})
    model = replace(model, config=config)
    refusals: dict[str, NotRepresentable] = {}
    for tables in _candidates(to, model, classes):
        unsure: list[Table] = []  # that are tried after all others
        for table in itertools.chain(tables, unsure):
            if table not in unsure and _leaves_out(table, config):
                unsure.append(table)
                continue
            try:
                target = program_of(table).fit(table, model)
            except NotRepresentable as error:
                refusals[table.name] = error
                continue
            refused = {name: error.in_one_line() for name, error in refusals.items()}
            rest = () if table in unsure else unsure
            passed_over = refused | {table.name: _UNSURE for table in rest}
            return Fit(target=target, steps=steps, passed_over=passed_over, classes=tuple(classes))
    return Misfit(refusals=refusals)


def search(to: str | Table, model: DescribedModel, attempts: Iterable[Attempt]) -> Fit | Misfit:
    """The first of several attempts that fits; or else why the first does not."""
    misfits = []
    for steps, classes in attempts:
        found = fit(to, model, steps, classes)
        if isinstance(found, Fit):
            return found
        misfits.append(found)
    return misfits[0]


def attempts(
    asked: Iterable[Step], lossy: Iterable[Step], classes: Iterable[tuple[str, ...]]
) -> Iterator[Attempt]:
    """What may be tried, the least first: no step, one or two, each also with as many free ones.

    After all of them, each comes behind a step that is lossy.
    """
    # No dialect needs more than two: weights_map/CONVERSIONS.md has every pair.
    counts, several = (0, 1, 2), [*classes]
    asked, free = [*asked], [step for step in STEPS.values() if step.free]
    for first in ((), *((step,) for step in lossy)):
        for changed in several:
            for count in counts:
                for some in itertools.permutations(asked, count):
                    for more in counts:
                        for others in itertools.combinations(free, more):
                            yield (*first, *some, *others), changed


def with_any_eps(model: DescribedModel) -> DescribedModel:
    """The model whose text encoder may become one of another eps."""
    return replace(model, text=replace(model.text, any_eps=True)) if model.text else model


def lossy_steps(to: str | Table, model: DescribedModel, classes: Sequence[str]) -> list[Step]:
    """The step to each eps that models of the target have, the nearest first."""
    ours = model.config.norm_eps
    found: set[float] = set()
    for table in itertools.chain(*_candidates(to, model, classes)):
        if table.name in architectures():
            rows = architectures()[table.name].stating("norm_eps")
            found |= {row["norm_eps"] for row in rows.values()}
        found |= {default.value for default in table.defaults if default.name == "norm_eps"}
    nearest = sorted(found - {ours}, key=lambda eps: (abs(math.log(eps / ours)), eps))
    return [replace_norm_eps(eps) for eps in nearest]


def zeroing_steps(found: Fit, model: DescribedModel) -> tuple[Step, ...]:
    """The step that makes zero what a target leaves out, if there is one for it."""
    step = STEPS["drop-key-bias"]
    return (step,) if found.target.plan.zeros and step.applies(model.config) else ()


def changed_classes(to: str | Table) -> tuple[str, ...]:
    """Changed classes of a library, by the names that they are allowed as."""
    if isinstance(to, Table):
        return ()
    tables = itertools.chain(*(find_tables(layout) for layout in _layouts(to)))
    return tuple(dict.fromkeys(filter(None, map(changed_class, tables))))


def changed_class(table: Table) -> str:
    """What allows to write for a changed class; "" for a class as it is."""
    return program_of(table).adapted.get(table.name, "")


def _candidates(
    to: str | Table, model: DescribedModel, classes: Sequence[str]
) -> list[list[Table]]:
    """The tables of each layout that may be written: those of its family, the one read, others."""
    if isinstance(to, Table):
        return [[to]]

    def order(table: Table) -> tuple[object, ...]:
        mark = identifying_mark(table, model.config)
        nearness = -len(family_word(mark)) if is_of_family(mark, model) else 0
        return mark not in model.called, nearness, table.name != model.dialect

    def may_be_written(table: Table) -> bool:
        is_allowed = changed_class(table) in ("", *classes)
        return table.name == to or (not table.historic and is_allowed)

    return [
        sorted(filter(may_be_written, find_tables(layout)), key=order) for layout in _layouts(to)
    ]


def _layouts(to: str) -> tuple[str, ...]:
    """What is written for a target: of `vit`, the first that holds the function."""
    return ("timm", "hf", OWN_LAYOUT) if to == OWN_LAYOUT else (to,)


def _leaves_out(table: Table, config: ViTConfig) -> bool:
    """Whether a dialect with a place for the model leaves out a part, which must be zero."""
    try:
        check_place(table, config, only=False)
    except NotRepresentable:
        return False
    return any(table.row_of[name].leaves_out for name, some in instances(config).items() if some)
