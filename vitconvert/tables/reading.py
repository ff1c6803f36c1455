"""The sections of a dialect's file, turned into a table."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from difflib import get_close_matches
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.errors import TableError, UsageError
from vitconvert.fields import parse_field
from vitconvert.tables.axes import Axes, Dim, parse_axes
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.config_file import (
    Conditional,
    ConfigFile,
    parse_conditional,
    read_config_file,
)
from vitconvert.tables.constants import Constant, parse_constant
from vitconvert.tables.expressions import Alternative, parse_expression
from vitconvert.tables.sections import Sections
from vitconvert.tables.soundness import check_alternative
from vitconvert.tables.table import SCALED_BY_WIDTH, Default, Row, Table
from vitconvert.tables.templates import Template, Words, parse_template

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
)
_DIALECT_KEYS = (
    "title",
    "ecosystem",
    "source",
    "tested",
    "extends",
    "requires",
    "container",
    "named_only",
    "allowed_as",
    "install",
)

# What {p} stands for besides weight and bias where we have it: the statistics of batch norms.
_GATHERED = ("running_mean", "running_var", "num_batches_tracked")


def parse_table(name: str, label: str, sections: Sections) -> Table:
    """Parse the sections of one file.

    Args:
        name: Of the dialect.
        label: How messages call the file.
        sections: Of the file, on top of those of the table that it extends.

    Raises:
        TableError: With the place in the file and what is wrong there.
    """
    return _TableReader(name, label, sections).table()


def may_recognise(name: str, label: str, sections: Sections, skeletons: Set[str]) -> bool:
    """Whether keys of these skeletons may be of the dialect, told without parsing all of it."""
    reader = _TableReader(name, label, sections)
    return not reader.named_only() and reader.finds_required(skeletons)


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
        )

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
            yield self.template("holds", key), constant

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
