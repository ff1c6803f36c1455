"""A project's own `config.json`: which of its keys say what our configuration says."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from vitconvert.config import ViTConfig, field_names
from vitconvert.errors import TableError

_OF_RATIO = {"times", "over", "multiple", "whole"}


@dataclass(frozen=True, kw_only=True)
class Word:
    """A value that is a field or property of ViTConfig."""

    word: str


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A number that makes one of our sizes of the width.

    The width times the number is truncated, then `times / over` of it, which is rounded up to a
    multiple of `multiple`.
    """

    makes: str  # a field of ViTConfig
    times: int = 1
    over: int = 1
    multiple: int = 1
    whole: bool = False

    def of(self, config: ViTConfig) -> float | None:
        """The number, whole if a whole one will do, or None if there is none."""
        wanted, width = getattr(config, self.makes), config.embed_dim
        exact = wanted * self.over / self.times / width
        # Truncation eats what rounding has taken from an exact quotient.
        fractions = () if self.whole else (exact, exact + 1e-9, exact + 1e-7)
        tried = (math.floor(exact), math.ceil(exact), *fractions)
        return next((r for r in tried if self._makes(width, r) == wanted), None)

    def _makes(self, width: int, ratio: float) -> int:
        part = int(width * ratio) * self.times // self.over
        return -(-part // self.multiple) * self.multiple


@dataclass(frozen=True)
class Conditional:
    """A value under a name: always, or if a word of ViTConfig is true, or unless it is."""

    name: str
    value: Any
    word: str = ""
    negated: bool = False

    def holds(self, config: ViTConfig) -> bool:
        """Whether the value counts for a model."""
        return not self.word or bool(getattr(config, self.word)) != self.negated


@dataclass(frozen=True)
class ConfigFile:
    """How the project's own `config.json` says what our configuration says."""

    file: str  # what the project calls it
    identify: Mapping[str, tuple[str, ...]]  # their key -> values that mark this dialect
    fields: Mapping[str, tuple[str, ...]]  # our field -> paths in their file, first found wins
    values: Mapping[str, Mapping[str, Any]]  # our field -> their value -> ours
    defaults: Mapping[str, Any]  # our field -> what the project assumes if the file is silent
    defaults_of: Mapping[str, Mapping[str, Any]]  # the same for one identifying value
    within: tuple[str, ...]  # where paths of fields begin: the first there is, the last written
    writes: tuple[Conditional, ...]  # path -> what a file has besides: a value, Word or Ratio
    arguments: str  # path of the constructor's arguments, all of which must be understood
    must: Mapping[str, Any]  # path -> the only value of which the table is right
    must_not: tuple[Conditional, ...]  # path -> a value of which it is wrong
    inert: tuple[str, ...]  # arguments that change nothing in inference, or that tensors show
    architectures: str  # whose architectures.toml to look in, if not the ecosystem's
    architecture: str  # path of the name of an architecture in architectures.toml

    def paths(self, within: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every field that the file says, with all its paths."""
        for field, paths in self.fields.items():
            yield field, tuple(within + path for path in paths)


class Reader(Protocol):
    """What reads a table, and knows its place in every message."""

    def error(self, place: str, problem: object) -> TableError:
        """A mistake in the table."""

    def field(self, place: str, field: str, value: object) -> Any:
        """The value of a field of ViTConfig."""

    def check_field(self, place: str, field: str) -> None:
        """Raise TableError if there is no such field."""


def read_config_file(section: Mapping[str, Any], reader: Reader) -> ConfigFile:
    """Parse `[config_json]`.

    Raises:
        TableError: With the place and what is wrong there.
    """
    return _SectionReader(section, reader).config_file()


class _SectionReader:
    """One method for each kind of subsection."""

    def __init__(self, section: Mapping[str, Any], reader: Reader) -> None:
        self.section = section
        self.reader = reader

    def config_file(self) -> ConfigFile:
        for unknown in sorted(set(self.section) - {f.name for f in dataclasses.fields(ConfigFile)}):
            raise self.reader.error(f"config_json.{unknown}", "unknown section")
        fields, values = self.subsection("fields"), self.subsection("values")
        for field in {**fields, **values}:
            self.reader.check_field(f"config_json.fields.{field}", field)
        return ConfigFile(
            file=self.section.get("file", "config.json"),
            identify=self.tuples("identify", self.subsection("identify")),
            fields=self.tuples("fields", fields),
            values=values,
            defaults=self.facts("defaults", self.subsection("defaults")),
            defaults_of=dict(self.defaults_of()),
            within=self.tuples("within", {"": self.section.get("within", "")})[""],
            writes=tuple(self.conditionals("writes")),
            arguments=self.section.get("arguments", ""),
            must=self.subsection("must"),
            must_not=tuple(self.conditionals("must_not")),
            inert=tuple(self.section.get("inert", ())),
            architectures=self.section.get("architectures", ""),
            architecture=self.section.get("architecture", ""),
        )

    def subsection(self, name: str) -> Mapping[str, Any]:
        return self.mapping(name, self.section.get(name, {}))

    def mapping(self, name: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.reader.error(f"config_json.{name}", "expected a [section]")
        return value

    def facts(self, name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
        place = f"config_json.{name}"
        return {k: self.reader.field(f"{place}.{k}", k, v) for k, v in section.items()}

    def defaults_of(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for value, section in self.subsection("defaults_of").items():
            place = f"defaults_of.{value}"
            yield value, self.facts(place, self.mapping(place, section))

    def tuples(self, name: str, section: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        several = {k: (v,) if isinstance(v, str) else v for k, v in section.items()}
        for key, texts in several.items():
            if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
                place = ".".join(filter(None, ("config_json", name, key)))
                raise self.reader.error(place, "expected a text or a list of texts")
        return {key: tuple(texts) for key, texts in several.items()}

    def conditionals(self, name: str) -> Iterator[Conditional]:
        for key, value in self.subsection(name).items():
            try:
                yield parse_conditional(key, _parse_written(value))
            except ValueError as error:
                raise self.reader.error(f'config_json.{name}."{key}"', error) from None


def parse_conditional(key: str, value: Any) -> Conditional:
    """Read `name`, `name if word` or `name unless word`.

    Raises:
        ValueError: The key has another form, or the word is none of ViTConfig's.
    """
    match key.split():
        case [name]:
            return Conditional(name, value)
        case [name, ("if" | "unless") as how, word]:
            return Conditional(name, value, _check_word(word), how == "unless")
    raise ValueError('expected "name", "name if word" or "name unless word"')


def _parse_written(value: Any) -> Any:
    """A constant, `{ word = ... }` or `{ makes = ... }`."""
    if not isinstance(value, dict):
        return value
    more: dict[str, Any] = dict(value)
    word, size = more.pop("word", None), more.pop("makes", None)
    if isinstance(word, str) and size is None and not more:
        return Word(word=_check_word(word))
    if (
        isinstance(size, str)
        and word is None
        and more.keys() <= _OF_RATIO
        and _whole(more.values())
    ):
        return Ratio(makes=_check_word(size), **more)
    optional = ", ".join(sorted(_OF_RATIO))
    raise ValueError(f"expected {{ word = ... }} or {{ makes = ... }} with {optional}")


def _whole(numbers: Iterable[object]) -> bool:
    return all(isinstance(number, int) and number > 0 for number in numbers)


def _check_word(word: str) -> str:
    if word not in field_names() and not isinstance(getattr(ViTConfig, word, None), property):
        raise ValueError(f"{word!r} is no field or property of ViTConfig")
    return word
