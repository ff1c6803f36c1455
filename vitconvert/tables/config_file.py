"""A project's own `config.json`: which of its keys say what our configuration says."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config import Config, Kind
from vitconvert.tables.predicates import Conditional, config_words, parse_conditional
from vitconvert.tables.tensor_sections import SectionReader
from vitconvert.toml_files import read_tables

_OF_RATIO = {"times", "over", "multiple", "whole", "alone"}
_SIZES = ("mlp_dim", "pool_mlp_dim", "representation_size", "num_classes")  # that a ratio may make


@dataclass(frozen=True, kw_only=True)
class Word:
    """A value that is a field or property of the configuration."""

    word: str


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A number that makes one of our sizes of the width.

    The width times the number, or the number alone, is truncated, then `times / over` of it, which
    is rounded up to a multiple of `multiple`.
    """

    makes: str  # a field of the configuration
    times: int = 1
    over: int = 1
    multiple: int = 1
    whole: bool = False
    alone: bool = False

    def of(self, config: Config) -> float | None:
        """The number, or None if there is none.

        A whole one that does is taken first; where others may stand, it is written as they are:
        transformers takes 4.0 for a float and not 4.
        """
        wanted, width = getattr(config, self.makes), 1 if self.alone else config.embed_dim
        exact = wanted * self.over / self.times / width
        # Truncation eats what rounding has taken from an exact quotient.
        fractions = () if self.whole else (exact, exact + 1e-9, exact + 1e-7)
        tried = (math.floor(exact), math.ceil(exact), *fractions)
        found = next((r for r in tried if self._makes(width, r) == wanted), None)
        return found if found is None or self.whole else float(found)

    def _makes(self, width: int, ratio: float) -> int:
        part = int(width * ratio) * self.times // self.over
        return -(-part // self.multiple) * self.multiple


@dataclass(frozen=True)
class ConfigFile:
    """How the project's own `config.json` says what our configuration says."""

    file: str  # what the project calls it
    identify: Mapping[str, tuple[str, ...]]  # their key -> values that mark this dialect
    fields: Mapping[str, tuple[str, ...]]  # our field -> paths in their file, first found wins
    reads: Mapping[str, tuple[str, ...]]  # the same, for what `writes` says on writing
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
    image: str  # of a text tower: where the file that also tells of it has the image tower's own

    def paths(self, within: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every field that the file says, with all its paths."""
        for field, paths in (*self.fields.items(), *self.reads.items()):
            yield field, tuple(within + path for path in paths)


def read_config_file(section: Mapping[str, Any], reader: SectionReader) -> ConfigFile:
    """Parse `[config_json]`.

    Raises:
        TableError: With the place and what is wrong there.
    """
    return _ConfigSection(section, reader).config_file()


def translations() -> Mapping[str, Mapping[str, Any]]:
    """Lists of words that several tables translate alike, by name."""
    return read_tables("translations")


class _ConfigSection:
    """One method for each kind of subsection."""

    def __init__(self, section: Mapping[str, Any], reader: SectionReader) -> None:
        self.section = section
        self.reader = reader

    def config_file(self) -> ConfigFile:
        for unknown in sorted(set(self.section) - {f.name for f in dataclasses.fields(ConfigFile)}):
            raise self.reader.error(f"config_json.{unknown}", "unknown section")
        fields, values = self.subsection("fields"), self.subsection("values")
        reads = self.subsection("reads")
        for field in {**fields, **reads, **values}:
            self.reader.check_field(f"config_json.fields.{field}", field)
        return ConfigFile(
            file=self.text("file", "config.json"),
            identify=self.tuples("identify", self.subsection("identify")),
            fields=self.tuples("fields", fields),
            reads=self.tuples("reads", reads),
            values={field: self.translation(field, said) for field, said in values.items()},
            defaults=self.facts("defaults", self.subsection("defaults")),
            defaults_of=dict(self.defaults_of()),
            within=self.texts("within", "") or ("",),
            writes=tuple(self.conditionals("writes")),
            arguments=self.text("arguments"),
            must=self.subsection("must"),
            must_not=tuple(self.conditionals("must_not")),
            inert=self.texts("inert", []),
            architectures=self.text("architectures"),
            architecture=self.text("architecture"),
            image=self.text("image"),
        )

    def text(self, name: str, default: str = "") -> str:
        value = self.section.get(name, default)
        if not isinstance(value, str):
            raise self.reader.error(f"config_json.{name}", "expected a text")
        return value

    def texts(self, name: str, default: str | list[str]) -> tuple[str, ...]:
        return self.tuples(name, {"": self.section.get(name, default)})[""]

    def translation(self, field: str, said: Any) -> Mapping[str, Any]:
        """Their words and ours, or the name of a list of them."""
        place = f"config_json.values.{field}"
        if isinstance(said, str):
            if said not in translations():
                raise self.reader.error(place, f"translations.toml has no list {said!r}")
            return translations()[said]
        if not isinstance(said, dict):
            raise self.reader.error(place, "expected a [section] or the name of a list")
        for theirs, ours in said.items():
            if not isinstance(ours, str | int | float | list):
                raise self.reader.error(f'{place}."{theirs}"', "expected a value of ours")
        return said

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
            if value == []:  # false is a constant here
                continue
            try:
                written = _parse_written(value, self.reader.describes)
                yield parse_conditional(key, written, config_words(self.reader.describes))
            except ValueError as error:
                raise self.reader.error(f'config_json.{name}."{key}"', error) from None


def _parse_written(value: Any, of: Kind) -> Any:
    """A constant, `{ word = ... }`, `{ makes = ... }` or `{ list = [] }`."""
    if not isinstance(value, dict):
        return value
    if value == {"list": []}:  # by itself, it takes a line away
        return []
    more: dict[str, Any] = dict(value)
    word, size = more.pop("word", None), more.pop("makes", None)
    if isinstance(word, str) and size is None and not more:
        return Word(word=_check_word(word, of))
    if isinstance(size, str) and word is None and all(map(_of_ratio, more, more.values())):
        if size not in _SIZES:
            raise ValueError(f"a ratio makes one of {', '.join(_SIZES)}, not {size!r}")
        return Ratio(makes=size, **more)
    optional = ", ".join(sorted(_OF_RATIO))
    raise ValueError(f"expected {{ word = ... }} or {{ makes = ... }} with {optional}")


def _of_ratio(name: str, value: object) -> bool:
    if name in ("whole", "alone"):
        return isinstance(value, bool)
    return name in _OF_RATIO and type(value) is int and value > 0


def _check_word(word: str, of: Kind) -> str:
    if word not in config_words(of):
        raise ValueError(f"{word!r} is no field or property of {of.__name__}")
    return word
