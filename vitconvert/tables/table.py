"""A dialect: one TOML file of `weights_map/`, parsed into an object nobody edits."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from vitconvert.config import Config, Kind
from vitconvert.errors import printable
from vitconvert.tables.axes import Axes
from vitconvert.tables.conditions import Always, Conditional, Must
from vitconvert.tables.config_file import ConfigFile
from vitconvert.tables.constants import Constant
from vitconvert.tables.inheritance import TEXT, builtin_label
from vitconvert.tables.predicates import ARCHITECTURE
from vitconvert.tables.rows import Row
from vitconvert.tables.table_reader import TableReader
from vitconvert.tables.templates import Template
from vitconvert.tables.usage import Usage


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """A dialect.

    Each part is parsed when it is first needed. Most tables are refused, which needs few parts.
    """

    name: str
    file: str
    title: str
    ecosystem: str
    program: str  # the module of vitconvert.programs that knows the rest of the project
    source: str
    tested: str
    container: str
    wrapper: str  # the key under which the project's code looks for the tensors; "" is none
    beside: Mapping[str, int]  # what it looks for beside them
    named_only: bool  # not recognised by itself, because another table reads the same files
    historic: bool  # not written unless it is named, because today's release writes another
    layouts: tuple[str, ...]  # what is written in its place: the first that fits
    allowed_as: str  # the step whose permission it takes to write it, if it is not named
    install: str  # what to install to open it; "" says nothing
    resampling: str  # who resamples positions of files that read the same by another rule
    framework: str  # whose tensors its safetensors say they are
    requires: tuple[tuple[str, ...], ...]  # of each group, one row must be found
    reader: TableReader = field(repr=False)

    @property
    def builtin(self) -> bool:
        """Whether it is one of `weights_map/`, and not a user's own."""
        return self.file in (builtin_label(self.name), builtin_label(TEXT + self.name))

    @property
    def origin(self) -> str:
        """Where what it states comes from, as outputs say it.

        They are published, and the place of a user's own table is one of this machine.
        """
        return self.file if self.builtin else printable(PurePath(self.file).name)

    @property
    def describes(self) -> Kind:
        """What its words are fields and properties of: ViTConfig, or a text tower's."""
        return self.reader.describes

    @property
    def row_of(self) -> Mapping[str, Row]:
        """Rows by canonical name."""
        return self.reader.rows

    @functools.cached_property
    def ignore(self) -> tuple[tuple[Template, str], ...]:
        """Keys that play no part, and why."""
        return tuple(self.reader.ignore())

    @functools.cached_property
    def sizes(self) -> tuple[tuple[Template, str, int], ...]:
        """A key, an axis, and what times its length that is."""
        return tuple(self.reader.sizes())

    @functools.cached_property
    def holds(self) -> tuple[tuple[Template, Constant], ...]:
        """What ignored tensors must be, and are."""
        return tuple(self.reader.holds())

    @functools.cached_property
    def rotations(self) -> tuple[tuple[Template, str], ...]:
        """Ignored tensors that hold the cosines or sines of the rotary embedding: key, "cos"."""
        return tuple(self.reader.rotations())

    @functools.cached_property
    def empty(self) -> tuple[tuple[Template, Axes], ...]:
        """Arrays without elements that the project's class holds."""
        return tuple(self.reader.empty())

    @functools.cached_property
    def constants(self) -> tuple[tuple[Template, float, Axes, str], ...]:
        """Tensors that the project's class holds, and that play no part."""
        return tuple(self.reader.constants())

    @functools.cached_property
    def files(self) -> Mapping[str, str]:
        """Files that are written beside the first, and how the keys in each begin."""
        return dict(self.reader.files())

    @functools.cached_property
    def first(self) -> tuple[Conditional, ...]:
        """Words, with the text that some models are written with."""
        return tuple(self.reader.first())

    @functools.cached_property
    def defaults(self) -> tuple[Conditional, ...]:
        """What the project's code fixes."""
        return tuple(self.reader.defaults())

    @functools.cached_property
    def ask(self) -> Mapping[str, str]:
        """Fields that only the user can tell, and why."""
        return {asked.name: asked.value for asked in self.reader.ask() if not asked.condition}

    @functools.cached_property
    def ask_beyond_name(self) -> tuple[Conditional, ...]:
        """Fields that an architecture's name does not tell under a condition, and why."""
        return tuple(asked for asked in self.reader.ask() if _of_a_name(asked))

    @functools.cached_property
    def ask_unnamed(self) -> tuple[Conditional, ...]:
        """Fields that tensors do not tell under a condition on them, and why."""
        conditional = (asked for asked in self.reader.ask() if asked.condition)
        return tuple(asked for asked in conditional if not _of_a_name(asked))

    @functools.cached_property
    def config_file(self) -> ConfigFile | None:
        """How the project's own configuration says what ours says."""
        return self.reader.config_file()

    @functools.cached_property
    def only(self) -> tuple[Always, ...]:
        """What is so of every model that the project's class makes."""
        return tuple(self.reader.only())

    @functools.cached_property
    def must(self) -> tuple[Must, ...]:
        """Conditions without which the project's code mistakes the tensors, and why."""
        return tuple(self.reader.must())

    @functools.cached_property
    def preprocessing(self) -> Mapping[str, Any]:
        """How the project turns a photograph into numbers."""
        return self.reader.preprocessing()

    @functools.cached_property
    def text_towers(self) -> tuple[Conditional, ...]:
        """Names of the tables of text towers that may stand beside, where they may."""
        return tuple(self.reader.text_towers())

    @functools.cached_property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """Whole numbers that a model of both towers keeps as tensors: key, and our word for it."""
        return tuple(self.reader.numbers())

    @functools.cached_property
    def usage(self) -> Usage | None:
        """How the project's code loads what is written."""
        return self.reader.usage()

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        return tuple(self.row_of.values())

    def first_texts(self, config: Config) -> Mapping[str, str]:
        """The words that this model is not written with the first text of."""
        return {first.name: first.value for first in self.first if first.holds_for(config)}

    def check(self) -> None:
        """Parse every part.

        Raises:
            TableError: With the place in the file and what is wrong there.
        """
        self.reader.check()
        for part in (n for n, v in vars(Table).items() if isinstance(v, functools.cached_property)):
            getattr(self, part)


def _of_a_name(asked: Conditional) -> bool:
    """Whether the question is about how a model differs from the architecture that is named."""
    words = asked.condition.words if asked.condition else ()
    return any(word.startswith(ARCHITECTURE) for word in words)


def table_of(reader: TableReader) -> Table:
    """The dialect of a file.

    Raises:
        TableError: It does not say which dialect that is.
    """
    return Table(
        name=reader.name,
        file=reader.label,
        title=reader.text("dialect", "title"),
        ecosystem=reader.text("dialect", "ecosystem", reader.name),
        program=reader.text("dialect", "program", "scripts"),
        source=reader.text("dialect", "source"),
        tested=reader.text("dialect", "tested", ""),
        container=reader.container(),
        wrapper=reader.text("dialect", "wrapper", ""),
        beside=reader.beside(),
        named_only=reader.named_only(),
        historic=bool(reader.section("dialect").get("historic", False)),
        layouts=reader.layouts(),
        allowed_as=reader.text("dialect", "allowed_as", ""),
        install=reader.text("dialect", "install", ""),
        resampling=reader.text("dialect", "resampling", ""),
        framework=reader.text("dialect", "framework", "pt"),
        requires=reader.requires(),
        reader=reader,
    )
