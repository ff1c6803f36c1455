"""A dialect: one TOML file of `weights_map/`, parsed once into an object nobody edits."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.errors import TableError, UsageError
from vitconvert.fields import parse_field
from vitconvert.tables.axes import Axes, Dim, parse_axes
from vitconvert.tables.canonical import CanonicalTensor, canonical_tensors
from vitconvert.tables.config_file import (
    Conditional,
    ConfigFile,
    parse_conditional,
    read_config_file,
)
from vitconvert.tables.constants import Constant, parse_constant
from vitconvert.tables.directory import tables_dir
from vitconvert.tables.expressions import Alternative, parse_expression
from vitconvert.tables.screening import ecosystem_of, likely_dialects
from vitconvert.tables.sections import (
    Sections,
    builtin_label,
    builtin_sections,
    builtin_texts,
    read_sections,
    stem_of,
)
from vitconvert.tables.soundness import check_alternative
from vitconvert.tables.templates import Template, Words, parse_template, skeleton_of
from vitconvert.tables.usage import Usage, parse_usage

# The one default that depends on a size: attention scaled by the model's width, not the head's.
SCALED_BY_WIDTH = "embed_dim ** -0.5"

_SECTIONS = (
    "dialect",
    "words",
    "rows",
    "ignore",
    "sizes",
    "holds",
    "empty",
    "constants",
    "config",
    "ask",
    "config_json",
    "only",
    "must",
    "preprocessing",
    "usage",
)
_DIALECT_KEYS = (
    "title",
    "ecosystem",
    "source",
    "tested",
    "extends",
    "requires",
    "container",
    "wrapper",
    "beside",
    "named_only",
    "allowed_as",
    "install",
)

# What {p} stands for besides weight and bias where we have it: the statistics of batch norms.
_GATHERED = ("running_mean", "running_var", "num_batches_tracked")


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
    wrapper: str  # the key under which the project's code looks for the tensors; "" is none
    beside: Mapping[str, int]  # what it looks for beside them
    named_only: bool  # not recognised by itself, because another table reads the same files
    allowed_as: str  # the step whose permission it takes to write it, if it is not named
    install: str  # what to install to open it; "" says nothing
    requires: tuple[tuple[str, ...], ...]  # of each group, one row must be found
    rows: tuple[Row, ...]
    ignore: tuple[tuple[Template, str], ...]
    sizes: tuple[tuple[Template, str, int], ...]  # a key, an axis, what times its length that is
    holds: tuple[tuple[Template, Constant], ...]  # what ignored tensors must be, and are
    empty: tuple[tuple[Template, Axes], ...]
    constants: tuple[tuple[Template, float, Axes], ...]
    first: tuple[Conditional, ...]  # a word -> the text that some models are written with
    defaults: tuple[Default, ...]
    ask: Mapping[str, str]  # fields that only the user can tell -> why
    config_file: ConfigFile | None
    only: Mapping[str, Any]  # properties of ViTConfig that the project's model always has
    must: Mapping[str, str]  # properties without which its code mistakes the tensors -> why
    preprocessing: Mapping[str, Any]
    usage: Usage | None  # how the project's code loads what is written

    @functools.cached_property
    def row_of(self) -> Mapping[str, Row]:
        """Rows by canonical name."""
        return {row.name: row for row in self.rows}

    def first_texts(self, config: ViTConfig) -> Mapping[str, str]:
        """The words that this model is not written with the first text of."""
        return {first.name: first.value for first in self.first if first.holds(config)}


class _BuiltinTables(Mapping[str, Table]):
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for."""

    def __getitem__(self, name: str) -> Table:
        if name not in builtin_texts():
            raise KeyError(name)
        return _builtin_table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(builtin_texts())

    def __len__(self) -> int:
        return len(builtin_texts())


@functools.cache
def _builtin_table(name: str) -> Table:
    return _TableReader(name, builtin_label(name), builtin_sections(name)).table()


def builtin_tables() -> Mapping[str, Table]:
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for.

    Raises:
        TableError: When a table that does not parse is asked for.
    """
    return _BuiltinTables()


def likely_tables(keys: Iterable[str]) -> list[Table]:
    """The dialects that may explain these keys and find what they require, in order of name.

    The others do not, and were not parsed to know it. Those that are `named_only` are left out.
    """
    skeletons = {skeleton_of(key) for key in keys}
    readers = [
        _TableReader(name, builtin_label(name), builtin_sections(name))
        for name in likely_dialects(skeletons)
    ]
    return [
        _builtin_table(reader.name)
        for reader in readers
        if not reader.named_only() and reader.finds_required(skeletons)
    ]


def find_tables(name: str) -> list[Table]:
    """All dialects of the ecosystem of this name, or the dialect of this name.

    Raises:
        UsageError: There is none; names the nearest.
    """
    ecosystems = {dialect: ecosystem_of(dialect) for dialect in builtin_texts()}
    found = [dialect for dialect, ecosystem in ecosystems.items() if name == ecosystem]
    found = found or [dialect for dialect in ecosystems if name == dialect]
    if found:
        return [_builtin_table(dialect) for dialect in found]
    near = get_close_matches(name, sorted({*ecosystems, *ecosystems.values()}), n=3)
    raise UsageError(
        f"There is no dialect {name!r}.",
        evidence={"dialects": ", ".join(ecosystems)},
        hint=f"Did you mean {' or '.join(near)}?" if near else "`vitconvert list` describes them.",
    )


def read_table(file: Traversable | Path) -> Table:
    """Parse a dialect from a TOML file.

    Raises:
        TableError: With the place in the file and what is wrong there.
    """
    builtin = not isinstance(file, Path) or file.parent == tables_dir()
    label = builtin_label(stem_of(file)) if builtin else str(file)
    return _TableReader(stem_of(file), label, read_sections(file, label)).table()


class _TableReader:
    """Turns the sections of one file into a Table; every message carries its place."""

    def __init__(self, name: str, label: str, data: Sections) -> None:
        self.name = name
        self.label = label
        self.data = data

    def error(self, place: str, problem: object, hint: str | None = None) -> TableError:
        return TableError(
            "The table does not parse.",
            evidence={"file": self.label, "place": place, "problem": problem},
            hint=hint,
        )

    def section(self, name: str) -> Mapping[str, Any]:
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "expected a [section]")
        return value

    def text(self, section: str, key: str, default: str | None = None) -> str:
        value = self.section(section).get(key, default)
        if not isinstance(value, str):
            found = "nothing" if value is None else type(value).__name__
            raise self.error(f"{section}.{key}", f"expected a text, found {found}")
        return value

    def table(self) -> Table:
        for unknown in sorted(set(self.data) - set(_SECTIONS)):
            raise self.error(unknown, f"unknown section; there are {', '.join(_SECTIONS)}")
        for unknown in sorted(set(self.section("dialect")) - set(_DIALECT_KEYS)):
            raise self.error(f"dialect.{unknown}", f"unknown key; {', '.join(_DIALECT_KEYS)}")
        rows = tuple(self.rows())
        self.check_uses(rows)
        self.check_requires(rows)
        return Table(
            name=self.name,
            file=self.label,
            title=self.text("dialect", "title"),
            ecosystem=self.text("dialect", "ecosystem", self.name),
            source=self.text("dialect", "source"),
            tested=self.text("dialect", "tested", ""),
            container=self.text("dialect", "container", "safetensors"),
            wrapper=self.text("dialect", "wrapper", ""),
            beside=self.beside(),
            named_only=self.named_only(),
            allowed_as=self.text("dialect", "allowed_as", ""),
            install=self.text("dialect", "install", ""),
            requires=self.requires(),
            rows=rows,
            ignore=tuple(self.ignore()),
            sizes=tuple(self.sizes()),
            holds=tuple(self.holds()),
            empty=tuple(self.empty()),
            constants=tuple(self.constants()),
            first=tuple(self.first()),
            defaults=tuple(self.defaults()),
            ask=dict(self.reasons("ask", self.check_field)),
            config_file=self.config_file(),
            only=self.only(),
            must=dict(self.reasons("must", self.check_property)),
            preprocessing=self.section("preprocessing"),
            usage=self.usage(),
        )

    def beside(self) -> Mapping[str, int]:
        dialect = self.section("dialect")
        if dialect.get("wrapper") and dialect.get("container") != "torch":
            raise self.error("dialect.wrapper", 'only container = "torch" has one')
        beside = dialect.get("beside", {})
        if not isinstance(beside, dict) or not all(type(n) is int for n in beside.values()):
            raise self.error("dialect.beside", "expected whole numbers: { epoch = 0 }")
        if beside and not dialect.get("wrapper"):
            raise self.error("dialect.beside", "needs a wrapper, beside which they are")
        return beside

    def usage(self) -> Usage | None:
        if "usage" not in self.data:
            return None
        try:
            return parse_usage(self.text("usage", "title"), self.text("usage", "code"))
        except ValueError as error:
            raise self.error("usage.code", error) from None

    def named_only(self) -> bool:
        return bool(self.section("dialect").get("named_only", False))

    @functools.cached_property
    def words(self) -> Words:
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
        words = self.words
        for key, text in self.section("words").items():
            if " " not in key:
                continue
            try:
                first = parse_conditional(key, text)
            except ValueError as error:
                raise self.error(f'words."{key}"', error) from None
            if text not in words.get(first.name, ()):
                raise self.error(f'words."{key}"', f"{text!r} is no text of {first.name!r}")
            yield first

    @functools.cached_property
    def words_of_kind(self) -> Mapping[str, Words]:
        """The words, with what {p} stands for."""
        kinds = ("weight", "bias", *_GATHERED, "{p}")
        return {kind: _with_kind(self.words, kind) for kind in kinds}

    def rows(self, names: Collection[str] | None = None) -> Iterator[Row]:
        """All rows, or those of some of our tensors."""
        words = self.words_of_kind
        for key, value in self.section("rows").items():
            if value is False:
                continue
            if not isinstance(value, str):
                raise self.error(f'rows."{key}"', "expected a text, or false to take a row away")
            for kind in _kinds(key):
                name = key.replace("{p}", kind)
                if names is None or name in names:
                    yield self.row(name, value.replace("{p}", kind), words[kind], key)

    def row(self, name: str, text: str, words: Words, key: str) -> Row:
        tensors = canonical_tensors()
        if name not in tensors:
            near = get_close_matches(name, tensors, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else None
            raise self.error(f'rows."{key}"', f"{name!r} is no canonical name", hint)
        try:
            alternatives = _alternatives(name, text, tuple(words.items()))
        except ValueError as error:
            raise self.error(f'rows."{key}"', error) from None
        return Row(tensors[name], alternatives, f'{self.label}: "{name}" = "{text}"')

    def check_uses(self, rows: Iterable[Row]) -> None:
        """No tensor of theirs, and no step of one, may go into two of ours."""
        users: dict[object, str] = {}
        for row in rows:
            for alternative in row.alternatives:
                for part in alternative.parts:
                    use = (part.key.segments, part.selection)
                    if users.setdefault(use, row.name) != row.name:
                        problem = f"{part.key} is used by {users[use]!r} already"
                        raise self.error(f'rows."{row.name}"', problem)

    def finds_required(self, skeletons: Set[str]) -> bool:
        """Whether keys of these skeletons fill each group of `requires`, as far as names tell."""
        groups = self.requires()
        wanted = {name for group in groups for name in group}
        found = {row.name for row in self.rows(wanted) if _may_fill(row, skeletons)}
        found |= {t.text for t, _ in self.ignore(wanted) if t.may_spell(skeletons)}
        return all(found.intersection(group) for group in groups)

    def requires(self) -> tuple[tuple[str, ...], ...]:
        names = self.section("dialect").get("requires", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.error("dialect.requires", "expected a list of texts")
        return tuple(tuple(n.strip() for n in either.split("|")) for either in names)

    def check_requires(self, rows: Iterable[Row]) -> None:
        known = {row.name for row in rows} | set(self.section("ignore"))
        for name in (name for group in self.requires() for name in group):
            if name not in known:
                raise self.error("dialect.requires", f"{name!r} is no row of this table")

    def ignore(self, keys: Collection[str] | None = None) -> Iterator[tuple[Template, str]]:
        """All ignored keys with the reason, or those of some texts."""
        for key, reason in self.section("ignore").items():
            if reason is False:
                continue
            if not isinstance(reason, str) or not reason.strip():
                raise self.error(f'ignore."{key}"', "a reason is needed, as text")
            for kind in _kinds(key):
                if keys is None or key.replace("{p}", kind) in keys:
                    yield self.template("ignore", key, kind), reason

    def sizes(self) -> Iterator[tuple[Template, str, int]]:
        for key, value in self.section("sizes").items():
            match = re.fullmatch(r"([a-z]+)(?: / ([1-9][0-9]*))?", str(value))
            if not match:
                raise self.error(f'sizes."{key}"', 'expected an axis, or one divided: "dim / 4"')
            yield self.template("sizes", key), match[1], int(match[2] or 1)

    def holds(self) -> Iterator[tuple[Template, Constant]]:
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
        for key, axes in self.section("empty").items():
            try:
                template, layout = self.template("empty", key), parse_axes(axes)
            except (ValueError, TypeError) as error:
                raise self.error(f'empty."{key}"', error) from None
            if template.indices or Dim(number=0) not in layout.dims:
                raise self.error(f'empty."{key}"', "expected one key, and axes of which one is 0")
            yield template, layout

    def constants(self) -> Iterator[tuple[Template, float, Axes]]:
        ignored = [template for template, _ in self.ignore()]
        for key, text in self.section("constants").items():
            place = f'constants."{key}"'
            value, _, axes = str(text).partition(" : ")
            try:
                template = self.template("constants", key)
                constant = template, float(value), parse_axes(axes)
            except ValueError as error:
                raise self.error(place, f'{error}; expected such as "0 : 1 width"') from None
            if template.indices or all(i.match(template.write({})) is None for i in ignored):
                raise self.error(place, "expected one key, which an entry of [ignore] explains")
            yield constant

    def template(self, section: str, key: str, kind: str = "{p}") -> Template:
        try:
            return parse_template(key.replace("{p}", kind), self.words_of_kind[kind])
        except ValueError as error:
            raise self.error(f'{section}."{key}"', error) from None

    def defaults(self) -> Iterator[Default]:
        for key, value in self.section("config").items():
            place = f'config."{key}"'
            match key.split():
                case ["attention_scale"] if value == SCALED_BY_WIDTH:
                    yield Default("attention_scale", value)
                case [field]:
                    yield Default(field, self.field(place, field, value))
                case [field, ("if" | "unless") as how, word]:
                    self.check_field(place, word)
                    parsed = self.field(place, field, value)
                    yield Default(field, parsed, word, how == "unless")
                case _:
                    forms = '"field", "field if word" or "field unless word"'
                    raise self.error(place, f"expected {forms}")

    def reasons(self, section: str, check: Callable[[str, str], None]) -> Iterator[tuple[str, str]]:
        for name, reason in self.section(section).items():
            check(f"{section}.{name}", name)
            if reason is False:
                continue
            if not isinstance(reason, str) or not reason.strip():
                raise self.error(f"{section}.{name}", "a reason is needed, as text")
            yield name, reason

    def config_file(self) -> ConfigFile | None:
        section = self.section("config_json")
        return read_config_file(section, self) if section else None

    def only(self) -> Mapping[str, Any]:
        for name in self.section("only"):
            self.check_property(f"only.{name}", name)
        return self.section("only")

    def check_property(self, place: str, name: str) -> None:
        if not hasattr(ViTConfig, name) and name not in ViTConfig.__dataclass_fields__:
            raise self.error(place, f"{name!r} is no property of ViTConfig")

    def field(self, place: str, field: str, value: object) -> Any:
        self.check_field(place, field)
        try:
            return parse_field(field, value)
        except UsageError as error:
            raise self.error(place, error.fact) from None

    def check_field(self, place: str, field: str) -> None:
        fields = field_names()
        if field not in fields:
            near = get_close_matches(field, fields, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else None
            raise self.error(place, f"{field!r} is no field of ViTConfig", hint)


def _kinds(key: str) -> tuple[str, ...]:
    """What {p} stands for; a key without it means itself."""
    if "{p}" not in key:
        return ("{p}",)
    gathered = (kind for kind in _GATHERED if key.replace("{p}", kind) in canonical_tensors())
    return ("weight", "bias", *gathered)


@functools.cache
def _alternatives(
    name: str, text: str, words: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[Alternative, ...]:
    """A row's right side. Tables that extend another share most of their rows with it."""
    alternatives = parse_expression(text, dict(words))
    for alternative in alternatives:
        check_alternative(canonical_tensors()[name], alternative)
    return alternatives


def _may_fill(row: Row, skeletons: Set[str]) -> bool:
    """Whether keys of these skeletons are all parts of one spelling of the row."""
    return any(
        all(part.key.may_spell(skeletons) for part in alternative.parts)
        for alternative in row.alternatives
    )


def _with_kind(words: Words, kind: str) -> Words:
    return {word: tuple(t.replace("{p}", kind) for t in texts) for word, texts in words.items()}
