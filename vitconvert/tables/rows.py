"""A row: one of our tensors, and how a dialect spells it."""

import functools
import re
from dataclasses import dataclass, field

from vitconvert.tables.canonical import CanonicalTensor, canonical_tensors
from vitconvert.tables.expressions import Alternative, Zeros, parse_expression
from vitconvert.tables.sections import mistake
from vitconvert.tables.soundness import check_alternative
from vitconvert.tables.templates import Words, skeleton_of

_BRACES = re.compile(r"\{([^{}]*)\}")
_TOKEN = re.compile(r"[^\s(),|:=\[\]]+")


@dataclass(frozen=True)
class Row:
    """One of our tensors and the ways in which the dialect spells it."""

    tensor: CanonicalTensor
    spelling: str
    words: Words = field(repr=False)
    label: str  # how messages call the file
    key: str  # that the row has there

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.tensor.text

    @property
    def text(self) -> str:
        """The row as it stands in the table, for messages."""
        return f'{self.label}: "{self.name}" = "{self.spelling}"'

    @functools.cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The spellings. They are parsed when they are asked for: a file needs few of all rows.

        Raises:
            TableError: The right side does not parse, or does not fit our tensor.
        """
        try:
            return _alternatives(self.name, self.spelling, tuple(self.words.items()))
        except ValueError as error:
            raise mistake(self.label, f'rows."{self.key}"', error) from None

    @property
    def leaves_out(self) -> bool:
        """Whether a step that must be zero is left out on writing."""
        if "zeros" not in self.spelling:
            return False
        return any(isinstance(item, Zeros) for item in self.alternatives[0].items)

    def may_use(self, skeletons: str) -> bool:
        """Whether keys of these skeletons may be parts of the row."""
        return may_spell(self.spelling, self.words, skeletons)


@functools.cache
def _alternatives(
    name: str, text: str, words: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[Alternative, ...]:
    """A row's right side. Tables that extend another share most of their rows with it."""
    alternatives = parse_expression(text, dict(words))
    for alternative in alternatives:
        check_alternative(canonical_tensors()[name], alternative)
    return alternatives


def may_spell(text: str, words: Words, skeletons: str) -> bool:
    """Whether a key in a text may be one of these skeletons, told without parsing it.

    Args:
        text: Of a key, or of the right side of a row.
        words: Those that it may hold.
        skeletons: Of the keys of a file (`skeleton_of`), one on each line.
    """
    return any(
        all(letters in skeletons for letters in skeleton_of(token).rstrip("*").split("{}"))
        for token in _TOKEN.findall(_expanded(text, words))
    )


def _expanded(text: str, words: Words) -> str:
    """The text with words that stand for one text; of other braces only the place is left."""
    pieces = _BRACES.split(text)
    pieces[1::2] = (
        _expanded(texts[0], words) if len(texts := words.get(inside, ())) == 1 else "{}"
        for inside in pieces[1::2]
    )
    return "".join(pieces)
