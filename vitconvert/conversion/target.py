"""What `--to` means for a model: the dialect that holds it, and the steps to get there."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.steps import NORM_EPS, STEPS, Step, replace_norm_eps
from vitconvert.errors import NotRepresentable, OtherFunction, OtherKind, UsageError, nearest
from vitconvert.facts.fact import named_architecture
from vitconvert.programs.program import DescribedModel, program_of
from vitconvert.programs.target import DescribedText, Target, check_place
from vitconvert.tables.architectures import architectures
from vitconvert.tables.canonical import instances
from vitconvert.tables.config_file import look_up
from vitconvert.tables.dialects import builtin_tables, ecosystem_of, find_tables, tables_of
from vitconvert.tables.table import Table

OWN_LAYOUT = "vit"
_UNSURE = "leaves out a part that is not known to be zero"
_PLAIN = "vit"  # the family of models that are called nothing else


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The target of a model.

    Attributes:
        target: Where it goes, once the steps are taken.
        steps: The steps, in their order.
        passed_over: Why other dialects of the ecosystem (or for `vit`, other layouts) cannot hold
            it: name -> reason.
    """

    target: Target
    steps: tuple[Step, ...]
    passed_over: Mapping[str, str]


def describe(source: Checkpoint) -> DescribedModel:
    """What a target has to represent."""
    text, mapping = source.text, source.table.config_file
    # What it is called: what marks it in its project's own file, or else its names.
    marks = [look_up(source.their_config, key) for key in mapping.identify] if mapping else []
    called = [str(mark) for mark in marks if mark]
    if not called:
        named = look_up(source.their_config, mapping.architecture) if mapping else None
        stated = (o for o in source.config.origins.values() if named_architecture(o))
        names = (named, source.located.name, *stated, source.dialect)
        called = [str(name) for name in names if name]
    return DescribedModel(
        config=source.config,
        preprocessing=source.preprocessing,
        labels=source.labels,
        dialect=source.dialect,
        name=source.located.name,
        their_config=source.their_config,
        text=DescribedText.of(text) if text else None,
        called=tuple(called),
    )


def choose_target(to: str | Table, model: DescribedModel, allow: Sequence[str]) -> Choice:
    """The dialect that `to` means for this model, after as few allowed steps as make it fit.

    Args:
        to: An ecosystem, a dialect, `vit`, or a table of somebody's own.
        model: The model.
        allow: Names of steps, and of changed classes (`adapted` of their program).

    Raises:
        NotRepresentable: No dialect fits. The hint names all steps that together would help.
        UsageError: There is no target or step of this name.
    """
    known = (*STEPS, NORM_EPS, *_adapted_modules(to))
    if unknown := [name for name in allow if name not in known]:
        near = nearest(unknown[0], known, 3)
        raise UsageError(
            f"There is no step {unknown[0]!r} to allow.",
            evidence={"steps": ", ".join(known)},
            hint=f"did you mean {' or '.join(near)}?" if near else None,
        )
    if NORM_EPS in allow:
        model = _with_any_eps(model)
    try:
        choice = choose_without_steps(to, model, allow)
    except NotRepresentable as error:
        lossy = _lossy_steps(to, model, allow) if NORM_EPS in allow else ()
        tried = (_fitting(to, model, steps, allow) for steps in _combinations(allow, lossy))
        if (found := next(filter(None, tried), None)) is None:
            error.steps, offer = _offer(to, model) or ((), None)
            error.without_head, bare = (None, None) if offer else _without_head(to, model)
            error.hint = offer or bare or error.hint
            error.holders = ecosystems_that_hold(model)
            if model.dialect is not None and model.dialect in builtin_tables():
                error.source = ecosystem_of(model.dialect)
            error.meaning = f"Targets that hold it as it is: {', '.join(error.holders)}."
            raise
        choice = found
    # What the target leaves out is made zero last, where that is allowed.
    zeroing = _zeroing(choice.target, model)
    return replace(choice, steps=(*choice.steps, *(s for s in zeroing if s.name in allow)))


def choose_without_steps(
    to: str | Table, model: DescribedModel, allow: Sequence[str] = ()
) -> Choice:
    """As `choose_target`, for the model as it is.

    Raises:
        NotRepresentable: No dialect can compute this function. The reasons of all are given.
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
            passed_over = refused | {table.name: _UNSURE for table in rest}
            return Choice(target=target, steps=(), passed_over=passed_over)
    if len(errors) == 1:
        raise next(iter(errors.values()))
    raise _none_of_them(to, errors)


def holders(model: DescribedModel) -> dict[str, str | None]:
    """For every dialect, None if it can hold the model, else why it cannot."""
    found: dict[str, str | None] = {}
    for name, table in builtin_tables().items():
        try:
            left_out = program_of(table).fit(table, model).plan.zeros
        except NotRepresentable as error:
            found[name] = error.in_one_line()
            continue
        taken = left_out[0].taken if left_out else ""
        found[name] = f"leaves out {taken}, which is not known to be zero" if taken else None
    return found


def ecosystems_that_hold(model: DescribedModel) -> tuple[str, ...]:
    """Those of which a dialect holds the model as it is, without a changed class."""
    held = (builtin_tables()[name] for name, why in holders(model).items() if not why)
    return tuple(sorted({one.ecosystem for one in held if not _adapted(one)}))


def _candidates(to: str | Table, model: DescribedModel, allow: Sequence[str]) -> list[list[Table]]:
    """The tables of each layout that may be written: those of its family, the one read, others."""
    if isinstance(to, Table):
        return [[to]]

    def order(table: Table) -> tuple[object, ...]:
        mark = _mark(table, model.config)
        nearness = -len(_family(mark)) if _is_of(mark, model) else 0
        return mark not in model.called, nearness, table.name != model.dialect

    return [
        sorted(
            (
                table
                for table in find_tables(layout)
                if table.name == to or (not table.historic and _adapted(table) in ("", *allow))
            ),
            key=order,
        )
        for layout in _layouts(to)
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


def _none_of_them(to: str | Table, errors: Mapping[str, NotRepresentable]) -> NotRepresentable:
    """Led by the dialect that comes nearest; the others are in the details."""
    # It has a place for all tensors, or its models are at least of this kind, or it has a place for
    # most. Of several, it is the one that the ecosystem is called after, or its reason is shorter.
    reasons = {name: f"{name}: {error.in_one_line()}" for name, error in errors.items()}

    def distance(name: str) -> tuple[int, int, bool, int]:
        error = errors[name]
        rank = 0 if isinstance(error, OtherFunction) else 2 if isinstance(error, OtherKind) else 1
        lacking = len(error.evidence.get("tensors", reasons[name]))
        return rank, lacking if rank else 0, name != to, len(reasons[name])

    nearest = min(reasons, key=distance, default=None)
    come_near = f"; the nearest is {reasons[nearest]}" if nearest else ""
    others = f"{len(reasons) - 1}; -v lists them (in Python, details)"
    name = to if isinstance(to, str) else to.name
    refusal = NotRepresentable(
        f"No dialect of {name!r} computes the function of these weights{come_near}.",
        evidence={"others": others} if len(reasons) > 1 else {},
        details=list(reasons.values()),
        hint=errors[nearest].hint if nearest else None,
    )
    refusal.folded = True
    return refusal


# Steps


def _combinations(names: Iterable[str], lossy: Sequence[Step] = ()) -> Iterator[tuple[Step, ...]]:
    """No step, one or two; each also with as many that are free.

    After all of them, each comes behind a step that is lossy.
    """
    # No dialect needs more than two: weights_map/CONVERSIONS.md has every pair.
    steps = [STEPS[name] for name in names if name in STEPS]
    free = [step for step in STEPS.values() if step.free]
    for first in ((), *((step,) for step in lossy)):
        for count in (0, 1, 2):
            for asked in itertools.permutations(steps, count):
                for more in (0, 1, 2):
                    for some in itertools.combinations(free, more):
                        yield (*first, *asked, *some)


def _fitting(
    to: str | Table, model: DescribedModel, steps: tuple[Step, ...], allow: Sequence[str]
) -> Choice | None:
    """The target after these steps, each of which must change something."""
    config = model.config
    for step in steps:
        before = config
        config = step.becomes(before) if step.applies(before) else before
        if config == before:
            return None
    try:
        choice = choose_without_steps(to, replace(model, config=config), allow)
    except NotRepresentable:
        return None
    return replace(choice, steps=steps)


def _zeroing(target: Target, model: DescribedModel) -> tuple[Step, ...]:
    """The step that makes zero what a target leaves out, if there is one for it."""
    step = STEPS["drop-key-bias"]
    return (step,) if target.plan.zeros and step.applies(model.config) else ()


def _with_any_eps(model: DescribedModel) -> DescribedModel:
    """The model whose text tower may become one of another eps."""
    return replace(model, text=replace(model.text, any_eps=True)) if model.text else model


def _lossy_steps(to: str | Table, model: DescribedModel, allow: Sequence[str]) -> list[Step]:
    """The step to each eps that models of the target have, the nearest first."""
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
    return tuple(dict.fromkeys(filter(None, map(_adapted, tables))))


def _adapted(table: Table) -> str:
    """What allows to write for a changed class; "" for a class as it is."""
    return program_of(table).adapted.get(table.name, "")


def _offer(to: str | Table, model: DescribedModel) -> tuple[tuple[str, ...], str] | None:
    """All steps that together would help, if any do, and the hint that names them."""
    exact = [name for name, step in STEPS.items() if not step.free]
    if model.text and _fitting(to, _with_any_eps(model), (), ()):
        return (NORM_EPS,), f"--allow {NORM_EPS} makes it fit; it changes the text tower's norms."
    for first in ((), *((step,) for step in _lossy_steps(to, model, [NORM_EPS]))):
        for modules in dict.fromkeys(((), _adapted_modules(to))):
            for more in _combinations(exact):
                steps = (*first, *more)
                if (steps or modules) and (found := _fitting(to, model, steps, modules)):
                    return _hint(found, modules, model)
    return None


def _without_head(
    to: str | Table, model: DescribedModel
) -> tuple[Sequence[str] | None, str | None]:
    """The steps with which it fits without its head, if only that stands in the way; and a hint."""
    if not model.config.num_classes:
        return None, None
    bare = replace(model, config=model.config.replace(num_classes=0), labels=None)
    if _fitting(to, bare, (), ()):
        return (), "without its head it fits: --num-classes 0."
    steps, _ = _offer(to, bare) or (None, None)
    names = " ".join(f"--allow {step}" for step in steps or ())
    return steps, f"without its head it fits: --num-classes 0 {names}." if steps else None


def _hint(
    choice: Choice, modules: Sequence[str], model: DescribedModel
) -> tuple[tuple[str, ...], str]:
    zeroing = [step.name for step in _zeroing(choice.target, model)]
    allowed = [step.name for step in choice.steps if not step.free]
    names = (*allowed, *modules, *zeroing)
    options = " ".join(f"--allow {name}" for name in names)
    # Headers do not tell whether what the target leaves out is zero.
    condition = "".join(f"; {step} only if the bias of the keys is not zero" for step in zeroing)
    if fewer := [step.change for step in choice.steps if step.narrows]:
        return names, f"{options} makes it fit: {', '.join(fewer)}{condition}."
    if lossy := [step.change for step in choice.steps if step.lossy]:
        changes = f"it is lossy ({', '.join(lossy)}), and its effect on the outputs is measured"
        return names, f"{options} makes it fit; {changes}{condition}."
    return names, f"{options} makes it fit, with the same function and other bytes{condition}."


# Families: where several classes compute the same function, a model is written for its own.


def family_note(source: Checkpoint, target: Target, model: DescribedModel) -> str:
    """A note where the class that a model is written for is of another family, or ""."""
    mark = _mark(target.table, model.config)
    plain = _family(mark) == _PLAIN and source.dialect in model.called
    # Words of the same language are compared whole: BLIP and BLIP-2 have a class each.
    files = [table.config_file for table in tables_of(target.table.ecosystem) if table.config_file]
    words = {word for file in files for several in file.identify.values() for word in several}
    called = {_without_part(name) for name in model.called if name in words}
    same = _without_part(mark) in called if called else _is_of(mark, model)
    if not mark or plain or same:
        return ""
    kind = (target.their_config.get("architectures") or [mark])[0]
    return (
        f"it is written for {kind}, a class of another family ({mark}; the source says "
        f"{model.called[0]}) that computes the same function"
    )


def _mark(table: Table, config: ViTConfig) -> str:
    """What a dialect writes that would identify it; "" if nothing does."""
    mapping = table.config_file
    written = (w for w in mapping.writes if w.name in mapping.identify) if mapping else ()
    return next((str(w.value) for w in written if w.value and w.holds_for(config)), "")


def _without_part(mark: str) -> str:
    """A mark without the part of the model that it is of: siglip of siglip_vision_model."""
    return re.sub(r"([-_]vision)?(_model)?$", "", mark)


def _family(mark: str) -> str:
    """The word that a mark begins with: siglip of siglip_vision_model and SigLIPVisionEncoder."""
    return re.split("[-_]|(?<=[a-zA-Z0-9])(?=Vision|Backbone|Image)", mark)[0].lower()


def _is_of(mark: str, model: DescribedModel) -> bool:
    return bool(mark) and any(_family(mark) in name.lower() for name in model.called)
