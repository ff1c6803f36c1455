"""What `--to` means for a model: the dialect that holds it, and the steps to get there."""

from collections.abc import Sequence
from dataclasses import replace

from vitconvert.checkpoint import Checkpoint
from vitconvert.conversion.hints import refusal, refusal_with_hints
from vitconvert.conversion.search import (
    OWN_LAYOUT,
    Fit,
    Misfit,
    attempts,
    changed_class,
    changed_classes,
    fit,
    lossy_steps,
    search,
    with_any_eps,
    zeroing_steps,
)
from vitconvert.conversion.steps import NORM_EPS, STEPS
from vitconvert.errors import NotRepresentable, UsageError, nearest
from vitconvert.programs.program import DescribedModel, program_of
from vitconvert.programs.target import DescribedText
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table


def describe(source: Checkpoint) -> DescribedModel:
    """What a target has to represent."""
    text = source.text
    return DescribedModel(
        config=source.config,
        preprocessing=source.preprocessing,
        labels=source.labels,
        dialect=source.loaded.dialect if source.loaded else source.dialect,
        name=source.name,
        their_config=source.their_config,
        text=DescribedText.of(text) if text else None,
        called=source.called,
        head_patterns=() if source.loaded else source.weights.head_patterns,
    )


def choose_target(to: str | Table, model: DescribedModel, allow: Sequence[str]) -> Fit:
    """The dialect that `to` means for this model, after as few allowed steps as make it fit.

    Args:
        to: A library, a dialect, `vit`, or a table of somebody's own.
        model: The model.
        allow: Names of steps, and of changed classes (`adapted` of their program).

    Raises:
        NotRepresentable: No dialect fits. The hint names all steps that together would help.
        UsageError: There is no target or step of this name.
    """
    _check_allowed(allow, (*STEPS, NORM_EPS, *changed_classes(to)))
    if NORM_EPS in allow:
        model = with_any_eps(model)
    asked = [STEPS[name] for name in allow if name in STEPS]
    lossy = lossy_steps(to, model, allow) if NORM_EPS in allow else ()
    found = search(to, model, attempts(asked, lossy, [tuple(allow)]))
    if isinstance(found, Misfit):
        raise refusal_with_hints(to, found, model, ecosystems_that_hold(model))
    # What the target leaves out is made zero last, where that is allowed.
    zeroing = (step for step in zeroing_steps(found, model) if step.name in allow)
    return replace(found, steps=(*found.steps, *zeroing))


def _check_allowed(allow: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in allow if name not in known]:
        near = nearest(unknown[0], known, 3)
        raise UsageError(
            f"There is no step {unknown[0]!r} to allow.",
            evidence={"steps": ", ".join(known)},
            hint=f"did you mean {' or '.join(near)}?" if near else None,
        )


def suggested_target(model: DescribedModel) -> tuple[str, tuple[str, ...], str]:
    """A library to convert a model to, the steps that this takes, and what to know of it.

    transformers for a model of timm's, timm for all others; where it does not hold the model,
    another that does.
    """
    table = builtin_tables().get(model.dialect or "")
    own = table.ecosystem if table else ""
    to = "hf" if own == "timm" else "timm"
    try:
        choose_target(to, model, ())
    except NotRepresentable as refusal:
        if refusal.steps:
            return to, refusal.steps, f"{to}: {refusal.hint}"
        held = ecosystems_that_hold(model)
        usual = (name for name in ("timm", "hf", OWN_LAYOUT, *held) if name in held)
        return next((name for name in usual if name != own), OWN_LAYOUT), (), ""
    return to, (), ""


def choose_without_steps(to: str | Table, model: DescribedModel) -> Fit:
    """As `choose_target`, for the model as it is.

    Raises:
        NotRepresentable: No dialect can compute this function. The reasons of all are given.
        UsageError: `to` is neither a library nor a dialect.
    """
    found = fit(to, model)
    if isinstance(found, Misfit):
        raise refusal(to, found)
    return found


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
    return tuple(sorted({one.ecosystem for one in held if not changed_class(one)}))
