"""Whether a dialect can hold a function, and the plan that writes it there.

The test is to read back: a reader who has the target's tensors and its own configuration must find
the same function. If not, the target is refused with the differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from vitconvert.checkpoint.text_tower import derive_text
from vitconvert.checkpoint.weights import Text
from vitconvert.config import TextConfig, ViTConfig
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    OtherFunction,
    OtherKind,
)
from vitconvert.facts.fact import Facts, state, strongest
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.plan import Assembly, Plan, check_rows, plan_writing
from vitconvert.facts.project_config import (
    facts_from_config,
    put,
    their_word,
    written_config,
)
from vitconvert.tables.axes import Axes, Shape
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import instances
from vitconvert.tables.dialects import text_tables_beside
from vitconvert.tables.table import Table

# Sizes that every project's user passes when building the model the file is for.
_BUILT_WITH = (
    *("num_heads", "head_dim", "image_size", "patch_size", "in_channels", "pool_heads"),
    *("frames", "tubelet"),
)
_EPS = {"norm_eps", "final_norm_eps", "fc_norm_eps"}


@dataclass(frozen=True, kw_only=True)
class DescribedText:
    """A text encoder as its table and its files describe it.

    Attributes:
        config: What decides its function, besides the weights.
        table: How it is spelled.
        any_eps: Whether a place for it may have norms with another eps.
    """

    config: TextConfig
    table: Table
    any_eps: bool = False

    @classmethod
    def of(cls, text: Text) -> Self:
        """The text encoder of a checkpoint."""
        return cls(config=text.config, table=text.table)


@dataclass(frozen=True, kw_only=True)
class TextTarget:
    """A place for a text encoder beside a vision encoder, and how to get there.

    Attributes:
        table: How it is spelled.
        plan: From our names of its tensors to theirs, with whole numbers of both encoders.
        their_config: The project's own configuration of both encoders.
        changes: What it computes otherwise, as it was allowed to.
    """

    table: Table
    plan: Plan
    their_config: JsonObject
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Target:
    """A dialect that holds the function, and how to get there.

    Attributes:
        table: The dialect.
        plan: From our names of tensors to theirs.
        their_config: The project's own configuration, of both encoders if there is a text encoder.
        text: The place of the text encoder, or None if there is none.
        left: Why the model's text encoder has no place here; "" if it has one, or there is none.
        read_back: What a reader of the output finds, with the project's own rules for images of
            other sizes; None if nobody read it back.
    """

    table: Table
    plan: Plan
    their_config: JsonObject
    text: TextTarget | None = None
    left: str = ""
    read_back: ViTConfig | None = None


def fit_target(
    table: Table,
    config: ViTConfig,
    their_config: JsonObject | None = None,
    named: Facts | None = None,
    *,
    only: bool = True,
    text: DescribedText | None = None,
) -> Target:
    """Plan writing a model in a dialect, with its text encoder where there is a place for it.

    Args:
        table: The dialect.
        config: The model's configuration.
        their_config: The project's own configuration that would be written beside the tensors.
        named: What the architecture that it names implies.
        only: Whether the model must be as the dialect's models are when nothing names them.
        text: The text encoder beside it.

    Raises:
        NotRepresentable: The dialect has no place for a tensor, misses one that it always has, or
            would compute another function.
    """
    check_place(table, config, only=only)
    theirs, implied = their_config or {}, named or {}
    if text is None:
        return _read_back_alike(table, config, theirs, implied)
    refusals = []
    # As it was read first.
    towers = sorted(text_tables_beside(table, config), key=lambda tower: tower is not text.table)
    for tower in towers:
        try:
            beside = _fit_text(tower, text, table, config, theirs)
            return _read_back_alike(table, config, theirs, implied, beside)
        except NotRepresentable as error:
            refusals.append(error)
    target = _read_back_alike(table, config, theirs, implied)
    # An encoder of another kind says less than one that computes something else.
    nearest = min(refusals, key=lambda error: isinstance(error, OtherKind), default=None)
    no_place = f"{table.title} has no place for one"
    return replace(target, left=nearest.in_one_line() if nearest else no_place)


def check_place(table: Table, config: ViTConfig, *, only: bool = True) -> None:
    """Refuse most models that a dialect cannot hold, which needs no plan.

    Raises:
        NotRepresentable: The dialect has no such models, no row for a tensor of the model, or
            always has a tensor that the model lacks.
    """
    if config.clips and "patch_embed.tubelet_proj.weight" not in table.row_of:
        raise OtherKind(
            f"{table.title} reads images, and this model clips: the layout has no axis of time.",
            evidence={"table": table.file},
        )
    if only and (broken := [text for always in table.only if (text := always.broken_by(config))]):
        raise OtherKind(
            f"{table.title} has no such models.", evidence={"table": table.file}, details=broken
        )
    check_rows(table, config)
    had = instances(config)
    # Tensors that play no part may be written too, as constants, for instance.
    ignored = table.section("ignore")
    lacking = [g for g in table.requires if not any(had.get(n) or n in ignored for n in g)]
    if lacking:
        raise _lacks(table, lacking)


def _read_back_alike(
    table: Table,
    config: ViTConfig,
    their_config: JsonObject,
    named: Facts,
    text: TextTarget | None = None,
) -> Target:
    """The plan, if a reader of what it writes finds the same function."""
    plan = plan_writing(table, config)
    shapes = _shapes(plan)
    if text:
        shapes |= _shapes(text.plan)
        their_config = text.their_config
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
    # Where the class may add none, whoever builds the model says so.
    may_have = ((default.name, default.value) for default in table.defaults)
    if config.position_embedding == "none" and ("position_embedding", "none") in may_have:
        stated_sizes["position_embedding"] = "none"
    in_file = facts_from_config(table, their_config)
    if text:  # what one file says of both encoders, such as an activation, is of both
        stated_sizes = {name: v for name, v in stated_sizes.items() if name not in in_file}
    stated = strongest(state(stated_sizes, "constructor"), in_file, named)
    try:
        read_back = gather_facts(binding, stated).config()
    except (ConflictingFact, MissingFact) as error:
        raise NotRepresentable(
            f"{table.title} would not be read back.",
            evidence={"table": table.file},
            details=error.details,
        ) from None
    # A reader believes the number of positions; the project's own code does not.
    found = read_back.function() | {
        default.name: default.value
        for default in table.defaults
        if default.name == "no_embed_class" in config.function() and default.condition is None
    }
    if differences := _differences(config.function(), found):
        raise OtherFunction(
            f"{table.title} computes another function of these weights.",
            evidence={"table": table.file},
            details=list(differences.values()),
            hint=_of_other_gelu(config, found, differences),
        )
    return Target(table=table, plan=plan, their_config=their_config, text=text, read_back=read_back)


def _of_other_gelu(
    config: ViTConfig, found: JsonObject, differences: Mapping[str, str]
) -> str | None:
    """What to do where only the kind of GELU differs, as between Google's code and most others."""
    activations = {config.activation, found.get("activation")}
    if [*differences] != ["activation"] or activations != {"gelu", "gelu_tanh"}:
        return None
    # Measured with timm 1.0.31, whose loader of Google's npz keeps exact GELU, and random weights,
    # for ViT-Ti of 12 blocks and a ViT of 4: 1.1e-4 to 1.6e-4 of the largest logit.
    return (
        f"--set activation={found['activation']} takes the weights as trained with it, which "
        "changes the outputs by 1e-4 or 2e-4 of the largest; timm loads Google's weights so."
    )


def _lacks(table: Table, groups: Sequence[Sequence[str]]) -> NotRepresentable:
    return NotRepresentable(
        f"{table.title} always has tensors that this model lacks.",
        evidence={"table": table.file, "tensors": ", ".join(" or ".join(g) for g in groups)},
    )


def _shapes(plan: Plan) -> dict[str, Shape]:
    return {assembly.target: plan.shape(assembly) for assembly in plan.assemblies}


def _differences(wanted: JsonObject, found: JsonObject) -> dict[str, str]:
    return {
        name: f"{name}: the weights need {_said(wanted, name)}, and there it is "
        f"{_said(found, name)}"
        for name in {**wanted, **found}
        if wanted.get(name) != found.get(name)
    }


def _said(values: JsonObject, name: str) -> object:
    """A value, or what stands for one that is left out."""
    value = values.get(name)
    return values.get("norm_eps") if value is None and name == "fc_norm_eps" else value


def _fit_text(
    tower: Table,
    described: DescribedText,
    table: Table,
    config: ViTConfig,
    their_config: JsonObject,
) -> TextTarget:
    """Plan writing a text encoder beside a vision encoder.

    Args:
        tower: How it would be spelled.
        described: What it is.
        table, config, their_config: The vision encoder's dialect, configuration, and the project's
            own configuration of it, empty if the project has none.

    Raises:
        NotRepresentable: There is no such text encoder, or it would compute another function, or
            both encoders do not lead to one space.
    """
    text, features = described.config, config.num_classes or config.feature_dim
    if text.num_features != features:
        raise OtherKind(f"Texts lead to {text.num_features} features, and images to {features}.")
    if broken := [found for always in tower.only if (found := always.broken_by(text))]:
        raise OtherKind(f"{tower.title} is different: {'; '.join(broken)}.")
    plan = plan_writing(tower, text)
    whole: JsonObject = {}
    if their_config and tower.config_file:
        image: JsonDict = {}
        if place := tower.config_file.image:
            # What the class is called is of the whole.
            put(image, place, {k: v for k, v in their_config.items() if k != "architectures"})
        whole = merged(image or their_config, written_config(tower, text))
    read_back = derive_text(bind(tower, _shapes(plan)), whole)
    differences = _differences(text.function(), read_back.function())
    only_eps = differences.keys() <= _EPS
    if differences and not (only_eps and described.any_eps):
        advice = "; --allow norm-eps carries it" if only_eps else ""
        listed = "; ".join(differences.values())
        raise OtherFunction(f"{tower.title} computes another function: {listed}{advice}.")
    numbers = (
        Assembly(
            key, Axes(()), (), (float(their_word(of, word, getattr(described_by, word))),), "int64"
        )
        for of, described_by in ((table, config), (tower, text))
        for key, word in of.numbers
    )
    plan = replace(plan, assemblies=(*plan.assemblies, *numbers))
    changes = tuple(differences.values())
    return TextTarget(table=tower, plan=plan, their_config=whole, changes=changes)


def merged(below: JsonObject, above: JsonObject) -> JsonDict:
    """Two nested objects of JSON, of which the second counts."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return both
