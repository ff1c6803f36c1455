"""Key templates: one line for the same tensor in every block.

    template = (letters | "{" index "}" | "{_" index "}" | "{" word "}" | "{_}" | "*")*
    index    = name | name "+" n | n "*" name | n "*" name "+" n
    name     = letter | "head" | "qkv" | "kv"
    word     = a name of two letters or more, from the table's [words]

An index counts from 0: `block{s+1}` spells s = 0 as `block1`. Keras does not number the first of
several: `block{_i}` spells 0 as `block`, 1 as `block_1`, and `dense{_2*i+1}` is the second of two
in each block: `dense_1`, `dense_3`. The name of an axis counts its steps, of which each is a tensor
of its own: `heads.{head}.query`. `{_}` is a number that carries nothing.
Numbers are decimal, without leading zeros. A word stands for its text; a word with several texts
matches any of them and is written as the first. Two numbers never touch, so every key can be read
in one way. `*`, only at the end and only in [ignore], matches any rest.
"""

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_NUMBER = re.compile(r"[0-9]+")
_BRACES = re.compile(r"\{([^{}]*)\}")
COUNTED_AXES = ("head", "qkv", "kv")
"""Axes of ours of which a key may count the steps."""
_INDEX = re.compile(
    rf"(?:([1-9][0-9]{{0,8}})\*)?([a-z]|{'|'.join(COUNTED_AXES)})(?:\+([0-9]{{1,9}}))?\Z"
)
# No ViT has a thousand blocks: a longer number is no index, and a file cannot make us count to it.
MOST_STEPS = 1000
# What words may make of a template, which can double with each of them.
_MOST_SPELLINGS = 1000
_MOST_SEGMENTS = 200
_DEEPEST_WORD = 50
_LONGEST_KEY = 10_000
# With leading zeros, two names would have one index.
_INDEX_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,2})\Z")

Words = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Index:
    """`scale * name + offset`, a number in a key."""

    name: str
    scale: int = 1
    offset: int = 0

    def write(self, value: int) -> int:
        """The number as it is spelled."""
        return self.scale * value + self.offset

    def read(self, number: int) -> int | None:
        """The value that is spelled so, or None where no value is."""
        value, rest = divmod(number - self.offset, self.scale)
        return value if rest == 0 and value >= 0 else None


@dataclass(frozen=True)
class First:
    """No number at all, which is how some spell 0."""

    name: str


@dataclass(frozen=True)
class Later:
    """A number that is not spelled where it is 0, and follows an underscore elsewhere."""

    index: Index

    @property
    def name(self) -> str:
        """That of the index."""
        return self.index.name

    def read(self, number: int) -> int | None:
        """The value that is spelled so, or None where no value is."""
        return self.index.read(number) if number else None


@dataclass(frozen=True)
class Alternation:
    """Several spellings; the first is written, unless another one is asked for."""

    texts: tuple[str, ...]
    word: str = field(default="", compare=False)


@dataclass(frozen=True)
class Blank:
    """A number that carries nothing."""


@dataclass(frozen=True)
class Rest:
    """Anything up to the end."""


Segment = str | Index | Later | Alternation | Blank | Rest
_Numbers = tuple[str | Index | First | Later | Blank, ...]  # of a key, in order


@dataclass(frozen=True)
class Template:
    """A parsed key template."""

    segments: tuple[Segment, ...]
    text: str

    @functools.cached_property
    def indices(self) -> tuple[str, ...]:
        """Names of the indices, in order, each once."""
        found = (s.name for s in self.segments if isinstance(s, Index | Later))
        return tuple(dict.fromkeys(found))

    @functools.cached_property
    def skeletons(self) -> Mapping[str, tuple[_Numbers, ...]]:
        """`skeleton_of` the template's keys up to the rest, and what their numbers can be."""
        variants = [_variants(segment) for segment in self.segments]
        if (count := math.prod(map(len, variants))) > _MOST_SPELLINGS:
            raise ValueError(f"the words make {count} names; {_MOST_SPELLINGS} at most")
        found: dict[str, tuple[_Numbers, ...]] = {}
        for several in itertools.product(*variants):
            skeleton = skeleton_of("".join(text for text, _ in several))
            numbers = tuple(itertools.chain.from_iterable(numbers for _, numbers in several))
            found[skeleton] = (*found.get(skeleton, ()), numbers)
        return found

    def match(self, key: str) -> dict[str, int] | None:
        """The indices that spell `key`, or None."""
        return self.read(skeleton_of(key), numbers_of(key))

    def read(self, skeleton: str, numbers: Sequence[str]) -> dict[str, int] | None:
        """The indices that spell the key of this skeleton and these numbers, or None."""
        readings = self.skeletons.get(skeleton, ())
        if isinstance(self.segments[-1], Rest):
            several = (r for start, r in self.skeletons.items() if skeleton.startswith(start))
            readings = tuple(itertools.chain.from_iterable(several))
        for slots in readings:
            found = {slot.name: 0 for slot in slots if isinstance(slot, First)}
            spelled = (slot for slot in slots if not isinstance(slot, First))
            # More numbers may be in the rest.
            if all(_fits(slot, text, found) for slot, text in zip(spelled, numbers, strict=False)):
                return found
        return None

    def write(self, indices: Mapping[str, int], first: Mapping[str, str] | None = None) -> str:
        """The key for these indices; `first` says which text of a word is written."""
        return "".join(
            [s if isinstance(s, str) else _spell(s, indices, first or {}) for s in self.segments]
        )

    def __str__(self) -> str:
        return self.text


def skeleton_of(key: str) -> str:
    """The key with every number replaced by 0."""
    return _NUMBER.sub("0", key)


def numbers_of(key: str) -> list[str]:
    """The numbers in a key, in order: what its skeleton does not tell."""
    return _NUMBER.findall(key)


def _variants(segment: Segment) -> tuple[tuple[str, _Numbers], ...]:
    """The texts that may stand for a segment in a skeleton, each with its numbers."""
    match segment:
        case Index() | Blank():
            return (("0", (segment,)),)
        case Later(index):
            later: tuple[tuple[str, _Numbers], ...] = (("_0", (segment,)),)
            return later if index.offset else (("", (First(index.name),)), *later)
        case Rest():
            return (("", ()),)
    texts = (segment,) if isinstance(segment, str) else segment.texts
    return tuple((text, tuple(_NUMBER.findall(text))) for text in texts)


def _fits(slot: str | Index | Later | Blank, number: str, found: dict[str, int]) -> bool:
    """Whether a slot can be this number, beside the indices that were found; adds its index."""
    if isinstance(slot, Index | Later):
        value = slot.read(int(number)) if _INDEX_NUMBER.match(number) else None
        return value is not None and found.setdefault(slot.name, value) == value
    return isinstance(slot, Blank) or slot == number


def _spell(
    segment: Index | Later | Alternation | Blank | Rest,
    indices: Mapping[str, int],
    first: Mapping[str, str],
) -> str:
    match segment:
        case Index():
            return str(segment.write(indices[segment.name]))
        case Later(index):
            number = index.write(indices[index.name])
            return f"_{number}" if number else ""
        case Alternation(texts, word):
            return first.get(word, texts[0])
        case Blank():
            return "0"
        case Rest():
            raise AssertionError("a template with * is never written")


def parse_template(text: str, words: Words) -> Template:
    """Parse a key template, with the table's words.

    Raises:
        ValueError: A brace holds neither an index nor a known word, or stands alone; words refer
            in a circle; numbers touch; a `*` is not at the end.
    """
    merged: list[Segment] = []  # neighbouring letters joined
    for segment in _segments(text, words, ()):
        if isinstance(segment, str) and merged and isinstance(merged[-1], str):
            merged[-1] += segment
        elif segment != "":
            merged.append(segment)
    template = Template(tuple(merged), text)
    for skeleton, readings in template.skeletons.items():
        count = len(numbers_of(skeleton))
        if any(sum(not isinstance(s, First) for s in r) != count for r in readings):
            raise ValueError("two adjacent numbers cannot be separated")
    return template


def _segments(text: str, words: Words, open_words: tuple[str, ...]) -> list[Segment]:
    segments: list[Segment] = []
    position = 0
    for brace in _BRACES.finditer(text):
        segments.append(_letters(text[position : brace.start()]))
        segments += _brace(brace[1], words, open_words)
        position = brace.end()
    rest = text[position:]
    if rest.endswith("*") and not open_words:
        segments += [_letters(rest[:-1]), Rest()]
    else:
        segments.append(_letters(rest))
    if len(segments) > _MOST_SEGMENTS:
        raise ValueError(f"with its words it has more than {_MOST_SEGMENTS} pieces")
    if sum(len(s) for s in segments if isinstance(s, str)) > _LONGEST_KEY:
        raise ValueError(f"with its words it has more than {_LONGEST_KEY} letters")
    return segments


def _letters(text: str) -> str:
    for sign, problem in (("{", "never closes"), ("}", "never opens"), ("*", "is not at the end")):
        if sign in text:
            raise ValueError(f"a {sign!r} {problem}")
    return text


def _brace(inside: str, words: Words, open_words: tuple[str, ...]) -> list[Segment]:
    if inside == "_":
        return [Blank()]
    if inside[:1] == "_" and (later := parse_index(inside[1:])):
        return [Later(later)]
    # A table may have a word "head".
    index = None if inside in words else parse_index(inside)
    if index:
        return [index]
    if inside in open_words:
        raise ValueError(f"the words {' -> '.join((*open_words, inside))} refer in a circle")
    if len(open_words) > _DEEPEST_WORD:
        raise ValueError(f"its words are nested more than {_DEEPEST_WORD} deep")
    if inside not in words:
        known = ", ".join(sorted(words)) or "none"
        raise ValueError(f"{{{inside}}} is neither an index nor a word of this table ({known})")
    texts = words[inside]
    if len(texts) == 1:
        return _segments(texts[0], words, (*open_words, inside))
    # Each of several texts would need indices of its own.
    if any("{" in text for text in texts):
        raise ValueError(f"the word {inside!r} has several texts, so none can hold braces")
    return [Alternation(tuple(map(_letters, texts)), inside)]


def parse_index(text: str) -> Index | None:
    """Parse the text in the braces of an index; None if it is something else."""
    match = _INDEX.match(text)
    return Index(match[2], int(match[1] or 1), int(match[3] or 0)) if match else None
