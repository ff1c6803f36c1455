"""Text towers beside image towers: what is known of one, and which dialect has a place for it.

They are carried in the same language of tables as image towers are, and never computed here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config import TextConfig, ViTConfig, field_names
from vitconvert.errors import NotRepresentable, OtherFunction, OtherKind
from vitconvert.facts.plan import Plan, plan_writing
from vitconvert.facts.project_config import (
    Facts,
    broken_must_nots,
    facts_from_config,
    put,
    their_word,
    unknown_arguments,
    written_config,
)
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.dialects import text_tables_beside
from vitconvert.tables.sizes import Shape
from vitconvert.tables.table import Table

_OPTIONAL = ("head_dim", "final_norm_eps", "end_id", "tokenizer")
_EPS = {"norm_eps", "final_norm_eps"}


@dataclass(frozen=True, kw_only=True)
class DescribedText:
    """A text tower as its table and its files describe it.

    Attributes:
        config: What decides its function, besides the weights.
        table: How it is spelled.
        any_eps: Whether a place for it may have norms with another eps.
    """

    config: TextConfig
    table: Table
    any_eps: bool = False


@dataclass(frozen=True, kw_only=True)
class TextTarget:
    """A place for a text tower beside an image tower, and how to get there.

    Attributes:
        table: How it is spelled.
        plan: From our names of its tensors to theirs.
        their_config: The project's own configuration of both towers.
        numbers: Whole numbers that are written as tensors.
        changes: What it computes otherwise, as it was allowed to.
    """

    table: Table
    plan: Plan
    their_config: Mapping[str, Any]
    numbers: Mapping[str, int]
    changes: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, Shape]:
        """What is written beside the image tower's tensors."""
        made = {assembly.target: self.plan.shape(assembly) for assembly in self.plan.assemblies}
        return made | dict.fromkeys(self.numbers, ())


def derive_text(binding: Binding, their_config: Mapping[str, Any]) -> TextConfig:
    """What is known of a text tower: by its tensors, its project's file and its project's code.

    Raises:
        NotRepresentable: The file says what TextConfig has no word for, or contradicts the
            tensors, or nothing tells a field.
    """
    table = binding.table
    if unknown := unknown_arguments(table, their_config):
        raise NotRepresentable(f"its configuration says {', '.join(unknown)}")
    shown = _shown(binding)
    facts = facts_from_config(table, their_config)
    _check_agreement(facts, shown)
    known: dict[str, Any] = {name: value for name, (value, _) in facts.items()} | shown
    for default in table.defaults:
        if default.name not in known and default.holds(known.get):
            known[default.name] = default.value
    _settle_heads(known)
    if missing := [n for n in field_names(TextConfig) if n not in known and n not in _OPTIONAL]:
        file = table.config_file.file if table.config_file and not their_config else ""
        where = f"without {file}, " if file else ""
        raise NotRepresentable(f"{where}nothing tells its {', '.join(missing)}")
    config = TextConfig(**known)
    if not 0 <= config.norm_eps < math.inf:  # which nan is not either
        raise NotRepresentable(f"its norm_eps is {config.norm_eps}")
    if broken := broken_must_nots(table, their_config, config):
        raise NotRepresentable(f"its configuration says {', '.join(broken)}")
    return config


def _shown(binding: Binding) -> dict[str, Any]:
    sizes, links = binding.sizes.known, binding.links
    blocks = {link.indices["i"] for several in links.values() for link in several if link.indices}
    heads = {"num_heads": sizes.get("head"), "head_dim": sizes.get("dim")}  # of Keras' kernels
    return {name: size for name, size in heads.items() if size} | {
        "vocab_size": sizes.get("vocabulary", 0),
        "context_length": sizes.get("position", 0),
        "embed_dim": sizes.get("width", 0),
        "mlp_dim": sizes.get("hidden", 0),
        "num_features": sizes.get("feature", 0),
        "depth": len(blocks),
        "head_bias": "text.head.bias" in links,
        "logit_bias": "logit_bias" in links,
    }


def _check_agreement(facts: Facts, shown: Mapping[str, Any]) -> None:
    contradictions = [
        f"{name} {value} in {origin}, {shown[name]} by the tensors"
        for name, (value, origin) in facts.items()
        if origin == "config.json" and name in shown and shown[name] != value
    ]
    if contradictions:
        raise NotRepresentable(f"contradicted: {'; '.join(contradictions)}")


def _settle_heads(known: dict[str, Any]) -> None:
    """The number of heads, or what is in one, from the other."""
    width = known["embed_dim"]
    for one, other in (("num_heads", "head_dim"), ("head_dim", "num_heads")):
        if one not in known and (number := known.get(other)):
            known[one] = width // number
    heads, size = known.get("num_heads"), known.get("head_dim", 0)
    if heads is not None and (heads < 1 or heads * size != width):
        raise NotRepresentable(f"its width, {width}, is not divided by its heads")


def fit_text(
    tower: Table,
    described: DescribedText,
    table: Table,
    config: ViTConfig,
    their_config: Mapping[str, Any],
) -> TextTarget:
    """Plan writing a text tower beside an image tower.

    Args:
        tower: How it would be spelled.
        described: What it is.
        table, config, their_config: The image tower's dialect, configuration, and the project's
            own configuration of it, empty if the project has none.

    Raises:
        NotRepresentable: There is no such text tower, or it would compute another function, or
            both towers do not lead to one space.
    """
    text = described.config
    _check_kind(tower, text, config)
    plan = plan_writing(tower, text)
    whole = _whole_config(tower, text, their_config)
    changes = _changes(tower, described, plan, whole)
    counted = ((table, config), (tower, text))
    numbers = {
        key: their_word(of, word, getattr(said, word))
        for of, said in counted
        for key, word in of.numbers
    }
    return TextTarget(table=tower, plan=plan, their_config=whole, numbers=numbers, changes=changes)


def _check_kind(tower: Table, text: TextConfig, config: ViTConfig) -> None:
    features = config.num_classes or config.feature_dim
    if text.num_features != features:
        raise OtherKind(f"Texts lead to {text.num_features} features, and images to {features}.")
    if broken := [found for always in tower.only if (found := always.broken_by(text))]:
        raise OtherKind(f"{tower.title} is another: {'; '.join(broken)}.")


def _changes(
    tower: Table, described: DescribedText, plan: Plan, whole: Mapping[str, Any]
) -> tuple[str, ...]:
    """What would be written is read again: it must mean the same, but for what is allowed."""
    shapes = {assembly.target: plan.shape(assembly) for assembly in plan.assemblies}
    wanted = described.config.function()
    found = derive_text(bind(tower, shapes), whole).function()
    differences = {
        name: f"{name}: the weights need {wanted.get(name)}, and there it is {found.get(name)}"
        for name in wanted | found
        if wanted.get(name) != found.get(name)
    }
    only_eps = set(differences) <= _EPS
    if differences and not (only_eps and described.any_eps):
        advice = "; --allow norm-eps carries it" if only_eps else ""
        told = "; ".join(differences.values())
        raise OtherFunction(f"{tower.title} computes another function: {told}{advice}.")
    return tuple(differences.values())


def _whole_config(tower: Table, text: TextConfig, image: Mapping[str, Any]) -> dict[str, Any]:
    """The project's configuration of both towers; what the class is called is of the whole."""
    if not image or tower.config_file is None:
        return {}
    whole: dict[str, Any] = {}
    if place := tower.config_file.image:
        put(whole, place, {key: said for key, said in image.items() if key != "architectures"})
    return merged(whole or image, written_config(tower, text))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested objects of JSON, of which the second counts."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return both


def towers_beside(table: Table, config: ViTConfig, text: DescribedText) -> list[Table]:
    """How a dialect may spell a text tower here; as it was read first."""
    found = text_tables_beside(table, config)
    return sorted(found, key=lambda tower: tower is not text.table)
