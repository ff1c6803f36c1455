"""A row: one of our tensors, how a dialect spells it, and what makes that sound.

Both sides of a sound row name the same axes and indices, and nothing is left over.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.tables.axes import Axes, Dim
from vitconvert.tables.canonical import CanonicalTensor
from vitconvert.tables.expressions import Alternative, Selection, Zeros, parse_expression
from vitconvert.tables.inheritance import mistake, place_of
from vitconvert.tables.names import Names
from vitconvert.tables.templates import Index, Words, skeleton_of

_BRACES = re.compile(r"\{([^{}]*)\}")
STACKED = "layer"  # the axis along which blocks are stacked in one array; its size is the depth
PREFIX = "prefix"  # class token and registers, of which rows take some; the tensors tell how many
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
            return _alternatives(self.tensor, self.spelling, tuple(self.words.items()))
        except ValueError as error:
            raise mistake(self.label, place_of("rows", self.key), error) from None

    @property
    def leaves_out(self) -> bool:
        """Whether a step that must be zero is left out on writing."""
        if "zeros" not in self.spelling:
            return False
        return any(isinstance(item, Zeros) for item in self.alternatives[0].items)

    def may_use(self, names: Names) -> bool:
        """Whether some of these names may be parts of the row."""
        return names.may_have(self._letters)

    @functools.cached_property
    def _letters(self) -> tuple[tuple[str, ...], ...]:
        return tuple(letters_of(self.spelling, self.words))


@functools.cache
def _alternatives(
    tensor: CanonicalTensor, text: str, words: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[Alternative, ...]:
    """A row's right side. Tables that extend another share most of their rows with it."""
    alternatives = parse_expression(text, dict(words))
    for problem in itertools.chain(*(_problems(tensor, one) for one in alternatives)):
        raise ValueError(problem)
    return alternatives


def letters_of(text: str, words: Words) -> Iterator[tuple[str, ...]]:
    """Yields the letters that the skeleton of a key must have, for each key in a text.

    Args:
        text: Of a key, or of the right side of a row.
        words: Those that it may hold.
    """
    for token in _TOKEN.findall(_expanded(text, words)):
        yield tuple(skeleton_of(token).rstrip("*").split("{}"))


def _expanded(text: str, words: Words) -> str:
    """The text with words that stand for one text; of other braces only the place is left."""
    pieces = _BRACES.split(text)
    pieces[1::2] = (
        _expanded(texts[0], words) if len(texts := words.get(inside, ())) == 1 else "{}"
        for inside in pieces[1::2]
    )
    return "".join(pieces)


def _problems(tensor: CanonicalTensor, alternative: Alternative) -> Iterator[str]:
    ours = tensor.axes
    if alternative.joined:
        axis, count = ours.names[0], len(alternative.items)
        if axis not in FIXED_AXES:
            yield f"cat has no place here: ours begins with {axis!r}, whose length varies"
        elif count != FIXED_AXES[axis]:
            yield f"cat joins {count} items, and ours has {FIXED_AXES[axis]} steps along {axis!r}"
        elif not alternative.parts:
            yield "cat needs a tensor of theirs"
        ours = ours.step
    for part in alternative.parts:
        selection = part.selection
        indices = set(part.key.indices) - set(part.counted)
        if selection and isinstance(selection.step, Index):
            indices.add(selection.step.name)
        for axis in part.counted:
            if axis not in ours.names:
                yield f"{part.key} counts {axis!r}, and ours has the axes {_some(ours.names)}"
        if indices != set(tensor.name.indices) and not (part.shared and not indices):
            wanted = _some(tensor.name.indices)
            yield f"the indices of {part.key} are {_some(indices)}; ours are {wanted}"
        rest = selection is not None and selection.rest
        if rest and alternative.joined:
            yield "cat joins single steps of theirs, and this takes several"
        if part.axes is None:
            continue
        names = set((ours.step if rest else ours).names).difference(part.counted)
        theirs = set(part.axes.names) - ({selection.axis} if selection else set())
        if theirs != names:
            yield f"the axes of {part.key} are {_some(theirs)}; ours are {_some(names)}"
        # A half or a quarter of a float is exact; a third is rounded.
        if any(dim.number.bit_count() != 1 for dim in part.axes.dims):
            problem = "hold a number that is not a power of two, which rounds parts"
            yield f"the axes of {part.key} {problem}"
        if selection:
            yield from _of_selection(selection, part.axes)


def _of_selection(selection: Selection, axes: Axes) -> Iterator[str]:
    axis, step = selection.axis, selection.step
    if axis == STACKED:
        if not isinstance(step, Index) or Dim((STACKED,)) not in axes.dims:
            yield f"{STACKED!r} is a dimension of its own, and an index such as {{i}} selects on it"
    elif axis == PREFIX:
        if isinstance(step, Index):
            yield f"a number selects along {PREFIX!r}"
    elif selection.rest:
        yield f"only of {PREFIX!r} can the rest be taken"
    elif axis not in FIXED_AXES:
        yield f"the size is unknown of the axis {axis!r}; blocks are stacked along {STACKED!r}"
    elif isinstance(step, Index) or step >= FIXED_AXES[axis]:
        yield f"the axis {axis!r} has the steps 0 to {FIXED_AXES[axis] - 1}"


def _some(names: Iterable[str]) -> str:
    return " ".join(sorted(names)) or "none"
