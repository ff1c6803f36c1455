"""A project's own `config.json`: which of its keys say what our configuration says."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config import Config, Kind
from vitconvert.tables.inheritance import place_of
from vitconvert.tables.predicates import Conditional, config_words, parse_conditional
from vitconvert.tables.tensor_sections import SectionReader
from vitconvert.toml_files import read_tables

ALL_BUT = "all but "  # before a path: the blocks that are not listed there
AND = " and "  # between two paths: a pair has one number of each
PIXELS = "pixels of "  # before a path: as many patches, of whole squares that are merged
TOP = "/"  # begins a path of the whole file, whatever section the others are in
_WORDS = (
    *("file", "identify", "fields", "values", "defaults", "within", "writes", "inert"),
    *("must", "must_not", "architectures", "image"),
)
# Where what used to have a word of its own is said.
_FORMER = {
    "reads": "[config_json.fields] says it; what [config_json.writes] has too is only read.",
    "defaults_of": "[config_json.defaults.NAME] says it.",
    "architecture": "[config_json.fields] says it.",
    "arguments": "[config_json.inert] says it: PATH = [...].",
}
_FACTORS, _FLAGS = ("times", "over", "multiple"), ("whole", "alone")
_SIZES = ("mlp_dim", "pool_mlp_dim", "representation_size", "num_classes")  # that a ratio may make

Texts = tuple[str, ...]


def look_up(config: Mapping[str, object], path: str) -> Any:
    """The value at a dotted path, or None; of a list, `[:2]` takes the first two."""
    value: Any = config
    for step in path.split("."):
        key, _, most = step.removesuffix("]").partition("[:")
        value = value.get(key) if isinstance(value, Mapping) else None
        if most:
            value = value[: int(most)] if isinstance(value, list) else None
    return value


def placed(within: str, path: str) -> str:
    """A path of `[config_json.fields]` in the whole file, of which a section is about the model."""
    return path.removeprefix(TOP) if path.startswith(TOP) else within + path


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
        wanted: int = getattr(config, self.makes)
        width = 1 if self.alone else config.embed_dim

        def makes(ratio: float) -> bool:
            part = int(width * ratio) * self.times // self.over
            return -(-part // self.multiple) * self.multiple == wanted

        exact = wanted * self.over / self.times / width
        # Truncation eats what rounding has taken from an exact quotient.
        fractions = () if self.whole else (exact, exact + 1e-9, exact + 1e-7)
        found = next(filter(makes, (math.floor(exact), math.ceil(exact), *fractions)), None)
        return found if found is None or self.whole else float(found)


@dataclass(frozen=True)
class ConfigFile:
    """The fields of our configuration in a project's own `config.json`."""

    file: str  # what the project calls it
    identify: Mapping[str, Texts]  # their key -> values that mark this dialect
    architecture: str  # path of the name of an architecture in architectures.toml; "" if none
    fields: Mapping[str, Texts]  # our field -> paths in their file, first found wins
    values: Mapping[str, Mapping[str, object]]  # our field -> their value -> ours
    defaults: Mapping[str, object]  # our field -> what the project assumes if the file is silent
    defaults_of: Mapping[str, Mapping[str, object]]  # the same for one identifying value
    within: Texts  # where paths of fields begin: the first there is, the last written
    writes: tuple[Conditional, ...]  # path -> what a file has besides: a value, Word or Ratio
    arguments: str  # path of the constructor's arguments, all of which must be understood
    inert: Texts  # of these, those that change nothing in inference, or that tensors show
    must: Mapping[str, object]  # path -> the only value of which the table is right
    must_not: tuple[Conditional, ...]  # path -> a value of which it is wrong
    architectures: str  # whose architectures.toml to look in, if not the library's
    image: str  # of a text encoder: where its file has the section of the vision encoder

    @property
    def written_fields(self) -> Iterator[tuple[str, str]]:
        """Fields that are written as they are read, each with its path.

        A path that `writes` fills is only read, and so are the blocks that a list leaves out.
        """
        filled = {entry.name for entry in self.writes}
        for field, paths in self.fields.items():
            path = placed(self.within[-1], paths[0]) if paths else ""
            if path and path not in filled and not paths[0].startswith(ALL_BUT):
                yield field, path


def read_config_file(reader: SectionReader) -> ConfigFile:
    """Parse `[config_json]`.

    Raises:
        TableError: With the place and what is wrong there.
    """
    here = "config_json"
    section = reader.section(here)
    for unknown in sorted(section.keys() - set(_WORDS)):
        raise reader.error(f"{here}.{unknown}", "unknown section", _FORMER.get(unknown))

    def texts_of(name: str) -> dict[str, Texts]:
        return {k: reader.texts(here, name, k, default=[]) for k in reader.section(here, name)}

    def facts(*path: str) -> Mapping[str, object]:
        stated = reader.section(here, *path).items()
        several = ((k, v, ".".join((here, *path, k))) for k, v in stated if not isinstance(v, dict))
        return {field: reader.field(place, field, value) for field, value, place in several}

    fields, inert = texts_of("fields"), texts_of("inert")
    architecture = fields.pop("architecture", ())
    values = reader.section(here, "values")
    for field in {**fields, **values}:
        reader.check_field(f"{here}.fields.{field}", field)
    # `[config_json.defaults.NAME]` stands inside `[config_json.defaults]`.
    by_mark = (k for k, v in reader.section(here, "defaults").items() if isinstance(v, dict))
    return ConfigFile(
        file=reader.text(here, "file", default="config.json"),
        identify=texts_of("identify"),
        architecture="".join(architecture[:1]),
        fields=fields,
        values={field: _translation(reader, field, said) for field, said in values.items()},
        defaults=facts("defaults"),
        defaults_of={mark: facts("defaults", mark) for mark in by_mark},
        within=reader.texts(here, "within", default="") or ("",),
        writes=tuple(_conditionals(reader, "writes")),
        arguments=next(iter(inert), ""),
        inert=tuple(argument for several in inert.values() for argument in several),
        must=reader.section(here, "must"),
        must_not=tuple(_conditionals(reader, "must_not")),
        architectures=reader.text(here, "architectures", default=""),
        image=reader.text(here, "image", default=""),
    )


def translations() -> Mapping[str, Mapping[str, object]]:
    """Lists of words that several tables translate alike, by name."""
    return read_tables("translations")


def _translation(reader: SectionReader, field: str, said: object) -> Mapping[str, object]:
    """Their words and ours, or the name of a list of them."""
    place = f"config_json.values.{field}"
    if isinstance(said, str):
        if said not in translations():
            raise reader.error(place, f"translations.toml has no list {said!r}")
        return translations()[said]
    if not isinstance(said, dict):
        raise reader.error(place, "expected a [section] or the name of a list")
    for theirs, ours in said.items():
        if not isinstance(ours, str | int | float | list):
            raise reader.error(place_of(place, theirs), "expected a value of ours")
    return said


def _conditionals(reader: SectionReader, name: str) -> Iterator[Conditional]:
    words = config_words(reader.describes)
    for key, value in reader.section("config_json", name).items():
        if value != []:  # an empty list takes a line away: false is a constant here
            with reader.at(place_of(f"config_json.{name}", key)):
                yield parse_conditional(key, _parse_written(value, reader.describes), words)


def _parse_written(value: object, of: Kind) -> object:
    """A constant, `{ word = ... }`, `{ makes = ... }` or `{ list = [] }`."""
    if not isinstance(value, dict):
        return value
    match value:
        case {"list": [], **rest} if not rest:  # a list by itself takes a line away
            return []
        case {"word": str(word), **rest} if not rest:
            if word not in config_words(of):
                raise ValueError(f"{word!r} is not a field or property of {of.__name__}")
            return Word(word=word)
        case {"makes": str(size), **rest} if all(map(_is_of_ratio, rest, rest.values())):
            if size not in _SIZES:
                raise ValueError(f"a ratio makes one of {', '.join(_SIZES)}, not {size!r}")
            return Ratio(makes=size, **rest)
    optional = ", ".join(sorted(_FACTORS + _FLAGS))
    raise ValueError(f"expected {{ word = ... }} or {{ makes = ... }} with {optional}")


def _is_of_ratio(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return name in _FLAGS
    return name in _FACTORS and isinstance(value, int) and value > 0
