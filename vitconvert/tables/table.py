"""A dialect: one TOML file of `weights_map/`, parsed once into an object nobody edits."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.tables.axes import Axes
from vitconvert.tables.canonical import CanonicalTensor
from vitconvert.tables.config_file import Conditional, ConfigFile
from vitconvert.tables.constants import Constant
from vitconvert.tables.expressions import Alternative
from vitconvert.tables.templates import Template

# The one default that depends on a size: attention scaled by the model's width, not the head's.
SCALED_BY_WIDTH = "embed_dim ** -0.5"


@dataclass(frozen=True)
class Row:
    """One of our tensors and the ways in which the dialect spells it."""

    tensor: CanonicalTensor
    alternatives: tuple[Alternative, ...]
    text: str  # as it stands in the table, for messages

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.tensor.name.text


@dataclass(frozen=True)
class Default:
    """A fact the dialect implies: `field if word` or `field unless word`, or always."""

    field: str
    value: Any
    word: str = ""
    negated: bool = False


@dataclass(frozen=True)
class Table:
    """A parsed dialect."""

    name: str
    file: str
    title: str
    ecosystem: str
    source: str
    tested: str
    container: str
    named_only: bool  # not recognised by itself, because another table reads the same files
    allowed_as: str  # the step whose permission it takes to write it, if it is not named
    install: str  # what to install to open it; "" says nothing
    requires: tuple[tuple[str, ...], ...]  # of each group, one row must be found
    rows: tuple[Row, ...]
    ignore: tuple[tuple[Template, str], ...]
    sizes: tuple[tuple[Template, str, int], ...]  # a key, an axis, what times its length that is
    holds: tuple[tuple[Template, Constant], ...]  # what ignored tensors must be
    empty: tuple[tuple[Template, Axes], ...]
    constants: tuple[tuple[Template, float, Axes], ...]
    first: tuple[Conditional, ...]  # a word -> the text that some models are written with
    defaults: tuple[Default, ...]
    ask: Mapping[str, str]  # fields that only the user can tell -> why
    config_file: ConfigFile | None
    only: Mapping[str, Any]  # properties of ViTConfig that the project's model always has
    must: Mapping[str, str]  # properties without which its code mistakes the tensors -> why
    preprocessing: Mapping[str, Any]

    @functools.cached_property
    def row_of(self) -> Mapping[str, Row]:
        """Rows by canonical name."""
        return {row.name: row for row in self.rows}

    def first_texts(self, config: ViTConfig) -> Mapping[str, str]:
        """The words that this model is not written with the first text of."""
        return {first.name: first.value for first in self.first if first.holds(config)}
