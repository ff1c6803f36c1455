"""The sections of a dialect's file, turned into a table."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from vitconvert.config import Kind, ViTConfig, field_names
from vitconvert.config.field_values import parse_field
from vitconvert.errors import TableError, UsageError, nearest
from vitconvert.formats import written_formats
from vitconvert.tables.axes import Axes, Dim, parse_axes
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.conditions import (
    Always,
    Conditional,
    Must,
    parse_conditional,
    stated_words,
    told_words,
)
from vitconvert.tables.config_file import ConfigFile, read_config_file
from vitconvert.tables.constants import Constant, checked_dtype, parse_constant
from vitconvert.tables.inheritance import Sections, mistake
from vitconvert.tables.predicates import Predicate, config_words, parse_predicate
from vitconvert.tables.rows import Row
from vitconvert.tables.templates import Template, Words, parse_template
from vitconvert.tables.usage import Usage, parse_usage

_SECTIONS = (
    "dialect",
    "words",
    "rows",
    "ignore",
    "sizes",
    "holds",
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
)

# What stands under a key of [preprocessing]; a text under any other.
_PREPROCESSING: Mapping[str, type | tuple[type, ...]] = {
    "mean": (int, float, list),
    "std": (int, float, list),
    "crop_pct": (int, float),
    "resize_size": (int, list),
    "crop": bool,
}

# What {p} stands for besides weight and bias where we have it: the statistics of batch norms.
_GATHERED = ("running_mean", "running_var", "num_batches_tracked")


# The one default that depends on a size: attention scaled by the model's width, not the head's.
SCALED_BY_WIDTH = "embed_dim ** -0.5"


class TableReader:
    """Parses the sections of one file; every message carries its place."""

    def __init__(self, name: str, label: str, data: Sections, describes: Kind = ViTConfig) -> None:
        self.name = name
        self.label = label
        self.data = data
        self.describes = describes
        self._words: dict[str, Words] = {}  # by what {p} stands for

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

    def check_uses(self) -> None:
        """No tensor of theirs, and no step of one, may go into two of ours."""
        users: dict[object, str] = {}
        for row in self.rows.values():
            for part in itertools.chain(*(a.parts for a in row.alternatives)):
                use = (part.key.segments, part.selection)
                if users.setdefault(use, row.name) != row.name:
                    problem = f"{part.key} is used by {users[use]!r} already"
                    raise self.error(f'rows."{row.name}"', problem)

    @functools.cached_property
    def words(self) -> Words:
        """What the words stand for."""
        words = {}
        for word, texts in self.section("words").items():
            if " " in word:
                continue
            several = [texts] if isinstance(texts, str) else texts
            if len(word) < 2:
                raise self.error(f"words.{word}", "a word has two letters or more; one is an index")
            if not isinstance(several, list) or not all(isinstance(t, str) for t in several or [0]):
                raise self.error(f"words.{word}", "expected a text or a list of texts")
            words[word] = tuple(several)
        return words

    def first(self) -> Iterator[Conditional]:
        """Words, with the text that some models are written with."""
        words = self.words
        for key, text in self.section("words").items():
            if " " not in key or text is False:
                continue
            first = self.conditional(f'words."{key}"', key, text, config_words(self.describes))
            if text not in words.get(first.name, ()):
                raise self.error(f'words."{key}"', f"{text!r} is no text of {first.name!r}")
            yield first

    def words_with(self, kind: str) -> Words:
        """The words, with what {p} stands for."""
        if kind not in self._words:
            words = self.words.items()
            self._words[kind] = {w: tuple(t.replace("{p}", kind) for t in ts) for w, ts in words}
        return self._words[kind]

    @functools.cached_property
    def rows(self) -> Mapping[str, Row]:
        """Rows by the name of our tensor, each made when it is first asked for."""
        rows = self.section("rows").items()
        return _Rows(
            self,
            {name: (key, kind) for key, v in rows if v is not False for name, kind in _names(key)},
        )

    def row(self, name: str, key: str, kind: str) -> Row:
        """A row of our tensor of this name."""
        value, tensors = self.section("rows")[key], canonical_tensors(self.describes)
        if not isinstance(value, str):
            raise self.error(f'rows."{key}"', "expected a text, or false to take a row away")
        if name not in tensors:
            near = nearest(name, tensors)
            hint = f"did you mean {near[0]!r}?" if near else None
            raise self.error(f'rows."{key}"', f"{name!r} is no canonical name", hint)
        spelling, words = value.replace("{p}", kind), self.words_with(kind)
        return Row(tensors[name], spelling, words, self.label, key)

    def requires(self) -> tuple[tuple[str, ...], ...]:
        """Groups of rows, of each of which a file has one."""
        names = self.section("dialect").get("requires", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.error("dialect.requires", "expected a list of texts")
        return tuple(tuple(n.strip() for n in either.split("|")) for either in names)

    def layouts(self) -> tuple[str, ...]:
        """Ecosystems or dialects that are written in its place, the best first."""
        names = self.section("dialect").get("layouts", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.error("dialect.layouts", "expected a list of texts")
        return tuple(names)

    def ignore(self) -> Iterator[tuple[Template, str]]:
        """Ignored keys, and why."""
        for key, reason in self.section("ignore").items():
            if reason is False:
                continue
            why = self.reason(f'ignore."{key}"', reason)
            for _, kind in _names(key):
                yield self.template("ignore", key, kind), why

    def container(self) -> str:
        """The format that outputs are written in."""
        name, known = self.text("dialect", "container", "safetensors"), written_formats()
        if name not in known:
            near = nearest(name, known)
            problem = f"{name!r} is no format that is written; there are {', '.join(known)}"
            hint = f"did you mean {near[0]!r}?" if near else None
            raise self.error("dialect.container", problem, hint)
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

    def preprocessing(self) -> Mapping[str, Any]:
        """How the project turns a photograph into numbers."""
        section = self.section("preprocessing")
        for key, value in section.items():
            if not isinstance(value, _PREPROCESSING.get(key, str)) or (
                isinstance(value, list) and not all(type(n) in (int, float) for n in value)
            ):
                raise self.error(f"preprocessing.{key}", f"{value!r} is of another kind")
        return section

    def usage(self) -> Usage | None:
        """How the project's code loads what is written."""
        if "usage" not in self.data:
            return None
        try:
            return parse_usage(self.text("usage", "title"), self.text("usage", "code"))
        except ValueError as error:
            raise self.error("usage.code", error) from None

    def sizes(self) -> Iterator[tuple[Template, str, int]]:
        """A key, an axis, and what times its length that is."""
        for key, value in self.section("sizes").items():
            match = re.fullmatch(r"([a-z]+)(?: / ([1-9][0-9]*))?", str(value))
            if not match:
                raise self.error(f'sizes."{key}"', 'expected an axis, or one divided: "dim / 4"')
            yield self.template("sizes", key), match[1], int(match[2] or 1)

    def holds(self) -> Iterator[tuple[Template, Constant]]:
        """What ignored tensors must be."""
        for key, text in self.section("holds").items():
            if text is False:
                continue
            if not self.section("ignore").get(key):
                raise self.error(f'holds."{key}"', "only an ignored tensor must hold something")
            try:
                constant = parse_constant(str(text), f'{self.label}: "{key}" = "{text}"')
            except ValueError as error:
                raise self.error(f'holds."{key}"', error) from None
            template = self.template("holds", key)
            if set(template.indices) - {"i"}:
                raise self.error(f'holds."{key}"', "the only index is that of the block, {i}")
            yield template, constant

    def empty(self) -> Iterator[tuple[Template, Axes]]:
        """Arrays without elements."""
        for key, axes in self.section("empty").items():
            try:
                template, layout = self.template("empty", key), parse_axes(str(axes))
            except ValueError as error:
                raise self.error(f'empty."{key}"', error) from None
            if template.indices or Dim(number=0) not in layout.dims:
                raise self.error(f'empty."{key}"', "expected one key, and axes of which one is 0")
            yield template, layout

    def constants(self) -> Iterator[tuple[Template, float, Axes, str]]:
        """Tensors that are written and play no part."""
        ignored = [template for template, _ in self.ignore()]
        for key, text in self.section("constants").items():
            place = f'constants."{key}"'
            value, axes, dtype = (*str(text).split(" : "), "", "")[:3]
            try:
                template = self.template("constants", key)
                constant = template, float(value), parse_axes(axes), checked_dtype(dtype)
            except ValueError as error:
                raise self.error(place, f'{error}; expected such as "0 : 1 width"') from None
            if template.indices or all(i.match(template.write({})) is None for i in ignored):
                raise self.error(place, "expected one key, which an entry of [ignore] explains")
            yield constant

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
            if word not in config_words(self.describes):
                problem = f"{word!r} is no field or property of {self.describes.__name__}"
                raise self.error(f'numbers."{key}"', problem)
            yield key, word

    def files(self) -> Iterator[tuple[str, str]]:
        """A file beside the first, and how the keys in it begin."""
        for name, begin in self.section("files").items():
            if not isinstance(begin, str) or not begin or PurePath(name).name != name:
                raise self.error(f'files."{name}"', "expected how the keys in this file begin")
            yield name, begin

    def template(self, section: str, key: str, kind: str = "{p}") -> Template:
        """The key of an entry, with what {p} stands for."""
        try:
            return parse_template(key.replace("{p}", kind), self.words_with(kind))
        except ValueError as error:
            raise self.error(f'{section}."{key}"', error) from None

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
            place = f"ask.{key}" if key.isidentifier() else f'ask."{key}"'
            asked = self.conditional(place, key, reason, stated_words(self.describes))
            self.check_field(place, asked.name)
            if reason is not False:
                yield replace(asked, value=self.reason(place, reason))

    def conditional(self, place: str, key: str, value: object, words: Set[str]) -> Conditional:
        """A value that may depend on a predicate of these words."""
        try:
            return parse_conditional(key, value, words)
        except ValueError as error:
            raise self.error(place, error) from None

    def config_file(self) -> ConfigFile | None:
        """How the project's own `config.json` says what ours says."""
        section = self.section("config_json")
        return read_config_file(section, self) if section else None

    def only(self) -> Iterator[Always]:
        """What is so of every model: `word = value`, or a predicate and the reason for it."""
        for key, said in self.section("only").items():
            place = f"only.{key}" if key.isidentifier() else f'only."{key}"'
            if key.isidentifier():
                yield Always(self.predicate(place, key), said)
            elif said is not False:
                yield Always(self.predicate(place, key), True, self.reason(place, said))

    def must(self) -> Iterator[Must]:
        """Predicates, each with a reason."""
        for key, reason in self.section("must").items():
            place = f"must.{key}" if key.isidentifier() else f'must."{key}"'
            if reason is not False:
                yield Must(self.predicate(place, key), self.reason(place, reason))

    def predicate(self, place: str, text: str) -> Predicate:
        """A condition on a model."""
        try:
            return parse_predicate(text, config_words(self.describes))
        except ValueError as error:
            raise self.error(place, error) from None

    def reason(self, place: str, reason: object) -> str:
        """Why something is so."""
        if not isinstance(reason, str) or not reason.strip():
            raise self.error(place, "a reason is needed, as text")
        return reason

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
            near = nearest(field, fields)
            hint = f"did you mean {near[0]!r}?" if near else None
            raise self.error(place, f"{field!r} is no field of {self.describes.__name__}", hint)


class _Rows(Mapping[str, Row]):
    def __init__(self, reader: TableReader, places: Mapping[str, tuple[str, str]]) -> None:
        self._reader = reader
        self._places = places  # name -> key in the table, what {p} is there
        self._rows: dict[str, Row] = {}

    def __getitem__(self, name: str) -> Row:
        if name not in self._rows:
            self._rows[name] = self._reader.row(name, *self._places[name])
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@functools.cache
def _names(key: str) -> tuple[tuple[str, str], ...]:
    """What a key with {p} stands for, each with the kind; a key without it means itself."""
    if "{p}" not in key:
        return ((key, "{p}"),)
    names = ((key.replace("{p}", kind), kind) for kind in ("weight", "bias", *_GATHERED))
    return tuple((n, k) for n, k in names if k not in _GATHERED or n in canonical_tensors())
