"""Gathers what the header shows and what was stated: a ViTConfig, each field with its origin.

What the tensors show always wins. After them, from strong to weak: the user, a vitconvert.json,
the project's own config.json, the named architecture, the table. An assumption is recorded as
one, and a field that nothing tells must be stated by the user.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.facts.fact import (
    CONFIG,
    TENSORS,
    UNKNOWN,
    USER,
    Fact,
    Facts,
    named_architecture,
    state,
)
from vitconvert.facts.image_size import read_image_size
from vitconvert.facts.tensor_evidence import TensorEvidence, read_tensors
from vitconvert.tables.architectures import architectures, cards, named
from vitconvert.tables.binding import Binding
from vitconvert.tables.table import SCALED_BY_WIDTH, Table

_FIELDS = [f for f in dataclasses.fields(ViTConfig) if f.name != "origins"]
DEFAULTS = {f.name: f.default for f in _FIELDS if f.default is not dataclasses.MISSING}
_REQUIRED = [f.name for f in _FIELDS if f.name not in DEFAULTS]

LAST_NORMS = {"final_norm": True, "fc_norm": False}  # with their defaults

# Fields that no tensor shows: the usual value, and what a model with another value does.
_TRACELESS = {
    "rope": ("none", "rotates q and k by their position"),
    "block_order": ("pre", "normalises the output of a branch, not its input"),
}

# Of torch's nn.TransformerEncoderLayer (torch 2.14, nn/modules/transformer.py): names of tensors,
# which are the same whatever its arguments are, and the arguments that they leave open.
_TORCH_LAYER = ("self_attn.in_proj_weight", "linear1.weight", "linear2.weight", "norm1.weight")
_TORCH_ARGUMENTS = {
    "block_order": "nn.TransformerEncoderLayer is post-LN (post_norm) unless norm_first=True (pre)",
    "activation": "nn.TransformerEncoderLayer has relu by default",
    "norm_eps": "nn.TransformerEncoderLayer has 1e-5 by default",
}

# Rows of architectures.toml leave out the first where they have their default. The second are not
# compared: they differ between models of one architecture.
_TOLD_BY_ROWS = {
    *("layer_scale", "gated_mlp", "final_norm", "fc_norm", "dist_token", "branches"),
    *("class_token", "num_registers", "position_embedding", "pre_norm", "qkv_bias", "qk_norm"),
    *("whole_qk_norm", "attention_norm", "mlp_norm", "relative_positions", "differential"),
    *("proj_bias", "mlp_bias"),
}
_INCIDENTAL = {"image_size", "num_classes", "num_heads", "pool_heads", "no_embed_class"}


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The known facts of a checkpoint's function, complete or not."""

    table: Table
    facts: Facts
    conflicts: tuple[str, ...]
    asked: Mapping[str, str]  # field that nothing tells -> why
    notes: tuple[str, ...]  # what the tensors overruled

    def config(self) -> ViTConfig:
        """The configuration, if it is known and without contradiction.

        Raises:
            ConflictingFact: What is stated contradicts the tensors.
            MissingFact: Fields are not known. Lists all of them.
            NotRepresentable: The dialect's own project mistakes such tensors.
        """
        if self.conflicts:
            raise ConflictingFact(
                "What is stated contradicts the tensors.",
                details=self.conflicts,
                hint="leave these values out, or name the file that they belong to. --image-size "
                "resamples positions; --set states what the file is, if a name is wrong.",
            )
        if self.asked:
            settings = " ".join(f"--set {name}=..." for name in self.asked)
            width = max(map(len, self.asked))
            raise MissingFact(
                "The file does not say everything that decides the function.",
                evidence={"dialect": f"{self.table.name} ({self.table.file})"},
                details=[f"{name:<{width}}  {why}" for name, why in self.asked.items()],
                hint=f"{settings} (in Python, overrides={{...}}) states it.",
            )
        values = {name: fact.value for name, fact in self.facts.items()}
        origins = {name: fact.origin for name, fact in self.facts.items()}
        config = ViTConfig(**values, origins=origins)
        if broken := [text for one in self.table.must if (text := one.broken_by(config))]:
            raise NotRepresentable(
                "The library's own code misreads tensors like these.",
                evidence={"dialect": f"{self.table.name} ({self.table.file})"},
                details=broken,
                meaning="So the function that they were trained for is unknown.",
            )
        return config


def gather_facts(binding: Binding, stated: Facts) -> Gathered:
    """Collect what the tensors show and what was stated. Raises nothing.

    Args:
        binding: A table laid over a checkpoint's header.
        stated: What is known from elsewhere, strongest already chosen.
    """
    found = TensorEvidence(binding, stated)
    read_tensors(found)
    _doubt_pooling(found)
    _doubt_activation(found)
    _take_stated(found)
    read_image_size(found)
    _miss_last_norm(found)
    _miss_what_leaves_no_trace(found)
    _miss_positions(found)
    _miss_arguments_of_torch(found)
    if found.facts.get("norm_bias") == (False, TENSORS) and "norm" not in found.facts:
        found.missing["norm"] = "norms without a bias are LayerNorms (layer) or RMS norms (rms)"
    unread = "".join(f", and no row reads {key}" for key in binding.unexplained[:1])
    for name in _REQUIRED:
        if name not in found.facts and name not in found.missing:
            found.missing[name] = f"not stated{unread}{_usual(binding.table, name)}"
    return Gathered(
        table=binding.table,
        facts=found.facts,
        conflicts=tuple(found.conflicts),
        asked={name: why for name, why in found.missing.items() if why},
        notes=tuple(found.notes),
    )


def _usual(table: Table, field: str) -> str:
    """What the project assumes where its own configuration file is silent, for a question."""
    mapping = table.config_file
    if mapping is None or field not in mapping.defaults:
        return ""
    others = (
        f"{said[field]} of {kind}" for kind, said in mapping.defaults_of.items() if field in said
    )
    named = ", ".join((str(mapping.defaults[field]), *others))
    return f"; if {mapping.file} does not state it, the library has {named}"


def _doubt_pooling(found: TensorEvidence) -> None:
    """A source that is wrong about the last norms is not believed about the pooling either.

    The two belong together: timm norms the mean of the tokens instead of all tokens. A fine-tuned
    model may have another pooling than its architecture, and its norms show that.
    """
    said, origin = found.stated.get("pooling") or UNKNOWN
    norms = [found.stated.get(name, UNKNOWN) for name in LAST_NORMS]
    shown = [found.facts[name].value for name in LAST_NORMS]
    same_source = bool(origin) and all(norm.origin == origin for norm in norms)
    if not same_source or not any(shown) or "pooling" in found.facts:
        return
    if [norm.value for norm in norms] != shown:
        found.stated = {k: fact for k, fact in found.stated.items() if k != "pooling"}
        found.notes.append(f"pooling = {said} ({origin}), but the tensors have other last norms")


def _doubt_activation(found: TensorEvidence) -> None:
    """An architecture without gates was built by code that gave it some, and maybe an activation.

    timm's config.json has no word for a class of MLPs; cards of models say it as code.
    """
    name = named_architecture((found.stated.get("activation") or UNKNOWN).origin)
    said = found.stated.get("gated_mlp", Fact(value=False, origin=""))
    if not name or said.value or found.facts.get("gated_mlp") != (True, TENSORS):
        return
    found.stated = {k: fact for k, fact in found.stated.items() if k != "activation"}
    why = f"{name} has no gated MLPs, so code gave this model its own"
    if alike := [card for card, row in cards().items() if _looks_like(found, row)]:
        why += f"; the tensors are those of {' and '.join(alike)}: --architecture NAME says so"
    found.missing["activation"] = why


def _take_stated(found: TensorEvidence) -> None:
    """Take the strongest statement on each field that no tensor shows; the table is the weakest."""
    table = found.binding.table
    for field, fact in found.stated.items():
        found.facts.setdefault(field, fact)
    for field, fact in found.by_default():
        if fact.value == SCALED_BY_WIDTH:  # a width of 0 is refused by ViTConfig
            fact = fact._replace(value=max(found.value("embed_dim", 1), 1) ** -0.5)
        found.facts.setdefault(field, fact)
    for field, why in table.ask.items():
        if field not in found.stated:
            found.missing[field] = why
    if any(fact.origin != USER for fact in found.stated.values()):
        return  # a configuration or a name speaks for the model
    for asked in table.ask_unnamed:
        if asked.name not in found.stated and asked.holds(found.look_up):
            found.missing[asked.name] = asked.value


def _miss_last_norm(found: TensorEvidence) -> None:
    """Few ViTs end without a norm, and a truncated file must not be taken for one of them."""
    rows = found.binding.table.row_of
    if "norm.weight" not in rows and "fc_norm.weight" not in rows:
        return  # the dialect has none to miss
    ends_with_norm = any(found.value(name) for name in LAST_NORMS)
    usual = state(LAST_NORMS, "") | dict(found.by_default())
    (final_norm, by), (fc_norm, weaker) = (found.stated.get(n, usual[n]) for n in LAST_NORMS)
    # A source saying "no final norm" beats a weaker one saying where it sits.
    if not ends_with_norm and (final_norm or (fc_norm and weaker == by)):
        found.missing["final_norm"] = "there is no last norm, and no file states that there is none"


def _miss_what_leaves_no_trace(found: TensorEvidence) -> None:
    """Ask where the tensors would fit a known model that does something no tensor shows."""
    table = found.binding.table
    rows = architectures().get(table.name)
    if table.config_file and table.config_file.architectures:
        rows = named(table.config_file.architectures)
    for field, (usual, otherwise) in _TRACELESS.items():
        if field in found.stated or field in found.facts or rows is None:
            continue
        unusual = ((n, row) for n, row in rows.stating(field).items() if row[field] != usual)
        alike = next((name for name, row in unusual if _looks_like(found, row)), None)
        if alike:
            found.missing[field] = (
                f"{alike} has the same tensors and {otherwise}; --architecture "
                f"NAME says which model this is, --set {field}={usual} that it is not"
            )


def _miss_positions(found: TensorEvidence) -> None:
    """Ask where a table alone says that there are no positions, of blocks that have none either.

    Code may compute fixed ones that no file holds. A config.json that names a project's class says
    which there are; so does a user's own table of a class that has none, and a table with
    "position_embedding unless learned_positions".
    """
    table = found.binding.table
    positions = found.facts.get("position_embedding", UNKNOWN)
    if not table.builtin and table.section("only").get("position_embedding") == "none":
        return
    config_file = table.config_file
    names_class = config_file is not None and bool(config_file.identify)
    if names_class and any(fact.origin == CONFIG for fact in found.stated.values()):
        return
    if any(d.name == "position_embedding" and d.condition for d in table.defaults):
        return
    turned = found.value("rope", "none") != "none" or "rope" in found.missing
    if positions != Fact("none", table.origin) or turned:
        return
    if found.value("relative_positions", "none") == "none":
        found.missing["position_embedding"] = (
            "no tensor holds positions, and no file states that there are none (none): code may "
            "compute fixed ones (sincos1d, sincos2d, sincos2d_mae)"
        )


def open_arguments(names: Iterable[str]) -> Mapping[str, str]:
    """The fields that the names of torch's own layers leave open, with the reason; or none."""
    every = list(names)
    of_torch = all(any(name.endswith(f".{part}") for name in every) for part in _TORCH_LAYER)
    return _TORCH_ARGUMENTS if of_torch else {}


def _miss_arguments_of_torch(found: TensorEvidence) -> None:
    """Ask of a user's own table what the names of torch's own layers leave open."""
    if found.binding.table.builtin:
        return
    for field, why in open_arguments(found.binding.shapes).items():
        if field not in found.facts:
            found.missing[field] = why


def _looks_like(found: TensorEvidence, row: Mapping[str, object]) -> bool:
    """Whether everything that the tensors show is also true of an architecture."""
    shown = {name: fact.value for name, fact in found.facts.items() if fact.origin == TENSORS}
    if (row["pooling"] == "map") != (shown.get("pooling") == "map"):
        return False
    return all(
        shown[f.name] == row.get(f.name, f.default)
        for f in _FIELDS
        if f.name in shown
        and f.name not in _INCIDENTAL
        and (f.name in row or f.name in _TOLD_BY_ROWS)
    )
