"""What a refusal says: which dialect comes nearest, and what would make the model fit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vitconvert.conversion.search import (
    Fit,
    Misfit,
    attempts,
    changed_classes,
    fit,
    lossy_steps,
    search,
    with_any_eps,
    zeroing_steps,
)
from vitconvert.conversion.steps import NORM_EPS, STEPS
from vitconvert.errors import NotRepresentable, OtherFunction, OtherKind, as_typed
from vitconvert.programs.program import DescribedModel
from vitconvert.tables.dialects import builtin_tables, ecosystem_of
from vitconvert.tables.table import Table


def refusal(to: str | Table, misfit: Misfit) -> NotRepresentable:
    """Why a target does not hold a model, led by the dialect that comes nearest."""
    errors = misfit.refusals
    if len(errors) == 1:
        return next(iter(errors.values()))
    # It has a place for all tensors, or its models are at least of this kind, or it has a place for
    # most. Of several, it is the one that the library is called after, or its reason is shorter.
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
    error = NotRepresentable(
        f"No dialect of {name!r} computes the function of these weights{come_near}.",
        evidence={"others": others} if len(reasons) > 1 else {},
        details=list(reasons.values()),
        hint=errors[nearest].hint if nearest else None,
    )
    error.folded = True
    return error


def refusal_with_hints(
    to: str | Table, misfit: Misfit, model: DescribedModel, holders: tuple[str, ...]
) -> NotRepresentable:
    """The same, with what would help.

    Args:
        to: The target.
        misfit: Why it does not hold the model.
        model: The model.
        holders: The libraries that hold it as it is.
    """
    error = refusal(to, misfit)
    if offer := _offer(to, model):
        error.steps, error.hint = offer
    elif bare := _without_head(to, model):
        error.without_head, error.hint = bare
    elif ignored := _without_layer(to, model):
        error.without_layer, error.hint = ignored
    error.holders = holders
    own = ecosystem_of(to) if isinstance(to, str) and to in builtin_tables() else ""
    if own != to and own in holders and not error.hint:
        error.hint = f"--to {own} takes the dialect of {own} that holds this model."
    if model.dialect is not None and model.dialect in builtin_tables():
        error.source = ecosystem_of(model.dialect)
    error.meaning = f"Targets that hold it as it is: {', '.join(holders)}."
    return error


def _offer(to: str | Table, model: DescribedModel) -> tuple[tuple[str, ...], str] | None:
    """All steps that together would help, if any do, and the hint that names them."""
    if model.text and isinstance(fit(to, with_any_eps(model)), Fit):
        return (NORM_EPS,), f"--allow {NORM_EPS} makes it fit; it changes the text encoder's norms."
    exact = (step for step in STEPS.values() if not step.free)
    classes = dict.fromkeys(((), changed_classes(to)))
    tried = attempts(exact, lossy_steps(to, model, [NORM_EPS]), classes)
    found = search(to, model, tried)
    return _names_and_hint(found, model) if isinstance(found, Fit) else None


def _without_head(to: str | Table, model: DescribedModel) -> tuple[Sequence[str], str] | None:
    """The steps with which it fits without its head, if only that stands in the way; and a hint."""
    if not model.config.num_classes:
        return None
    steps = _steps_for(to, model, num_classes=0)
    if steps is None:
        return None
    names = "".join(f" --allow {step}" for step in steps)
    return steps, f"without its head it fits: --num-classes 0{names}."


def _without_layer(
    to: str | Table, model: DescribedModel
) -> tuple[Mapping[str, str | Sequence[str]], str] | None:
    """The options with which it fits without the layer before its head; and a hint."""
    patterns = model.head_patterns
    steps = _steps_for(to, model, num_classes=0, representation_size=0) if patterns else None
    if steps is None:
        return None
    options: dict[str, str | Sequence[str]] = {"ignore": patterns, "allow": steps}
    table = builtin_tables().get(model.dialect or "")
    # What was named, or vitconvert.json names, may be a dialect that must have the layer.
    if table and any(name.startswith("pre_logits.") for group in table.requires for name in group):
        options["dialect"] = table.ecosystem
    words = [
        f"--{name} {as_typed(value)}"
        for name, values in options.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    return options, f"without these layers it fits: {' '.join(words)}."


def _steps_for(to: str | Table, model: DescribedModel, **changes: int) -> tuple[str, ...] | None:
    """The steps with which it fits once its configuration is changed so; None if none do."""
    bare = replace(model, config=model.config.replace(**changes), labels=None)
    if isinstance(fit(to, bare), Fit):
        return ()
    offer = _offer(to, bare)
    return offer[0] if offer else None


def _names_and_hint(found: Fit, model: DescribedModel) -> tuple[tuple[str, ...], str]:
    zeroing = [step.name for step in zeroing_steps(found, model)]
    allowed = [step.name for step in found.steps if not step.free]
    names = (*allowed, *found.classes, *zeroing)
    options = " ".join(f"--allow {name}" for name in names)
    # Headers do not tell whether what the target leaves out is zero.
    condition = "".join(f"; {step} only if the bias of the keys is not zero" for step in zeroing)
    if fewer := [step.change for step in found.steps if step.narrows]:
        return names, f"{options} makes it fit: {', '.join(fewer)}{condition}."
    if lossy := [step.change for step in found.steps if step.lossy]:
        changes = f"it is lossy ({', '.join(lossy)}), and its effect on the outputs is measured"
        return names, f"{options} makes it fit; {changes}{condition}."
    return names, f"{options} makes it fit, with the same function and other bytes{condition}."
