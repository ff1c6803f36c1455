"""What depends on a condition, and what must be so: the uses that tables make of predicates."""

import functools
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitconvert.config import Config, Kind, ViTConfig, field_names
from vitconvert.tables.canonical import shown_words
from vitconvert.tables.predicates import (
    ARCHITECTURE,
    LookUp,
    Predicate,
    config_words,
    parse_predicate,
)


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


def parse_conditional(key: str, value: Any, words: Set[str] | None = None) -> Conditional:
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
    """What is so of every model that a project's class makes."""

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
    """What must be so, because the project's code mistakes the tensors otherwise."""

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
