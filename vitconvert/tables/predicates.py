"""Conditions on a model: `dist_token implies num_registers == 0 and not fc_norm`.

    predicate   = alternative ("implies" alternative)?
    alternative = conjunction ("or" conjunction)*
    conjunction = negation ("and" negation)*
    negation    = "not" negation | comparison
    comparison  = product (("==" | "!=" | "<" | "<=" | ">" | ">=") product)?
    product     = value ("*" value)*
    value       = number | "'" text "'" | word | "(" predicate ")"

A word is a field or property of ViTConfig, or `architecture.FIELD` in [ask]. Alone, it holds if
it is true, not 0 and not empty. Only numbers are multiplied or ordered, and only values of one
kind are equal. A comparison with what is not known does not hold.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitconvert.config import Config, Kind, TextConfig, ViTConfig, field_names
from vitconvert.errors import nearest
from vitconvert.tables.canonical import shown_words
from vitconvert.tables.expressions import Parser

LookUp = Callable[[str], object]  # the value of a word, None where it is not known

# Compiled when it is first needed: most conditions are one word.
_TOKEN = r"\s*('[^']*'|[=!<>]=|[()*<>]|[A-Za-z_][A-Za-z0-9_.]*|[^\s()*=!<>']+|\S)"
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARCHITECTURE = "architecture."  # before a word: what the named architecture says
_KEYWORDS = ("not", "and", "or", "implies")
_KINDS: Mapping[Any, str] = {
    bool: "a truth value",
    int: "a number",
    float: "a number",
    float | None: "a number",
    str: "a text",
}


class _Word(NamedTuple):
    name: str


class _Constant(NamedTuple):
    value: str | int | float


class _Operation(NamedTuple):
    """A sign of the grammar with its parts; "implies" is written as "not" and "or"."""

    sign: str
    parts: "tuple[_Node, ...]"


_Node = _Word | _Constant | _Operation


@dataclass(frozen=True)
class Predicate:
    """A condition on a model."""

    text: str
    words: tuple[str, ...]  # in order, each once
    _root: _Node

    def value(self, look_up: LookUp) -> object:
        """The value of a word alone; of any other condition, whether it holds."""
        return _value(self._root, look_up)

    def holds(self, look_up: LookUp) -> bool:
        """Whether it holds for these values of the words."""
        return bool(self.value(look_up))

    def values(self, look_up: LookUp) -> str:
        """Its words with their values, for messages."""
        return ", ".join(f"{word} = {look_up(word)}" for word in self.words)

    def __str__(self) -> str:
        return self.text


@functools.cache
def config_words(of: Kind = ViTConfig) -> Set[str]:
    """Every field and property of a kind of configuration."""
    return frozenset(_kinds_of(of))


@functools.cache
def parse_predicate(text: str, words: Set[str]) -> Predicate:
    """Parse a condition.

    Args:
        text: Such as `mlp_dim == 4 * embed_dim`.
        words: The fields and properties of ViTConfig that it may name.

    Raises:
        ParseError: With the text and a caret under the place.
    """
    root = _Word(text) if text in words else _Predicate(text, words).whole()
    return Predicate(text, tuple(dict.fromkeys(_words(root))), root)


class _Predicate(Parser):
    """Recursive descent, one method for each line of the grammar."""

    def __init__(self, text: str, words: Set[str]) -> None:
        super().__init__(text, _TOKEN)
        self.words = words

    def whole(self) -> _Node:
        root = self.predicate()
        self.take_end()
        if not isinstance(root, _Word) and _kind(root) != "a truth value":
            raise self.error("expected a condition")
        return root

    def predicate(self) -> _Node:
        condition = self.alternative()
        if self.peek() != "implies":
            return condition
        self.take("implies")
        return _Operation("or", (_Operation("not", (condition,)), self.alternative()))

    def alternative(self) -> _Node:
        return self.joined("or", self.conjunction)

    def conjunction(self) -> _Node:
        return self.joined("and", self.negation)

    def joined(self, sign: str, part: Callable[[], _Node]) -> _Node:
        parts = [part()]
        while self.peek() == sign:
            self.take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else _Operation(sign, tuple(parts))

    def negation(self) -> _Node:
        if self.peek() != "not":
            return self.comparison()
        self.take()
        return _Operation("not", (self.negation(),))

    def comparison(self) -> _Node:
        start, left = self.position, self.product()
        sign = self.peek()
        if sign not in _COMPARISONS:
            return left
        self.take()
        middle, right = self.position, self.product()
        if sign not in ("==", "!="):
            self.require_number(left, f"{sign!r} orders numbers", start)
            self.require_number(right, f"{sign!r} orders numbers", middle)
        kinds = _kind(left), _kind(right)
        if kinds[0] != kinds[1]:
            raise self.error(f"{kinds[0]} is never equal to {kinds[1]}", middle)
        match left, right:
            case (_Word(name), _Constant(text)) | (_Constant(text), _Word(name)):
                word = name.removeprefix(ARCHITECTURE)
                # A text encoder's words are called otherwise than a vision encoder's.
                vocabulary = {**TextConfig.vocabularies, **ViTConfig.vocabularies}.get(word)
                if vocabulary and text not in vocabulary:
                    raise self.error(f"{name} is one of {', '.join(vocabulary)}", middle)
        return _Operation(sign, (left, right))

    def product(self) -> _Node:
        start, factors = self.position, [self.value()]
        while self.peek() == "*":
            self.take("*")
            next_start, factor = self.position, self.value()
            self.require_number(factors[0], "'*' multiplies numbers", start)
            self.require_number(factor, "'*' multiplies numbers", next_start)
            factors.append(factor)
        return factors[0] if len(factors) == 1 else _Operation("*", tuple(factors))

    def value(self) -> _Node:
        token = self.peek()
        if token == "(":
            self.take("(")
            inner = self.predicate()
            self.take(")")
            return inner
        if token[:1].isdecimal():
            try:
                value = int(token) if token.isdecimal() else float(token)
            except ValueError:
                raise self.error(f"{token!r} is not a number") from None
            self.take()
            return _Constant(value)
        if len(token) > 1 and token[0] == token[-1] == "'":
            return _Constant(self.take()[1:-1])
        if token and (token in _KEYWORDS or not token.replace(".", "_").isidentifier()):
            raise self.error(f"expected a word, a number or a 'text', found {token!r}")
        if token and token not in self.words:
            raise self.error(self.why_not(token))
        return _Word(self.take())

    def why_not(self, word: str) -> str:
        if word in config_words():
            return f"{word!r} is not known before the whole configuration is"
        near = nearest(word, sorted(self.words))
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{word!r} is not a field or property of ViTConfig{hint}"

    def require_number(self, node: _Node, rule: str, at: int) -> None:
        if _kind(node) != "a number":
            raise self.error(f"{rule}, and this is {_kind(node)}", at)


@functools.cache
def _kinds_of(of: Kind) -> Mapping[str, str]:
    """The kind of every field and property."""
    types = {f.name: f.type for f in dataclasses.fields(of) if f.name != "origins"}
    for name, found in (item for kind in of.__mro__ for item in vars(kind).items()):
        if isinstance(found, property) and found.fget:
            types[name] = found.fget.__annotations__["return"]
    return {name: _KINDS.get(kind, "several numbers") for name, kind in types.items()}


def _kind(node: _Node) -> str:
    match node:
        case _Word(name):
            word = name.removeprefix(ARCHITECTURE)  # both kinds have it of one kind, or one does
            return _kinds_of(ViTConfig).get(word) or _kinds_of(TextConfig)[word]
        case _Constant(str()):
            return "a text"
        case _Constant() | _Operation("*"):
            return "a number"
    return "a truth value"


def _words(node: _Node) -> Iterator[str]:
    match node:
        case _Word(name):
            yield name
        case _Operation(_, parts):
            for part in parts:
                yield from _words(part)


def _value(node: _Node, look_up: LookUp) -> Any:
    if isinstance(node, _Word):
        return look_up(node.name)
    if isinstance(node, _Constant):
        return node.value
    values = (_value(part, look_up) for part in node.parts)
    match node.sign:
        case "not":
            return not next(values)
        case "and":
            return all(values)
        case "or":
            return any(values)
        case "*":
            factors = tuple(values)
            return None if None in factors else math.prod(factors)
    left, right = values
    # None is not known, and neither equal nor unequal to anything.
    return None not in (left, right) and _COMPARISONS[node.sign](left, right)


@dataclass(frozen=True)
class Conditional:
    """A value under a name: always, or if a condition holds, or unless it does."""

    name: str
    value: Any
    condition: Predicate | None = None
    negated: bool = False

    def holds(self, look_up: LookUp) -> bool:
        """Whether the value counts, given the values of words."""
        return self.condition is None or self.condition.holds(look_up) != self.negated

    def holds_for(self, config: Config) -> bool:
        """Whether the value counts for a model."""
        return self.holds(functools.partial(getattr, config))


def parse_conditional(key: str, value: object, words: Set[str] | None = None) -> Conditional:
    """Parse `name`, `name if predicate` or `name unless predicate`.

    Args:
        key: What is parsed.
        value: What stands under it.
        words: Those that the predicate may name; every one of ViTConfig by default.

    Raises:
        ValueError: The key has another form, or the predicate does not parse.
    """
    match key.split(maxsplit=2):
        case [name]:
            return Conditional(name, value)
        case [name, ("if" | "unless") as how, text]:
            condition = parse_predicate(text, config_words() if words is None else words)
            return Conditional(name, value, condition, how == "unless")
    raise ValueError('expected "name", "name if predicate" or "name unless predicate"')


class Always(NamedTuple):
    """A fact of every model that a project's class makes."""

    predicate: Predicate
    value: Any
    reason: str = ""  # "" where the word says it

    def broken_by(self, config: Config) -> str:
        """What is otherwise in a model, or nothing."""
        look_up = functools.partial(getattr, config)
        found = self.predicate.value(look_up)
        if found == self.value:
            return ""
        text = f"{self.predicate} is always {self.value} there, and {found} here"
        return f"{text} ({self.predicate.values(look_up)}): {self.reason}" if self.reason else text


class Must(NamedTuple):
    """A condition without which the project's code mistakes the tensors."""

    predicate: Predicate
    reason: str

    def broken_by(self, config: Config) -> str:
        """What is otherwise in a model, or nothing."""
        look_up = functools.partial(getattr, config)
        if self.predicate.holds(look_up):
            return ""
        text = self.predicate.text
        if text not in self.predicate.words:
            text = f"({text}), with {self.predicate.values(look_up)}"
        return f"not {text}: {self.reason}"


@functools.cache
def told_words(of: Kind = ViTConfig) -> Set[str]:
    """Words that are known before the whole configuration is."""
    return shown_words(of) | set(field_names(of))


@functools.cache
def stated_words(of: Kind = ViTConfig) -> Set[str]:
    """Fields, as they are said of a model and of the architecture that it names."""
    return frozenset(w for name in field_names(of) for w in (name, ARCHITECTURE + name))
