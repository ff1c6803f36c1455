"""Whether a dialect can hold a function, and the plan that writes it there.

The test is to read back: a reader who has the target's tensors and its own configuration must find
the same function. If not, the target is refused with the differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    OtherFunction,
    OtherKind,
)
from vitconvert.facts.derivation import derive_config, state, strongest
from vitconvert.facts.plan import Plan, check_rows, plan_writing
from vitconvert.facts.project_config import Facts, facts_from_config
from vitconvert.facts.text_tower import DescribedText, TextTarget, fit_text, towers_beside
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.canonical import instances
from vitconvert.tables.table import Table

# Sizes that every project's user passes when building the model the file is for.
_BUILT_WITH = ("num_heads", "head_dim", "image_size", "patch_size", "in_channels", "pool_heads")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A dialect that holds the function, and how to get there.

    Attributes:
        table: The dialect.
        plan: From our names of tensors to theirs.
        their_config: The project's own configuration, of both towers if there is a text tower.
        text: The place of the text tower, or None if there is none.
        left: Why the model's text tower has no place here; "" if it has one, or there is none.
    """

    table: Table
    plan: Plan
    their_config: Mapping[str, Any]
    text: TextTarget | None = None
    left: str = ""


def fit_target(
    table: Table,
    config: ViTConfig,
    their_config: Mapping[str, Any] | None = None,
    named: Facts | None = None,
    *,
    only: bool = True,
    text: DescribedText | None = None,
) -> Target:
    """Plan writing a model in a dialect, with its text tower where there is a place for it.

    Args:
        table: The dialect.
        config: The model's configuration.
        their_config: The project's own configuration that would be written beside the tensors.
        named: What the architecture that it names implies.
        only: Whether the model must be as the dialect's models are when nothing names them.
        text: The text tower beside it.

    Raises:
        NotRepresentable: The dialect has no place for a tensor, misses one that it always has, or
            would compute another function.
    """
    check_place(table, config, only=only)
    theirs, implied = their_config or {}, named or {}
    if text is None:
        return _fitted(table, config, theirs, implied)
    refusals = []
    for tower in towers_beside(table, config, text):
        try:
            beside = fit_text(tower, text, table, config, theirs)
            return _fitted(table, config, theirs, implied, beside)
        except NotRepresentable as error:
            refusals.append(error)
    target = _fitted(table, config, theirs, implied)
    # A tower of another kind says less than one that computes something else.
    nearest = min(refusals, key=lambda error: isinstance(error, OtherKind), default=None)
    no_place = f"{table.title} has no place for one"
    return replace(target, left=nearest.in_one_line() if nearest else no_place)


def _fitted(
    table: Table,
    config: ViTConfig,
    their_config: Mapping[str, Any],
    named: Facts,
    text: TextTarget | None = None,
) -> Target:
    """The plan, of which a reader would find the same function."""
    plan = plan_writing(table, config)
    shapes = {assembly.target: plan.shape(assembly) for assembly in plan.assemblies}
    if text:
        shapes, their_config = shapes | text.shapes, text.their_config
    binding = bind(table, shapes)
    if binding.lacking:
        raise _lacks(table, binding.lacking)
    built_with = {name: getattr(config, name) for name in (*_BUILT_WITH, *table.ask)}
    asked = {name for name in table.ask if built_with[name] is not None}
    stated_sizes = {name: v for name, v in built_with.items() if v or name in asked}
    if "attention_scale" in table.ask:
        stated_sizes["attention_scale"] = config.function()["attention_scale"]
    if not config.final_norm:
        stated_sizes["final_norm"] = False
    told = facts_from_config(table, their_config)
    if text:  # what one file says of both towers, such as an activation, is of both
        stated_sizes = {name: value for name, value in stated_sizes.items() if name not in told}
    stated = strongest(state(stated_sizes, "constructor"), told, named)
    _require_same_function(table, config, _read_back(binding, stated))
    return Target(table=table, plan=plan, their_config=their_config, text=text)


def check_place(table: Table, config: ViTConfig, *, only: bool = True) -> None:
    """What refuses most models, and can be told without a plan.

    Raises:
        NotRepresentable: The dialect has no such models, no row for a tensor of the model, or
            always has a tensor that the model lacks.
    """
    if only:
        _require_properties(table, config)
    check_rows(table, config)
    had = instances(config)
    # Tensors that play no part may be written too, as constants, for instance.
    ignored = table.reader.section("ignore")
    lacking = [g for g in table.requires if not any(had.get(n) or n in ignored for n in g)]
    if lacking:
        raise _lacks(table, lacking)


def _lacks(table: Table, groups: Sequence[Sequence[str]]) -> NotRepresentable:
    return NotRepresentable(
        f"{table.title} always has tensors that this model lacks.",
        evidence={"table": table.file, "tensors": ", ".join(" or ".join(g) for g in groups)},
    )


def _read_back(binding: Binding, stated: Facts) -> ViTConfig:
    try:
        return derive_config(binding, stated)[0]
    except (ConflictingFact, MissingFact) as error:
        raise NotRepresentable(
            f"{binding.table.title} would not be read back.",
            evidence={"table": binding.table.file},
            details=error.details,
        ) from None


def _require_properties(table: Table, config: ViTConfig) -> None:
    if broken := [text for always in table.only if (text := always.broken_by(config))]:
        raise OtherKind(
            f"{table.title} has no such models.",
            evidence={"table": table.file},
            details=broken,
        )


def _require_same_function(table: Table, config: ViTConfig, read_back: ViTConfig) -> None:
    wanted, found = config.function(), read_back.function()
    # A reader believes the number of positions; the project's own code does not.
    found |= {
        default.name: default.value
        for default in table.defaults
        if default.name == "no_embed_class" in wanted and default.condition is None
    }
    differences = [
        f"{name}: the weights need {wanted.get(name)}, and there it is {found.get(name)}"
        for name in wanted | found
        if wanted.get(name) != found.get(name)
    ]
    if differences:
        raise OtherFunction(
            f"{table.title} computes another function of these weights.",
            evidence={"table": table.file},
            details=differences,
        )
