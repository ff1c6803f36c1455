"""The right side of a row: how their tensors make up one of ours.

    expression  = alternative ("|" alternative)*     on reading any, on writing the first
    alternative = "cat(" item ("," item)* ")" | part
    item        = part | "zeros"
    part        = "shared"? key selection? (":" axes)?
    selection   = "[" axis "=" number ":"? "]"       a number, an index ({i}), or the rest (1:)

`cat` runs along the first axis of our tensor, one step an item: three items make up
`(qkv head dim)`. Axes are those of their tensor before the selection; left out, they are ours.
`x[qkv=0] : (qkv head dim) width` is the first step along their axis `qkv`. `x[prefix=1:]` is all
but the first, which are the steps along our first axis. A key that counts an axis of ours
(`heads.{head}.query.weight`) is a tensor for each of its steps, and its axes are those of one.
`shared x` may be in other rows too, which say the same of it, and in all blocks, if it has no
index.
"""

import functools
import re
from dataclasses import dataclass

from vitconvert.tables.axes import Axes, parse_axes
from vitconvert.tables.templates import (
    COUNTED_AXES,
    Index,
    Rest,
    Template,
    Words,
    parse_index,
    parse_template,
)


class ParseError(ValueError):
    """A text that does not parse; the message shows it with a caret under the place."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message}\n    {text}\n    {' ' * position}^")


class Parser:
    """The tokens of a text, taken one by one.

    Args:
        text: What is parsed.
        token: A regular expression of blanks and one token, which is its first group.
    """

    def __init__(self, text: str, token: str | re.Pattern[str]) -> None:
        self.text = text
        self.tokens = [(m[1], m.start(1)) for m in re.finditer(token, text)]
        self.position = 0

    def peek(self, ahead: int = 0) -> str:
        """The next token, or one further on; "" after the last."""
        index = self.position + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        """The next token, which must be the expected one if there is one."""
        token = self.peek()
        if not token or (expected and token != expected):
            wanted = repr(expected) if expected else "more"
            raise self.error(f"expected {wanted}, found {token!r}" if token else "ends too early")
        self.position += 1
        return token

    def take_end(self) -> None:
        """Nothing is left."""
        if self.peek():
            raise self.error(f"{self.peek()!r} does not belong here")

    def error(self, message: str, at: int | None = None) -> ParseError:
        """A mistake at a token, given by its number; the next one by default."""
        number = self.position if at is None else at
        ended = number >= len(self.tokens)
        place = len(self.text) if ended else self.tokens[number][1]
        return ParseError(message, self.text, place)


# TensorFlow ends names in `:0`: a colon within a key that a digit follows is part of it.
_TOKEN = re.compile(r"\s*([(),|:=\[\]]|(?:[^\s(),|:=\[\]]|(?<=\S):(?=[0-9]))+)")


@dataclass(frozen=True)
class Selection:
    """One step of an axis: a number, or the value of an index; with `rest`, all from it on."""

    axis: str
    step: int | Index
    rest: bool = False


@dataclass(frozen=True)
class Part:
    """One of their tensors, or some steps of one."""

    key: Template
    axes: Axes | None = None
    selection: Selection | None = None
    shared: bool = False

    @functools.cached_property
    def counted(self) -> tuple[str, ...]:
        """Axes of ours of which the key counts the steps."""
        return tuple(name for name in self.key.indices if name in COUNTED_AXES)


@dataclass(frozen=True)
class Zeros:
    """A step that they leave out because it is always zero."""


@dataclass(frozen=True)
class Alternative:
    """One way to spell one of our tensors: its parts, joined along our first axis if several."""

    items: tuple[Part | Zeros, ...]
    joined: bool

    @functools.cached_property
    def rest(self) -> Selection | None:
        """Which steps of theirs are the steps of ours, if the only part is such a selection."""
        selection = self.parts[0].selection if self.parts else None
        return selection if selection and selection.rest else None

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The items that are tensors of theirs."""
        return tuple(item for item in self.items if isinstance(item, Part))


def parse_expression(text: str, words: Words) -> tuple[Alternative, ...]:
    """Parse the right side of a row.

    Raises:
        ParseError: With the text and a caret under the place.
    """
    return _Expression(text, words).expression()


class _Expression(Parser):
    """Recursive descent, one method for each line of the grammar."""

    def __init__(self, text: str, words: Words) -> None:
        super().__init__(text, _TOKEN)
        self.words = words

    def expression(self) -> tuple[Alternative, ...]:
        alternatives = [self.alternative()]
        while self.peek() == "|":
            self.take("|")
            alternatives.append(self.alternative())
        self.take_end()
        return tuple(alternatives)

    def alternative(self) -> Alternative:
        if self.peek() != "cat" or self.peek(1) != "(":
            return Alternative((self.part(),), joined=False)
        self.take("cat")
        self.take("(")
        items = [self.item()]
        while self.peek() == ",":
            self.take(",")
            items.append(self.item())
        self.take(")")
        return Alternative(tuple(items), joined=True)

    def item(self) -> Part | Zeros:
        if self.peek() == "zeros":
            self.take()
            return Zeros()
        return self.part()

    def part(self) -> Part:
        # The word before a key; a key may be called so, too.
        if shared := self.peek() == "shared" and self.peek(1) not in {"", *"(),|:=[]"}:
            self.take()
        key = self.key()
        selection = self.selection() if self.peek() == "[" else None
        axes = self.axes() if self.peek() == ":" else None
        if selection and not axes:
            raise self.error("a selection needs the axes of their tensor: key[axis=0] : axes")
        if selection and axes and selection.axis not in axes.names:
            raise self.error(f"the axes {axes} do not name {selection.axis!r}")
        return Part(key, axes, selection, shared)

    def key(self) -> Template:
        if self.peek() in set("(),|:=[]"):
            raise self.error(f"expected a key, found {self.peek()!r}")
        start, text = self.position, self.take()
        try:
            template = parse_template(text, self.words)
        except ValueError as error:
            self.position = start
            raise self.error(str(error)) from None
        if any(isinstance(segment, Rest) for segment in template.segments):
            self.position = start
            raise self.error("'*' is for [ignore] only")
        return template

    def selection(self) -> Selection:
        self.take("[")
        axis = self.take()
        self.take("=")
        step = self.number()
        if rest := self.peek() == ":":
            self.take()
        self.take("]")
        return Selection(axis, step, rest)

    def number(self) -> int | Index:
        token = self.take()
        # No axis has so many steps, and a number of thousands of digits takes long to read.
        if token.isdecimal() and len(token) < 10:
            return int(token)
        index = parse_index(token[1:-1]) if token.startswith("{") and token.endswith("}") else None
        if index is None:
            self.position -= 1
            raise self.error(f"{token!r} is neither a number nor an index")
        return index

    def axes(self) -> Axes:
        self.take(":")
        start, depth, words = self.position, 0, []
        while self.peek() and not (depth == 0 and self.peek() in ",|)"):
            depth += {"(": 1, ")": -1}.get(self.peek(), 0)
            words.append(self.take())
        try:
            return parse_axes(" ".join(words))
        except ValueError as error:
            self.position = start
            raise self.error(str(error)) from None
