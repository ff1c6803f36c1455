"""The sections of a dialect's file that are about tensors: their names, layouts and sizes."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from vitconvert.config import Kind, ViTConfig, field_names
from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.config.field_values import parse_field
from vitconvert.errors import TableError, UsageError, nearest
from vitconvert.tables.axes import Axes, Dim, parse_axes
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.inheritance import Sections, mistake
from vitconvert.tables.predicates import (
    Conditional,
    Predicate,
    config_words,
    parse_conditional,
    parse_predicate,
)
from vitconvert.tables.rows import Row
from vitconvert.tables.templates import Template, Words, parse_template

_T = TypeVar("_T")


def parsed(section: Callable[[Any], Iterator[_T]]) -> functools.cached_property[tuple[_T, ...]]:
    """The entries of a section, parsed when they are first asked for.

    Most tables are refused, which needs few of their sections.
    """

    @functools.wraps(section)
    def entries(reader: object) -> tuple[_T, ...]:
        return tuple(section(reader))

    return functools.cached_property(entries)


class SectionReader:
    """Finds values of one file, and the words and fields in them."""

    def __init__(self, name: str, file: str, data: Sections, describes: Kind = ViTConfig) -> None:
        self.name = name
        self.file = file
        self.data = data
        self.describes = describes

    def error(self, place: str, problem: object, hint: str | None = None) -> TableError:
        """A mistake in the table."""
        return mistake(self.file, place, problem, hint)

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


@dataclass(frozen=True)
class Constant:
    """The numbers of a tensor, one for each step along its first axis; none: they are counted."""

    numbers: tuple[float, ...]
    axes: Axes
    text: str  # as it stands in the table, for messages
    dtype: str = ""  # in which it is written, if not that of the other tensors

    def along(self, sizes: Mapping[str, int]) -> tuple[float, ...]:
        """The number for each step along the first axis."""
        return self.numbers or tuple(map(float, range(sizes[self.axes.names[0]])))


def parse_constant(text: str, row: str) -> Constant:
    """Parse what a tensor must hold to play no part: `1 0 1 : (qkv head dim)`.

        constant = number+ ":" axes dtype?   one number for each step along the first axis
                 | "0.." ":" axes dtype?     the steps along the first axis, counted from 0
        dtype    = ":" ("int32" | "int64")   in which it is written; else in that of the others

    Args:
        text: Such as `1 0 1 : (qkv head dim)`.
        row: The row of the table that has this text, for messages.

    Raises:
        ValueError: The text is not of this form, or the first axis has another number of steps,
            or nothing tells the size of another.
    """
    numbers, colon, rest = text.partition(":")
    layout, _, dtype = rest.partition(":")
    if not colon:
        raise ValueError(f"expected numbers, a colon and axes, found {text!r}")
    counted = numbers.strip() == "0.."
    stated = () if counted else tuple(map(float, numbers.split()))
    constant = Constant(stated, parse_axes(layout), row, checked_dtype(dtype.strip()))
    axis = next(iter(constant.axes.names), "")
    if not counted and FIXED_AXES.get(axis) != len(constant.numbers):
        known = f"it has {FIXED_AXES[axis]}" if axis in FIXED_AXES else "nothing tells how many"
        raise ValueError(f"{len(constant.numbers)} numbers for the steps of {axis!r}: {known}")
    ours = {name for tensor in canonical_tensors().values() for name in tensor.axes.names}
    for name in constant.axes.names:
        if name not in ours:
            raise ValueError(f"no tensor of ours has an axis {name!r}")
    return constant


def checked_dtype(name: str) -> str:
    """The dtype of what plays no part; "" is that of the other tensors.

    Raises:
        ValueError: It cannot be said.
    """
    if name not in ("", "int32", "int64"):
        raise ValueError(f"{name!r} is neither int32 nor int64, the dtypes that can be said")
    return name


_ROTATIONS = ("cos", "sin")  # of the rotary embedding, for each patch
_EMPTY = Dim(number=0)
# What {p} stands for besides weight and bias where we have it: the statistics of batch norms.
_GATHERED = ("running_mean", "running_var", "num_batches_tracked")


class TensorSections(SectionReader):
    """[words], [rows], [ignore], [holds], [sizes] and [constants]."""

    def __init__(self, name: str, file: str, data: Sections, describes: Kind = ViTConfig) -> None:
        super().__init__(name, file, data, describes)
        self._words: dict[str, Words] = {}  # by what {p} stands for

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

    def words_with(self, kind: str) -> Words:
        """The words, with what {p} stands for."""
        if kind not in self._words:
            words = self.words.items()
            self._words[kind] = {w: tuple(t.replace("{p}", kind) for t in ts) for w, ts in words}
        return self._words[kind]

    @parsed
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

    def template(self, section: str, key: str, kind: str = "{p}") -> Template:
        """The key of an entry, with what {p} stands for."""
        try:
            return parse_template(key.replace("{p}", kind), self.words_with(kind))
        except ValueError as error:
            raise self.error(f'{section}."{key}"', error) from None

    @functools.cached_property
    def row_of(self) -> Mapping[str, Row]:
        """Rows by the name of our tensor, each made when it is first asked for."""
        rows = self.section("rows")
        places = {
            name: (key, kind)
            for key, value in rows.items()
            if value is not False
            for name, kind in _names(key)
            if name == key or name not in rows  # what is said of one tensor counts
        }
        return _Rows(self, places)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        return tuple(self.row_of.values())

    def row(self, name: str, key: str, kind: str) -> Row:
        """A row of our tensor of this name."""
        value, tensors = self.section("rows")[key], canonical_tensors(self.describes)
        if not isinstance(value, str):
            raise self.error(f'rows."{key}"', "expected a text, or false to take a row away")
        if name not in tensors:
            hint = did_you_mean(name, tensors)
            raise self.error(f'rows."{key}"', f"{name!r} is no canonical name", hint)
        spelling, words = value.replace("{p}", kind), self.words_with(kind)
        return Row(tensors[name], spelling, words, self.file, key)

    @functools.cached_property
    def requires(self) -> tuple[tuple[str, ...], ...]:
        """Groups of rows, of each of which a file has one."""
        groups = (either.split("|") for either in self.texts("dialect", "requires"))
        return tuple(tuple(name.strip() for name in group) for group in groups)

    def check_uses(self) -> None:
        """No tensor of theirs, and no step of one, may go into two of ours."""
        users: dict[object, str] = {}
        for row in self.rows:
            for part in itertools.chain(*(a.parts for a in row.alternatives)):
                use = (part.key.segments, part.selection)
                if users.setdefault(use, row.name) != row.name:
                    problem = f"{part.key} is used by {users[use]!r} already"
                    raise self.error(f'rows."{row.name}"', problem)

    @parsed
    def ignore(self) -> Iterator[tuple[Template, str]]:
        """Ignored keys, and why."""
        for key, reason in self.section("ignore").items():
            if reason is False:
                continue
            why = self.reason(f'ignore."{key}"', reason)
            for _, kind in _names(key):
                yield self.template("ignore", key, kind), why

    @parsed
    def holds(self) -> Iterator[tuple[Template, Constant]]:
        """What ignored tensors must be."""
        for key, text in self.section("holds").items():
            if text is False:
                continue
            if not self.section("ignore").get(key):
                raise self.error(f'holds."{key}"', "only an ignored tensor must hold something")
            if text in _ROTATIONS:
                continue
            try:
                constant = parse_constant(str(text), f'{self.file}: "{key}" = "{text}"')
            except ValueError as error:
                raise self.error(f'holds."{key}"', error) from None
            template = self.template("holds", key)
            if set(template.indices) - {"i"}:
                raise self.error(f'holds."{key}"', "the only index is that of the block, {i}")
            yield template, constant

    @parsed
    def rotations(self) -> Iterator[tuple[Template, str]]:
        """Ignored tensors that hold the cosines or sines of the rotary embedding."""
        for key, kind in self.section("holds").items():
            if kind in _ROTATIONS:
                yield self.template("holds", key), kind

    @parsed
    def sizes(self) -> Iterator[tuple[Template, str, int]]:
        """A key, an axis, and what times its length that is."""
        for key, value in self.section("sizes").items():
            match = re.fullmatch(r"([a-z]+)(?: / ([1-9][0-9]*))?", str(value))
            if not match:
                raise self.error(f'sizes."{key}"', 'expected an axis, or one divided: "dim / 4"')
            yield self.template("sizes", key), match[1], int(match[2] or 1)

    @property
    def empty(self) -> tuple[tuple[Template, Axes], ...]:
        """Arrays without elements that the project's class holds."""
        return tuple((key, axes) for key, _, axes, _ in self._held if _EMPTY in axes.dims)

    @property
    def constants(self) -> tuple[tuple[Template, float, Axes, str], ...]:
        """Tensors that the project's class holds, and that play no part."""
        return tuple(constant for constant in self._held if _EMPTY not in constant[2].dims)

    @parsed
    def numbers(self) -> Iterator[tuple[str, str]]:
        """Whole numbers that a model of both towers keeps as tensors: key, and our word for it."""
        for key, text in self.section("constants").items():
            if isinstance(text, str) and text in config_words(self.describes):
                yield key, text

    @parsed
    def _held(self) -> Iterator[tuple[Template, float, Axes, str]]:
        ignored = [template for template, _ in self.ignore]
        for key, text in self.section("constants").items():
            if isinstance(text, str) and text in config_words(self.describes):
                continue
            place = f'constants."{key}"'
            value, axes, dtype = (*str(text).split(" : "), "", "")[:3]
            try:
                template = self.template("constants", key)
                constant = template, float(value), parse_axes(axes), checked_dtype(dtype)
            except ValueError as error:
                problem = f'{error}; expected such as "0 : 1 width", or a word such as "image_size"'
                raise self.error(place, problem) from None
            unread = template.indices or all(i.match(template.write({})) is None for i in ignored)
            if template.indices or (unread and _EMPTY not in constant[2].dims):
                raise self.error(place, "expected one key, which an entry of [ignore] explains")
            yield constant


class _Rows(Mapping[str, Row]):
    def __init__(self, reader: TensorSections, places: Mapping[str, tuple[str, str]]) -> None:
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
