"""The sections of a dialect's file, turned into a table."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from vitconvert.file_formats import written_formats
from vitconvert.tables.conditions import Always, Conditional, Must, stated_words, told_words
from vitconvert.tables.config_file import ConfigFile, read_config_file
from vitconvert.tables.predicates import config_words
from vitconvert.tables.section_reader import did_you_mean
from vitconvert.tables.tensor_sections import TensorSections
from vitconvert.tables.usage import Usage, parse_usage

_SECTIONS = (
    "dialect",
    "words",
    "rows",
    "ignore",
    "sizes",
    "holds",
    "rotations",
    "empty",
    "constants",
    "files",
    "config",
    "ask",
    "config_json",
    "only",
    "must",
    "preprocessing",
    "usage",
    "text",
    "numbers",
)
_DIALECT_KEYS = (
    "title",
    "ecosystem",
    "program",
    "source",
    "tested",
    "extends",
    "requires",
    "container",
    "wrapper",
    "beside",
    "named_only",
    "historic",
    "layouts",
    "allowed_as",
    "install",
    "framework",
    "resampling",
)

# What stands under a key of [preprocessing]; a text under any other.
_PREPROCESSING: Mapping[str, type | tuple[type, ...]] = {
    "mean": (int, float, list),
    "std": (int, float, list),
    "crop_pct": (int, float),
    "resize_size": (int, list),
    "crop": bool,
}

# The one default that depends on a size: attention scaled by the model's width, not the head's.
SCALED_BY_WIDTH = "embed_dim ** -0.5"


class TableReader(TensorSections):
    """Parses the sections of one file; those about tensors are `TensorSections`."""

    def check(self) -> None:
        """Look for mistakes that no part shows by itself."""
        for unknown in sorted(set(self.data) - set(_SECTIONS)):
            raise self.error(unknown, f"unknown section; there are {', '.join(_SECTIONS)}")
        for unknown in sorted(set(self.section("dialect")) - set(_DIALECT_KEYS)):
            raise self.error(f"dialect.{unknown}", f"unknown key; {', '.join(_DIALECT_KEYS)}")
        self.check_uses()
        known = self.rows.keys() | self.section("ignore").keys()
        for name in itertools.chain(*self.requires()):
            if name not in known:
                raise self.error("dialect.requires", f"{name!r} is no row of this table")

    def layouts(self) -> tuple[str, ...]:
        """Ecosystems or dialects that are written in its place, the best first."""
        return self.texts("dialect", "layouts")

    def container(self) -> str:
        """The format that outputs are written in."""
        name, known = self.text("dialect", "container", "safetensors"), written_formats()
        if name not in known:
            problem = f"{name!r} is no format that is written; there are {', '.join(known)}"
            raise self.error("dialect.container", problem, did_you_mean(name, known))
        return name

    def beside(self) -> Mapping[str, int]:
        """What the project's code looks for beside the tensors."""
        dialect = self.section("dialect")
        nested = [form.name for form in written_formats().values() if form.nested]
        if dialect.get("wrapper") and self.container() not in nested:
            which = " or ".join(f'"{name}"' for name in nested)
            raise self.error("dialect.wrapper", f"only container = {which} has one")
        beside = dialect.get("beside", {})
        if not isinstance(beside, dict) or not all(type(n) is int for n in beside.values()):
            raise self.error("dialect.beside", "expected whole numbers: { epoch = 0 }")
        if beside and not dialect.get("wrapper"):
            raise self.error("dialect.beside", "needs a wrapper, beside which they are")
        return beside

    def named_only(self) -> bool:
        """Whether the dialect is not recognised by itself."""
        value = self.section("dialect").get("named_only", False)
        if not isinstance(value, bool):
            raise self.error("dialect.named_only", "expected true or false")
        return value

    def files(self) -> Iterator[tuple[str, str]]:
        """A file beside the first, and how the keys in it begin."""
        for name, begin in self.section("files").items():
            if not isinstance(begin, str) or not begin or PurePath(name).name != name:
                raise self.error(f'files."{name}"', "expected how the keys in this file begin")
            yield name, begin

    def usage(self) -> Usage | None:
        """How the project's code loads what is written."""
        if "usage" not in self.data:
            return None
        try:
            return parse_usage(self.text("usage", "title"), self.text("usage", "code"))
        except ValueError as error:
            raise self.error("usage.code", error) from None

    def preprocessing(self) -> Mapping[str, Any]:
        """How the project turns a photograph into numbers."""
        section = self.section("preprocessing")
        for key, value in section.items():
            if not isinstance(value, _PREPROCESSING.get(key, str)) or (
                isinstance(value, list) and not all(type(n) in (int, float) for n in value)
            ):
                raise self.error(f"preprocessing.{key}", f"{value!r} is of another kind")
        return section

    def text_towers(self) -> Iterator[Conditional]:
        """Names of the tables of text towers that may stand beside, the one that is written first.

        Whether they may depends on the image tower.
        """
        for key, value in self.section("text").items():
            tower = self.conditional(f'text."{key}"', key, value, config_words(self.describes))
            if type(value) is not bool:
                raise self.error(f'text."{key}"', "expected true or false")
            if value:
                yield tower

    def numbers(self) -> Iterator[tuple[str, str]]:
        """Whole numbers that a model of both towers keeps as tensors: key, and our word for it."""
        for key, word in self.section("numbers").items():
            if not isinstance(word, str) or word not in config_words(self.describes):
                problem = f"{word!r} is no field or property of {self.describes.__name__}"
                raise self.error(f'numbers."{key}"', problem)
            yield key, word

    def defaults(self) -> Iterator[Conditional]:
        """Fields that the project's code fixes, given other fields or what tensors show."""
        for key, value in self.section("config").items():
            place = f'config."{key}"'
            default = self.conditional(place, key, value, told_words(self.describes))
            if (default.name, value) != ("attention_scale", SCALED_BY_WIDTH):
                default = replace(default, value=self.field(place, default.name, value))
            yield default

    def ask(self) -> Iterator[Conditional]:
        """Fields that must be stated, each with a reason."""
        for key, reason in self.section("ask").items():
            place = _place("ask", key)
            asked = self.conditional(place, key, reason, stated_words(self.describes))
            self.check_field(place, asked.name)
            if reason is not False:
                yield replace(asked, value=self.reason(place, reason))

    def only(self) -> Iterator[Always]:
        """What is so of every model: `word = value`, or a predicate and the reason for it."""
        for key, said in self.section("only").items():
            place = _place("only", key)
            if key.isidentifier():
                yield Always(self.predicate(place, key), said)
            elif said is not False:
                yield Always(self.predicate(place, key), True, self.reason(place, said))

    def must(self) -> Iterator[Must]:
        """Predicates, each with a reason."""
        for key, reason in self.section("must").items():
            place = _place("must", key)
            if reason is not False:
                yield Must(self.predicate(place, key), self.reason(place, reason))

    def config_file(self) -> ConfigFile | None:
        """How the project's own `config.json` says what ours says."""
        section = self.section("config_json")
        return read_config_file(section, self) if section else None


def _place(section: str, key: str) -> str:
    return f"{section}.{key}" if key.isidentifier() else f'{section}."{key}"'
