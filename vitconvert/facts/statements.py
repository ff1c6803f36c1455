"""Statements on a checkpoint besides its tensors, and whom to believe.

From the strongest: the user, a vitconvert.json, the project's own config.json, the architecture
that somebody names. The table's own defaults are weaker than all of them (see `gathering`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable, UsageError
from vitconvert.facts.fact import (
    OF_ARCHITECTURE,
    USER,
    Fact,
    Facts,
    named_architecture,
    state,
    strongest,
)
from vitconvert.facts.gathering import DEFAULTS, LAST_NORMS
from vitconvert.facts.project_config import (
    broken_must_nots,
    broken_musts,
    denied_positions,
    facts_from_config,
    unknown_arguments,
)
from vitconvert.tables.architectures import FILE, architecture_in, find_architecture, published
from vitconvert.tables.config_file import look_up
from vitconvert.tables.predicates import ARCHITECTURE, Conditional
from vitconvert.tables.table import Table

# Where Lightning's save_hyperparameters() leads, and what its users call the architecture there:
# themselves, or in a group such as `args` or `model`.
_HYPER = "hyper_parameters"
_CALLED = ("model_name", "model", "arch", "architecture", "backbone", "encoder", "name")


@dataclass(frozen=True, kw_only=True)
class Statements:
    """The statements on a checkpoint, by each of their sources.

    Attributes:
        user: Fields of ViTConfig; None states nothing.
        own: The `config` of a `vitconvert.json`.
        own_origins: Where its fields come from, as it says.
        own_first: Whether it comes before the project's own `config.json`.
        config: The project's own `config.json`.
        config_file: Where that lies, for messages.
        architecture: The name of an architecture that the user gives.
        name: The one that the reference gives, such as `timm:NAME`.
        trained: Entries that a training program saved with the weights; one may be an architecture.
        file_name: Of the weights; it may begin with an architecture's name.
        doubts: Statements that are left out here, because the tensors contradict them.
    """

    user: Mapping[str, object] = field(default_factory=dict)
    own: Mapping[str, object] = field(default_factory=dict)
    own_origins: Mapping[str, str] = field(default_factory=dict)
    own_first: bool = True
    config: Mapping[str, object] = field(default_factory=dict)
    config_file: str = "config.json"
    architecture: str | None = None
    name: str | None = None
    trained: Mapping[str, object] = field(default_factory=dict)
    file_name: str = ""
    doubts: tuple[str, ...] = ()

    def facts(self, table: Table) -> Facts:
        """The strongest statement on each field, read with a dialect's table.

        Raises:
            UsageError: The user names a field that does not exist, a value of another kind, or an
                architecture where none has a name.
            ConflictingFact: A vitconvert.json does.
            NotRepresentable: The project's own configuration names an unknown architecture, or
                passes it arguments that vitconvert has no word for.
            MissingFact: A statement on the pooling leaves open which tokens are pooled.
        """
        user = parse_fields(self.user)
        self._check_config(table)
        written = self._own_facts(), facts_from_config(table, self.config, known=user)
        stronger = strongest(state(user, USER), *(written if self.own_first else written[::-1]))
        return weigh_statements(table, stronger, self._named_facts(table))

    @property
    def arguments(self) -> Mapping[str, object]:
        """Arguments of the training script, if they were saved with the weights."""
        return _arguments(self.trained)

    def _own_facts(self) -> Facts:
        try:
            fields = parse_fields(self.own)
        except UsageError as error:
            raise ConflictingFact(
                f"vitconvert.json is not valid: {error.fact}",
                hint="convert the original again.",
            ) from None
        origins = self.own_origins
        return {n: Fact(v, origins.get(n, "vitconvert.json")) for n, v in fields.items()}

    def check_class(self, table: Table, config: ViTConfig) -> None:
        """Make sure that the class which config.json names computes what the table says.

        Raises:
            NotRepresentable: That class makes another function of the same tensors.
            ConflictingFact: It has positions that the file lacks, or none of those in the file.
        """
        if denied := denied_positions(table, self.config, config):
            raise ConflictingFact(
                f"config.json says {', '.join(denied)}, but the tensors of the file contradict it.",
                evidence={"file": self.config_file, "table": table.file},
                hint="get all files again from one place: one of them is incomplete, or of "
                "another model.",
            )
        if broken := broken_must_nots(table, self.config, config):
            raise NotRepresentable(
                f"config.json says {', '.join(broken)}.",
                evidence={"file": self.config_file, "table": table.file},
                meaning="Of a model without the tensors that the file lacks, this class makes "
                "another function than the table says.",
                hint="without that line, the file is read as the encoder that it holds.",
            )

    def _check_config(self, table: Table) -> None:
        if unknown := unknown_arguments(table, self.config):
            raise NotRepresentable(
                "config.json passes arguments that vitconvert has no word for: "
                f"{', '.join(unknown)}.",
                evidence={"file": self.config_file, "table": table.file},
                meaning="A model that needs them computes another function than a plain ViT.",
            )
        if broken := broken_musts(table, self.config):
            raise NotRepresentable(
                f"config.json would have to say {', '.join(broken)}.",
                evidence={"file": self.config_file, "table": table.file},
                meaning="Without it, the same tensors are another function, which has no table.",
            )

    def _named_facts(self, table: Table) -> Facts:
        """Facts of the architecture that the user, the config, the reference or the file names."""
        ecosystem = (table.config_file and table.config_file.architectures) or table.ecosystem
        name = self._stated_name(table)
        if name and not published(ecosystem, name):
            if self.architecture:
                raise UsageError(
                    f"{table.title} has no architectures that are known by name.",
                    evidence={"named": self.architecture, "listed in": FILE},
                    hint="leave --architecture out; --set FIELD=VALUE states what is asked for.",
                )
            return {}
        if name:
            return state(_row(ecosystem, name), f"{OF_ARCHITECTURE}{name}")
        for where, name in (
            *_trained_as(self.trained),
            ("the file name begins with", self.file_name),
        ):
            if guess := architecture_in(ecosystem, name):
                row = state(_row(ecosystem, guess), f"assumed: {where} {guess}; {FILE}")
                return row | _trained_size(self.trained)
        return {}

    def _stated_name(self, table: Table) -> str | None:
        # The reference comes before the config: timm's quickgelu names lead to repositories whose
        # config names another architecture.
        key = table.config_file.architecture if table.config_file else ""
        name = self.architecture or self.name or look_up(self.config, key)
        return str(name) if name else None

    def names(self, table: Table) -> Iterator[str]:
        """Names of the architecture, with its tag, by the user or by the checkpoint itself.

        The name of a file is none of them: it tells nothing but where somebody kept it.
        """
        if name := self._stated_name(table):
            yield name
        else:
            yield from (name for _, name in _trained_as(self.trained))


def _arguments(trained: Mapping[str, object]) -> Mapping[str, object]:
    args = trained.get("args")
    return args if isinstance(args, Mapping) else {}


def _trained_as(trained: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The names that training programs of timm, torchvision and Lightning leave in a checkpoint."""
    for where, name in (
        ("arch", trained.get("arch")),
        ("args.model", _arguments(trained).get("model")),
        *(
            (f"{place}.{word}", group.get(word))
            for place, group in _hyper_parameters(trained)
            for word in _CALLED
        ),
    ):
        if isinstance(name, str):
            bare = name.removeprefix("hf-hub:").removeprefix("timm/")
            yield f"{where} beside the weights is", bare


def _hyper_parameters(
    trained: Mapping[str, object],
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Those of Lightning, and each group of them, with its place."""
    hyper = trained.get(_HYPER)
    if isinstance(hyper, Mapping):
        yield _HYPER, hyper
        groups = ((f"{_HYPER}.{word}", inner) for word, inner in hyper.items())
        yield from ((place, group) for place, group in groups if isinstance(group, Mapping))


def _trained_size(trained: Mapping[str, object]) -> Facts:
    """The size of the images, by timm's training script or by Lightning; empty if unknown."""
    arguments = _arguments(trained)
    more = arguments.get("model_kwargs")
    for where, said in (
        ("args.model_kwargs.img_size", more.get("img_size") if isinstance(more, Mapping) else None),
        ("args.input_size", arguments.get("input_size")),
        ("args.img_size", arguments.get("img_size")),
        *(
            (f"{place}.{word}", group.get(word))
            for place, group in _hyper_parameters(trained)
            for word in ("img_size", "image_size")
        ),
    ):
        sides = said[-2:] if isinstance(said, list) else [said, said]
        if len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
            return {"image_size": Fact(tuple(sides), f"assumed: {where} beside the weights")}
    return {}


def parse_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Field values of the right types; None states nothing.

    Raises:
        UsageError: There is no such field, or the value is of another kind.
    """
    return {k: parse_field(k, value) for k, value in fields.items() if value is not None}


def weigh_statements(table: Table, stronger: Facts, named_facts: Facts) -> Facts:
    """The statement on each field: a named architecture's only where there is no other.

    Args:
        table: The dialect.
        stronger: What the user, a vitconvert.json and the project's own config.json say.
        named_facts: What the architecture that is named says; empty if none is.

    Raises:
        MissingFact: The model differs from its architecture, and the table asks for a field there.
    """
    stated = strongest(stronger, named_facts)
    told = {*stronger, *(default.name for default in table.defaults)}
    for asked in table.ask_beyond_name if named_facts else ():
        if asked.name not in told and asked.holds(partial(_said, stated, named_facts)):
            raise _not_as_named(asked, stated, named_facts)
    return stated


def _said(stated: Facts, named_facts: Facts, word: str) -> object:
    """A fact of the model, or with `architecture.` before the word, of its architecture."""
    field = word.removeprefix(ARCHITECTURE)
    facts = stated if field == word else named_facts
    # Rows of architectures.toml leave out what has its default.
    return facts[field].value if field in facts else DEFAULTS.get(field)


def _not_as_named(asked: Conditional, stated: Facts, named_facts: Facts) -> MissingFact:
    words = asked.condition.words if asked.condition else ()
    differ = [w.removeprefix(ARCHITECTURE) for w in words if w.startswith(ARCHITECTURE)]
    rows = [f"{name} = {_said({}, named_facts, ARCHITECTURE + name)}" for name in differ]
    told = {name: stated[name] for name in differ if name in stated}
    here = [f"{name} = {value} ({origin})" for name, (value, origin) in told.items()]
    origin = next(iter(named_facts.values())).origin
    return MissingFact(
        f"This model differs from its architecture, and {asked.name} is unknown.",
        evidence={
            "architecture": f"{named_architecture(origin) or origin}, {', '.join(rows)}",
            "this model": ", ".join(here),
        },
        meaning=asked.value,
        hint=f"--set {asked.name}=... (in Python, overrides={{...}}) states it.",
    )


def _row(ecosystem: str, name: str) -> dict[str, object]:
    """An architecture, with what its row leaves out of the last norms."""
    return {**LAST_NORMS, **find_architecture(ecosystem, name)}
