"""What is said of a checkpoint besides its tensors: by files beside it, a name or the user."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
from vitconvert.errors import CorruptFile, NotRepresentable, VitConvertError
from vitconvert.inference.labels import Labels, stated_labels
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.sources import Located
from vitconvert.tables.architectures import FILE, architecture_in, find_architecture, named
from vitconvert.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The files beside the weights, each read once.

    Attributes:
        located: Where they lie.
        config: The project's own `config.json`, empty if there is none.
        own: The `vitconvert.json`, likewise.
    """

    located: Located
    config: Mapping[str, Any]
    own: Mapping[str, Any]

    def stated_facts(
        self, table: Table, overrides: Mapping[str, Any] | None, architecture: str | None
    ) -> Facts:
        """What is known besides the tensors, the strongest statement of each field.

        Raises:
            NotRepresentable: The project's own configuration names an unknown architecture, or
                passes it arguments that vitconvert has no word for.
        """
        user = parse_fields(overrides or {})
        self._check_config(table)
        stronger = strongest(
            state(user, USER),
            state(parse_fields(self.own.get("config", {})), "vitconvert.json"),
            facts_from_config(table, self.config, known=user),
        )
        return weigh_statements(table, stronger, self._named_facts(table, architecture))

    def _check_config(self, table: Table) -> None:
        if unknown := unknown_arguments(table, self.config):
            raise NotRepresentable(
                "config.json passes arguments that vitconvert has no word for: "
                f"{', '.join(unknown)}.",
                evidence={"file": self.located.config, "table": table.file},
                meaning="A model that needs them computes another function than a plain ViT.",
            )
        if broken := broken_musts(table, self.config):
            raise NotRepresentable(
                f"config.json would have to say {', '.join(broken)}.",
                evidence={"file": self.located.config, "table": table.file},
                meaning="Without it the same tensors mean another function, for which there is no "
                "table.",
            )

    def check_class(self, table: Table, config: ViTConfig) -> None:
        """Raise NotRepresentable if the project's class makes another function of the tensors."""
        if broken := broken_must_nots(table, self.config, config):
            raise NotRepresentable(
                f"config.json says {', '.join(broken)}.",
                evidence={"file": self.located.config, "table": table.file},
                meaning="Of a model without the tensors that the file lacks, this class makes "
                "another function than the table says.",
                hint="without that line, the file is read as the encoder that it holds.",
            )

    def _named_facts(self, table: Table, architecture: str | None) -> Facts:
        """Facts of the architecture that the user, the config, the reference or the file names."""
        key = table.config_file.architecture if table.config_file else ""
        ecosystem = (table.config_file and table.config_file.architectures) or table.ecosystem
        if not named(ecosystem):
            return {}
        # The reference comes before the config: timm's quickgelu names lead to repositories whose
        # config names another architecture.
        name = architecture or self.located.name or look_up(self.config, key)
        if name:
            return state(_row(ecosystem, str(name)), f"architecture {name}")
        assert self.located.weights is not None
        guess = architecture_in(ecosystem, self.located.weights.name)
        if guess is None:
            return {}
        return state(_row(ecosystem, guess), f"assumed: the file name begins with {guess}; {FILE}")

    def preprocessing(self, table: Table, config: ViTConfig) -> Preprocessing | None:
        """The checkpoint's own, in the order in which its projects would look."""
        if config.in_channels not in (1, 3):
            return None  # photographs have no such channels
        if own := self.own.get("preprocessing"):
            with _reading(self.located.own):
                return Preprocessing.from_dict(own)
        if self.located.preprocessor:
            said = _read_json(self.located.preprocessor)
            with _reading(self.located.preprocessor):
                return Preprocessing.from_huggingface(
                    said,
                    model_type=self.config.get("model_type"),
                    image_size=config.image_size,
                )
        if isinstance(cfg := self.config.get("pretrained_cfg"), dict):
            if config.in_channels == 1 and not all(cfg.get(name) for name in ("mean", "std")):
                return None  # timm's own are those of red, green and blue
            with _reading(self.located.config):
                return Preprocessing.from_timm(cfg)
        if isinstance(cfg := self.config.get("preprocess_cfg"), dict):
            with _reading(self.located.config):
                return Preprocessing.from_openclip(cfg, image_size=config.image_size)
        section = table.preprocessing
        if section and (config.in_channels == 3 or not _for_rgb_alone(section)):
            return Preprocessing.from_dialect(
                section,
                image_size=config.image_size,
                channels=config.in_channels,
                origin=table.origin,
            )
        return None

    def labels(self, num_classes: int) -> Labels | None:
        """Names that the checkpoint itself gives its classes, or None."""
        names = self.config.get("id2label") or self.config.get("label_names")
        descriptions = self.config.get("label_descriptions")
        stated = stated_labels(num_classes, names, descriptions=descriptions)
        kept = self.own.get("labels")  # most projects' own files have no place for them
        return stated or stated_labels(num_classes, kept, origin="vitconvert.json")


def read_beside(located: Located) -> Beside:
    """Read the files beside the weights.

    Raises:
        CorruptFile: One of them is no JSON object.
    """
    config, own = _read_json(located.config), _read_json(located.own)
    return Beside(located=located, config=config, own=own)


def parse_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Field values of the right types; None states nothing.

    Raises:
        UsageError: There is no such field, or the value is of another kind.
    """
    return {k: parse_field(k, value) for k, value in fields.items() if value is not None}


def _row(ecosystem: str, name: str) -> dict[str, Any]:
    """An architecture, with what its row leaves out of the last norms."""
    return {**LAST_NORMS, **find_architecture(ecosystem, name)}


@contextmanager
def _reading(file: Path | None) -> Iterator[None]:
    """Whatever is wrong with what a file says, its name comes first."""
    try:
        yield
    except VitConvertError as error:
        error.evidence = {"file": str(file), **error.evidence}
        raise


def _for_rgb_alone(section: Mapping[str, Any]) -> bool:
    """Whether a project states red, green and blue apart, which says nothing of grey images."""
    return any(isinstance(v := section[name], list) and len(set(v)) > 1 for name in ("mean", "std"))


def _read_json(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CorruptFile(
            f"{path.name} is not JSON.", evidence={"file": path, "problem": error}
        ) from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path.name} holds no JSON object.", evidence={"file": path})
    return value
