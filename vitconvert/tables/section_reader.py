"""What every section of a dialect's file is read with; every message carries its place."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from vitconvert.config import Kind, ViTConfig, field_names
from vitconvert.config.field_values import parse_field
from vitconvert.errors import TableError, UsageError, nearest
from vitconvert.tables.conditions import Conditional, parse_conditional
from vitconvert.tables.inheritance import Sections, mistake
from vitconvert.tables.predicates import Predicate, config_words, parse_predicate


class SectionReader:
    """Finds values of one file, and the words and fields in them."""

    def __init__(self, name: str, label: str, data: Sections, describes: Kind = ViTConfig) -> None:
        self.name = name
        self.label = label
        self.data = data
        self.describes = describes

    def error(self, place: str, problem: object, hint: str | None = None) -> TableError:
        """A mistake in the table."""
        return mistake(self.label, place, problem, hint)

    def section(self, name: str) -> Mapping[str, Any]:
        """A section, empty if there is none."""
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "expected a [section]")
        return value

    def text(self, section: str, key: str, default: str | None = None) -> str:
        """A text."""
        value = self.section(section).get(key, default)
        if not isinstance(value, str):
            found = "nothing" if value is None else type(value).__name__
            raise self.error(f"{section}.{key}", f"expected a text, found {found}")
        return value

    def texts(self, section: str, key: str) -> tuple[str, ...]:
        """Any number of texts."""
        values = self.section(section).get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(f"{section}.{key}", "expected a list of texts")
        return tuple(values)

    def reason(self, place: str, reason: object) -> str:
        """Why something is so."""
        if not isinstance(reason, str) or not reason.strip():
            raise self.error(place, "a reason is needed, as text")
        return reason

    def conditional(self, place: str, key: str, value: object, words: Set[str]) -> Conditional:
        """A value that may depend on a predicate of these words."""
        try:
            return parse_conditional(key, value, words)
        except ValueError as error:
            raise self.error(place, error) from None

    def predicate(self, place: str, text: str) -> Predicate:
        """A condition on a model."""
        try:
            return parse_predicate(text, config_words(self.describes))
        except ValueError as error:
            raise self.error(place, error) from None

    def field(self, place: str, field: str, value: object) -> Any:
        """The value of a field of the configuration."""
        self.check_field(place, field)
        try:
            return parse_field(field, value, self.describes)
        except UsageError as error:
            raise self.error(place, error.fact) from None

    def check_field(self, place: str, field: str) -> None:
        """Raise TableError if the configuration has no such field."""
        fields = field_names(self.describes)
        if field not in fields:
            problem = f"{field!r} is no field of {self.describes.__name__}"
            raise self.error(place, problem, did_you_mean(field, fields))


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint of a message, if a known name is similar."""
    near = nearest(name, known)
    return f"did you mean {near[0]!r}?" if near else None
