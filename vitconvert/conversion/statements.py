"""What was said of a checkpoint besides its tensors, and whom to believe.

From the strongest: the user, a vitconvert.json, the project's own config.json, the architecture
that somebody names. The table's own defaults are weaker than all of them (see `facts`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.conversion.derivation import LAST_NORMS, state, strongest, weigh_statements
from vitconvert.conversion.project_config import (
    Facts,
    broken_must_nots,
    broken_musts,
    facts_from_config,
    look_up,
    unknown_arguments,
)
from vitconvert.conversion.tensor_evidence import USER
from vitconvert.errors import NotRepresentable
from vitconvert.tables.architectures import FILE, architecture_in, find_architecture, named
from vitconvert.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Statements:
    """What was said of a checkpoint, by each of those who can say something.

    Attributes:
        user: Fields of ViTConfig; None states nothing.
        own: The `config` of a `vitconvert.json`.
        config: The project's own `config.json`.
        config_file: Where that lies, for messages.
        architecture: The name of an architecture that the user gives.
        name: The one that the reference gives, such as `timm:NAME`.
        file_name: Of the weights; it may begin with an architecture's name.
    """

    user: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    config_file: str = "config.json"
    architecture: str | None = None
    name: str | None = None
    file_name: str = ""

    def facts(self, table: Table) -> Facts:
        """The strongest statement on each field, read with a dialect's table.

        Raises:
            UsageError: The user names a field that does not exist, or a value of another kind.
            NotRepresentable: The project's own configuration names an unknown architecture, or
                passes it arguments that vitconvert has no word for.
            MissingFact: A statement on the pooling leaves open which tokens are pooled.
        """
        user = parse_fields(self.user)
        self._check_config(table)
        stronger = strongest(
            state(user, USER),
            state(parse_fields(self.own), "vitconvert.json"),
            facts_from_config(table, self.config, known=user),
        )
        return weigh_statements(table, stronger, self._named_facts(table))

    def check_class(self, table: Table, config: ViTConfig) -> None:
        """Make sure that the class which config.json names computes what the table says.

        Raises:
            NotRepresentable: That class makes another function of the same tensors.
        """
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
                meaning="Without it the same tensors mean another function, for which there is no "
                "table.",
            )

    def _named_facts(self, table: Table) -> Facts:
        """Facts of the architecture that the user, the config, the reference or the file names."""
        key = table.config_file.architecture if table.config_file else ""
        ecosystem = (table.config_file and table.config_file.architectures) or table.ecosystem
        if not named(ecosystem):
            return {}
        # The reference comes before the config: timm's quickgelu names lead to repositories whose
        # config names another architecture.
        name = self.architecture or self.name or look_up(self.config, key)
        if name:
            return state(_row(ecosystem, str(name)), f"architecture {name}")
        guess = architecture_in(ecosystem, self.file_name)
        if guess is None:
            return {}
        return state(_row(ecosystem, guess), f"assumed: the file name begins with {guess}; {FILE}")


def parse_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Field values of the right types; None states nothing.

    Raises:
        UsageError: There is no such field, or the value is of another kind.
    """
    return {k: parse_field(k, value) for k, value in fields.items() if value is not None}


def _row(ecosystem: str, name: str) -> dict[str, Any]:
    """An architecture, with what its row leaves out of the last norms."""
    return {**LAST_NORMS, **find_architecture(ecosystem, name)}
