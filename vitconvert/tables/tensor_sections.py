"""The sections of a dialect's file that are about tensors: their names, layouts and sizes."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from vitconvert.config import Kind, ViTConfig, field_names
from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.config.field_values import parse_field
from vitconvert.errors import TableError, UsageError, nearest
from vitconvert.tables.axes import Axes, Dim, parse_axes
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.inheritance import mistake, place_of
from vitconvert.tables.predicates import (
    Conditional,
    Predicate,
    config_words,
    parse_conditional,
    parse_predicate,
)
from vitconvert.tables.rows import Row
from vitconvert.tables.templates import Template, Words, parse_template
from vitconvert.toml_files import Sections

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

    @contextmanager
    def at(self, place: str, expected: str = "") -> Iterator[None]:
        """Names the place of what is parsed, if it does not parse, and what was expected there."""
        try:
            yield
        except UsageError as error:
            raise self.error(place, error.fact) from None
        except ValueError as error:
            raise self.error(place, f"{error}{expected}") from None

    def section(self, *path: str) -> Mapping[str, Any]:
        """A section, or one inside another; empty if there is none."""
        section: Mapping[str, Any] = self.data
        for depth, name in enumerate(path, start=1):
            section = section.get(name, {})
            if not isinstance(section, dict):
                raise self.error(".".join(path[:depth]), "expected a [section]")
        return section

    def entries(self, section: str) -> Iterator[tuple[str, str, Any]]:
        """Place, key and value of every entry that is not taken away by `false`."""
        for key, value in self.section(section).items():
            if value is not False:
                yield place_of(section, key), key, value

    def text(self, *path: str, default: str | None = None) -> str:
        """A text."""
        value = self.section(*path[:-1]).get(path[-1], default)
        if not isinstance(value, str):
            found = "nothing" if value is None else type(value).__name__
            raise self.error(".".join(path), f"expected a text, found {found}")
        return value

    def texts(self, *path: str, default: str | list[str]) -> tuple[str, ...]:
        """A text or several."""
        value = self.section(*path[:-1]).get(path[-1], default)
        several = [value] if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(text, str) for text in several):
            raise self.error(".".join(path), "expected a text or a list of texts")
        return tuple(several)

    def reason(self, place: str, reason: object) -> str:
        """Why something is so."""
        if not isinstance(reason, str) or not reason.strip():
            raise self.error(place, "a reason is needed, as text")
        return reason

    def conditional(self, place: str, key: str, value: object, words: Set[str]) -> Conditional:
        """A value that may depend on a predicate of these words."""
        with self.at(place):
            return parse_conditional(key, value, words)

    def predicate(self, place: str, text: str) -> Predicate:
        """A condition on a model."""
        with self.at(place):
            return parse_predicate(text, config_words(self.describes))

    def field(self, place: str, field: str, value: object) -> Any:
        """The value of a field of the configuration."""
        self.check_field(place, field)
        with self.at(place):
            return parse_field(field, value, self.describes)

    def check_field(self, place: str, field: str) -> None:
        """Raise TableError if the configuration has no such field."""
        fields = field_names(self.describes)
        if field not in fields:
            problem = f"{field!r} is not a field of {self.describes.__name__}"
            raise self.error(place, problem, did_you_mean(field, fields))


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint of a message, if a known name is similar."""
    near = nearest(name, known)
    return f"did you mean {near[0]!r}?" if near else None


# What `mean` and `std` of [constants] are where no preprocessing is known: they normalise nothing.
_NEUTRAL = {"mean": 0.0, "std": 1.0}


@dataclass(frozen=True)
class Constant:
    """The numbers of a tensor that plays no part.

    Attributes:
        numbers: One for all of it, or one for each step along its first axis; none: these steps
            are counted from 0.
        axes: Its layout.
        text: The entry as it stands in the table, for messages.
        dtype: In which it is written, if not in that of the other tensors.
    """

    numbers: tuple[float, ...]
    axes: Axes
    text: str
    dtype: str = ""

    def along(self, sizes: Mapping[str, int]) -> tuple[float, ...]:
        """One number for all, or one for each step along the first axis."""
        return self.numbers or tuple(map(float, range(sizes[self.axes.names[0]])))


def parse_constant(text: str, row: str, of: Kind = ViTConfig) -> Constant:
    """Parse what a tensor holds that plays no part: `1 0 1 : (qkv head dim)`.

        constant = numbers ":" axes (":" dtype)?
        numbers  = number | number number+ | "0.." | "mean" | "std"
        dtype    = "int32" | "int64"        in which it is written; else in that of the others

    Of several numbers, each is for a step along the first axis; `0..` counts these steps from 0.

    Args:
        text: Such as `1 0 1 : (qkv head dim)`.
        row: The row of the table that has this text, for messages.
        of: The kind of encoder whose tensors have such axes.

    Raises:
        ValueError: The text is not of this form, or the first axis has another number of steps,
            or nothing tells the size of another.
    """
    stated, colon, rest = text.partition(":")
    layout, _, dtype = (part.strip() for part in rest.partition(":"))
    if not colon:
        raise ValueError(f"expected numbers, a colon and axes, found {text!r}")
    words = [] if stated.strip() == "0.." else stated.split()
    numbers = tuple(_NEUTRAL[word] if word in _NEUTRAL else float(word) for word in words)
    if dtype not in ("", "int32", "int64"):
        raise ValueError(f"{dtype!r} is neither int32 nor int64, the dtypes that can be said")
    axes = parse_axes(layout)
    first = next(iter(axes.names), "")
    if len(numbers) > 1 and FIXED_AXES.get(first) != len(numbers):
        known = f"it has {FIXED_AXES[first]}" if first in FIXED_AXES else "their number is unknown"
        raise ValueError(f"{len(numbers)} numbers for the steps of {first!r}: {known}")
    ours = {name for tensor in canonical_tensors(of).values() for name in tensor.axes.names}
    for name in axes.names:
        if name not in ours:
            raise ValueError(f"no tensor of ours has an axis {name!r}")
    return Constant(numbers, axes, row, dtype)


_ROTATIONS = ("cos", "sin")  # of the rotary embedding, for each patch
_EMPTY = Dim(number=0)
# What {p} stands for besides weight and bias where we have it: the statistics of batch norms.
_GATHERED = ("running_mean", "running_var", "num_batches_tracked")


class TensorSections(SectionReader):
    """[words], [rows], [ignore], [holds] and [constants]."""

    def __init__(self, name: str, file: str, data: Sections, describes: Kind = ViTConfig) -> None:
        super().__init__(name, file, data, describes)
        self._words: dict[str, Words] = {}  # by what {p} stands for

    @functools.cached_property
    def words(self) -> Words:
        """The texts that words stand for."""
        words = {}
        for word in self.section("words"):
            if " " in word:
                continue
            if len(word) < 2:
                raise self.error(f"words.{word}", "a word has two letters or more; one is an index")
            words[word] = self.texts("words", word, default=[])
            if not words[word]:
                raise self.error(f"words.{word}", "expected a text or a list of texts")
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
        # `"base unless num_classes" = ""` is no word, but says which text of one is written.
        for place, key, text in self.entries("words"):
            if " " not in key:
                continue
            first = self.conditional(place, key, text, config_words(self.describes))
            if text not in self.words.get(first.name, ()):
                raise self.error(place, f"{text!r} is not a text of {first.name!r}")
            yield first

    def template(self, place: str, key: str, kind: str = "{p}") -> Template:
        """The key of an entry, with what {p} stands for."""
        with self.at(place):
            return parse_template(key.replace("{p}", kind), self.words_with(kind))

    @functools.cached_property
    def row_of(self) -> Mapping[str, Row]:
        """Rows by the name of our tensor."""
        rows, tensors = self.section("rows"), canonical_tensors(self.describes)
        found: dict[str, Row] = {}
        for place, key, text in self.entries("rows"):
            if not isinstance(text, str):
                raise self.error(place, "expected a text, or false to take a row away")
            for name, kind in _names(key):
                if name != key and name in rows:
                    continue  # an entry for one tensor counts more than one for several
                if name not in tensors:
                    hint = did_you_mean(name, tensors)
                    raise self.error(place, f"{name!r} is not a canonical name", hint)
                spelling, words = text.replace("{p}", kind), self.words_with(kind)
                found[name] = Row(tensors[name], spelling, words, self.file, key)
        return found

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        return tuple(self.row_of.values())

    @functools.cached_property
    def requires(self) -> tuple[tuple[str, ...], ...]:
        """Groups of rows, of each of which a file has one."""
        groups = (either.split("|") for either in self.texts("dialect", "requires", default=[]))
        return tuple(tuple(name.strip() for name in group) for group in groups)

    def check_uses(self) -> None:
        """No tensor of theirs, and no step of one, goes into two of ours, or both rows say so."""
        users: dict[object, tuple[str, bool]] = {}
        for row in self.rows:
            for part in itertools.chain(*(a.parts for a in row.alternatives)):
                use = (part.key.segments, part.selection)
                other, shared = users.setdefault(use, (row.name, part.shared))
                if other != row.name and not (shared and part.shared):
                    problem = f"{part.key} is used by {other!r} already"
                    hint = f'"shared {part.key}", in both rows, says that it is meant'
                    raise self.error(place_of("rows", row.name), problem, hint)

    @parsed
    def ignore(self) -> Iterator[tuple[Template, str]]:
        """Ignored keys, and why."""
        for place, key, reason in self.entries("ignore"):
            why = self.reason(place, reason)
            for _, kind in _names(key):
                yield self.template(place, key, kind), why

    @parsed
    def holds(self) -> Iterator[tuple[Template, Constant]]:
        """Numbers that ignored tensors must hold."""
        for place, key, text in self.entries("holds"):
            if not self.section("ignore").get(key):
                raise self.error(place, "only an ignored tensor must hold something")
            if text in _ROTATIONS:
                continue
            with self.at(place):
                row = f'{self.file}: "{key}" = "{text}"'
                constant = parse_constant(str(text), row, self.describes)
            template = self.template(place, key)
            if set(template.indices) - {"i"}:
                raise self.error(place, "the only index is that of the block, {i}")
            yield template, constant

    @parsed
    def rotations(self) -> Iterator[tuple[Template, str]]:
        """Ignored tensors that hold the cosines or sines of the rotary embedding."""
        for place, key, kind in self.entries("holds"):
            if kind in _ROTATIONS:
                yield self.template(place, key), kind

    @parsed
    def constants(self) -> Iterator[tuple[Template, Constant]]:
        """Tensors that the project's class holds, and that play no part; some have no elements."""
        ignored = [template for template, _ in self.ignore]
        expected = '; expected such as "0 : 1 width", or a word such as "image_size"'
        for place, key, text in self.entries("constants"):
            if self._is_word(text):
                continue
            with self.at(place, expected):
                constant = parse_constant(str(text), place, self.describes)
            template = self.template(place, key)
            unread = template.indices or all(i.match(template.write({})) is None for i in ignored)
            if template.indices or (unread and _EMPTY not in constant.axes.dims):
                raise self.error(place, "expected one key, which an entry of [ignore] explains")
            yield template, constant

    @property
    def empty(self) -> tuple[tuple[Template, Axes], ...]:
        """Arrays without elements that the project's class holds."""
        return tuple((key, c.axes) for key, c in self.constants if _EMPTY in c.axes.dims)

    @property
    def normalising(self) -> Mapping[str, str]:
        """`mean` and `std` -> how names of the tensors end with which the model normalises pixels.

        Empty where the model leaves that to the preprocessing.
        """
        said = ((str(text).split(" ")[0], key) for _, key, text in self.entries("constants"))
        return {word: key.rpartition("}")[2] for word, key in said if word in _NEUTRAL}

    @parsed
    def numbers(self) -> Iterator[tuple[str, str]]:
        """Whole numbers that a model of both encoders keeps as tensors: key, our word for it."""
        for _, key, text in self.entries("constants"):
            if self._is_word(text):
                yield key, text

    def _is_word(self, text: object) -> bool:
        return isinstance(text, str) and text in config_words(self.describes)


@functools.cache
def _names(key: str) -> tuple[tuple[str, str], ...]:
    """The names that a key with {p} stands for, each with the kind."""
    if "{p}" not in key:
        return ((key, "{p}"),)
    names = ((key.replace("{p}", kind), kind) for kind in ("weight", "bias", *_GATHERED))
    return tuple((n, k) for n, k in names if k not in _GATHERED or n in canonical_tensors())
