"""A dialect: one TOML file of `weights_map/`, parsed into an object nobody edits."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from string import Template
from typing import Any

from vitconvert.config import Config, Kind, ViTConfig
from vitconvert.errors import printable
from vitconvert.file_formats import written_formats
from vitconvert.tables.config_file import ConfigFile, Ratio, read_config_file
from vitconvert.tables.inheritance import place_of
from vitconvert.tables.predicates import (
    ARCHITECTURE,
    Always,
    Conditional,
    Must,
    config_words,
    stated_words,
    told_words,
)
from vitconvert.tables.templates import MOST_STEPS
from vitconvert.tables.tensor_sections import TensorSections, did_you_mean, parsed
from vitconvert.toml_files import TEXT, Sections, builtin_label

_RATIO = "mlp_ratio"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Code by which a project loads its file: Python with `$words` in it.

    A word is a field or property of ViTConfig, or `mlp_ratio`: what makes the MLPs' width of the
    model's. A height and a width that are equal are one number.
    """

    title: str
    code: Template

    def __post_init__(self) -> None:
        if not self.code.is_valid():
            raise ValueError("a $ that is not part of a word is written twice: $$")
        for word in self.code.get_identifiers():
            if word not in config_words() and word != _RATIO:
                raise ValueError(f"${word} is not a property of ViTConfig, and not ${_RATIO}")

    def code_for(self, config: ViTConfig) -> str:
        """The code for one model."""
        written: dict[str, str] = {}
        for word in self.code.get_identifiers():
            if word == _RATIO:
                ratio = Ratio(makes="mlp_dim").of(config)
                exact = f"{config.mlp_dim} / {config.embed_dim}"
                written[word] = exact if ratio is None else repr(ratio)
                continue
            value = getattr(config, word)
            one_number = isinstance(value, tuple) and len(value) == 2 and len(set(value)) == 1
            written[word] = repr(value[0] if one_number else value)
        return self.code.substitute(written)


_SECTIONS = (
    "dialect",
    "words",
    "rows",
    "ignore",
    "holds",
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
    "named_only",
    "historic",
    "install",
    "resampling",
)

# Where what used to have a word of its own is said.
_FORMER: Mapping[str, str] = {
    "rotations": '[holds] says it: "KEY" = "cos" or "sin".',
    "empty": '[constants] says it: "KEY" = "0 : 0 width", with the same axes.',
    "numbers": '[constants] says it: "KEY" = "image_size", our word.',
    "dialect.framework": "the module of vitconvert/programs says it: Program.framework.",
    "sizes": "vitconvert/tables/binding.py says it, of the axis: all dialects have the same.",
    "dialect.allowed_as": "the module of vitconvert/programs says it: Program.adapted.",
    "dialect.beside": "the module of vitconvert/programs says it: Program.beside.",
    "preprocessing.mean_in": '[constants] says it: "KEY" = "mean : AXES".',
    "preprocessing.std_in": '[constants] says it: "KEY" = "std : AXES".',
    "dialect.layouts": "only `--to vit` has layouts: vitconvert/conversion/search.py.",
}

# What stands under a key of [preprocessing]; a text under any other.
_PREPROCESSING: Mapping[str, type | tuple[type, ...]] = {
    "mean": (int, float, list),
    "std": (int, float, list),
    "crop_pct": (int, float),
    "resize_size": (int, list),
    "crop": bool,
    "pad": bool,
    "rescale": bool,
}

# The one default that depends on a size: attention scaled by the model's width, not the head's.
SCALED_BY_WIDTH = "embed_dim ** -0.5"


class Table(TensorSections):
    """A dialect. The sections about tensors are read by `TensorSections`.

    Attributes:
        file: How messages call its file.
        program: The module of vitconvert.programs that knows the rest of the project.
        wrapper: The key under which the project's code looks for the tensors; "" is none.
        named_only: Not recognised by itself, because another table reads the same files.
        historic: Not written unless it is named, because today's release writes another.
        install: What to install to open it; "" says nothing.
        resampling: Who resamples positions of files that read the same by another rule.
    """

    def __init__(self, name: str, file: str, data: Sections, describes: Kind = ViTConfig) -> None:
        super().__init__(name, file, data, describes)
        self.title = self.text("dialect", "title")
        self.ecosystem = self.text("dialect", "ecosystem", default=name)
        self.program = self.text("dialect", "program", default="scripts")
        self.source = self.text("dialect", "source")
        self.tested = self.text("dialect", "tested", default="")
        self.container = self.text("dialect", "container", default="safetensors")
        if self.container not in (known := written_formats()):
            problem = f"{self.container!r} is not a format that is written; there are "
            hint = did_you_mean(self.container, known)
            raise self.error("dialect.container", f"{problem}{', '.join(known)}", hint)
        self.wrapper = self.text("dialect", "wrapper", default="")
        if self.wrapper and not known[self.container].nested:
            nested = " or ".join(f'"{form.name}"' for form in known.values() if form.nested)
            raise self.error("dialect.wrapper", f"only container = {nested} has one")
        self.named_only = self._flag("named_only")
        self.historic = self._flag("historic")
        self.install = self.text("dialect", "install", default="")
        self.resampling = self.text("dialect", "resampling", default="")

    @property
    def builtin(self) -> bool:
        """Whether it is one of `weights_map/`, and not a user's own."""
        return self.file in (builtin_label(self.name), builtin_label(TEXT + self.name))

    @property
    def origin(self) -> str:
        """The source of its statements, as outputs name it.

        They are published, and the place of a user's own table is one of this machine.
        """
        return self.file if self.builtin else printable(PurePath(self.file).name)

    def first_texts(self, config: Config) -> Mapping[str, str]:
        """The words that this model is not written with the first text of."""
        return {first.name: first.value for first in self.first if first.holds_for(config)}

    def check(self) -> None:
        """Parse every section, and look for mistakes that none shows by itself.

        Raises:
            TableError: With the place in the file and what is wrong there.
        """
        for unknown in sorted(set(self.data) - set(_SECTIONS)):
            problem = f"unknown section; there are {', '.join(_SECTIONS)}"
            raise self.error(unknown, problem, _FORMER.get(unknown))
        for unknown in sorted(set(self.section("dialect")) - set(_DIALECT_KEYS)):
            problem = f"unknown key; {', '.join(_DIALECT_KEYS)}"
            raise self.error(f"dialect.{unknown}", problem, _FORMER.get(f"dialect.{unknown}"))
        self.check_uses()
        known = self.row_of.keys() | self.section("ignore").keys()
        for name in itertools.chain(*self.requires):
            if name not in known:
                raise self.error("dialect.requires", f"{name!r} is not a row of this table")
        for kind in (TensorSections, Table):
            for part, value in vars(kind).items():
                if isinstance(value, functools.cached_property):
                    getattr(self, part)

    def _flag(self, name: str) -> bool:
        value = self.section("dialect").get(name, False)
        if not isinstance(value, bool):
            raise self.error(f"dialect.{name}", "expected true or false")
        return value

    @functools.cached_property
    def files(self) -> Mapping[str, str]:
        """Files that are written beside the first, and how the keys in each begin."""
        for place, name, begin in self.entries("files"):
            if not isinstance(begin, str) or not begin or PurePath(name).name != name:
                raise self.error(place, "expected how the keys in this file begin")
        return self.section("files")

    def file_of(self, key: str, first: str) -> str:
        """The file in which a key is written: one of `files`, or the first."""
        return next((file for file, begin in self.files.items() if key.startswith(begin)), first)

    @functools.cached_property
    def usage(self) -> Usage | None:
        """Code by which the project loads its file."""
        if "usage" not in self.data:
            return None
        title, code = self.text("usage", "title"), self.text("usage", "code")
        with self.at("usage.code"):
            return Usage(title=title, code=Template(code.strip()))

    @functools.cached_property
    def preprocessing(self) -> Mapping[str, Any]:
        """The project's way from an image to numbers."""
        section = self.section("preprocessing")
        for key, value in section.items():
            if hint := _FORMER.get(f"preprocessing.{key}"):
                raise self.error(f"preprocessing.{key}", "unknown key", hint)
            if not isinstance(value, _PREPROCESSING.get(key, str)) or (
                isinstance(value, list) and not all(type(n) in (int, float) for n in value)
            ):
                raise self.error(f"preprocessing.{key}", f"{value!r} is of another kind")
        return section

    @parsed
    def text_towers(self) -> Iterator[Conditional]:
        """Names of the tables of text encoders that may stand beside; the first is written.

        Whether they may depends on the vision encoder.
        """
        for place, key, value in self.entries("text"):
            if value is not True:
                raise self.error(place, "expected true or false")
            yield self.conditional(place, key, value, config_words(self.describes))

    @parsed
    def defaults(self) -> Iterator[Conditional]:
        """Fields that the project's code fixes, given other fields or what tensors show."""
        for key, value in self.section("config").items():  # false is a value here
            place = place_of("config", key)
            default = self.conditional(place, key, value, told_words(self.describes))
            if (default.name, value) != ("attention_scale", SCALED_BY_WIDTH):
                default = replace(default, value=self.field(place, default.name, value))
            yield default

    @functools.cached_property
    def shared_depth(self) -> int:
        """The number of blocks that share their tensors, which only the table tells."""
        said = (d.value for d in self.defaults if d.name == "depth" and not d.condition)
        return min(next(said, 0), MOST_STEPS)

    @property
    def ask(self) -> Mapping[str, str]:
        """Fields that only the user can tell, and why."""
        return {asked.name: asked.value for asked in self.asked if not asked.condition}

    @property
    def ask_beyond_name(self) -> tuple[Conditional, ...]:
        """Fields that an architecture's name does not tell under a condition, and why."""
        return tuple(asked for asked in self.asked if _of_a_name(asked))

    @property
    def ask_unnamed(self) -> tuple[Conditional, ...]:
        """Fields that tensors do not tell under a condition on them, and why."""
        return tuple(asked for asked in self.asked if asked.condition and not _of_a_name(asked))

    @parsed
    def asked(self) -> Iterator[Conditional]:
        """Fields that must be stated, each with a reason."""
        for place, key, reason in self.entries("ask"):
            asked = self.conditional(place, key, reason, stated_words(self.describes))
            self.check_field(place, asked.name)
            yield replace(asked, value=self.reason(place, reason))

    @parsed
    def only(self) -> Iterator[Always]:
        """Facts of every model: `word = value`, or a predicate and the reason for it."""
        for key, said in self.section("only").items():
            place = place_of("only", key)
            if key.isidentifier():
                yield Always(self.predicate(place, key), said)
            elif said is not False:
                yield Always(self.predicate(place, key), True, self.reason(place, said))

    @parsed
    def must(self) -> Iterator[Must]:
        """Predicates, each with a reason."""
        for place, key, reason in self.entries("must"):
            yield Must(self.predicate(place, key), self.reason(place, reason))

    @functools.cached_property
    def config_file(self) -> ConfigFile | None:
        """The fields of ours in the project's own `config.json`."""
        return read_config_file(self) if self.section("config_json") else None


def _of_a_name(asked: Conditional) -> bool:
    """Whether the question is about how a model differs from the architecture that is named."""
    words = asked.condition.words if asked.condition else ()
    return any(word.startswith(ARCHITECTURE) for word in words)
