"""What drafts go by: `weights_map/drafts.toml`."""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from vitconvert.toml_files import LazyToml, tables_dir

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@functools.cache
def knowledge() -> Mapping[str, Any]:
    """The sections of the file."""
    return LazyToml((tables_dir() / "drafts.toml").read_text(encoding="utf-8"))


def words_of(name: str) -> frozenset[str]:
    """The words of a name: runs of letters and of digits, in lower case.

    Example:
        >>> sorted(words_of("encoder.layerNorm_1.weight"))
        ['1', 'encoder', 'layer', 'norm', 'weight']
    """
    return frozenset(word.lower() for word in _WORD.findall(name))


def has(words: frozenset[str], entries: Iterable[str]) -> int:
    """How many words the longest of these entries has that the words hold; 0 for none."""
    asked = (frozenset(entry.split()) for entry in entries)
    return max((len(each) for each in asked if each <= words), default=0)


@functools.cache
def groups_of(module: str) -> tuple[str, ...]:
    """The groups of modules of the same shapes that list this one."""
    return tuple(name for name, group in knowledge()["names"].items() if module in group)


def score(words: frozenset[str], module: str) -> int:
    """How much a name speaks for a module: 2 and more where it names it, 1 where its kind."""
    return max((_in_group(words, module, group) for group in groups_of(module)), default=0)


def _in_group(words: frozenset[str], module: str, name: str) -> int:
    group = knowledge()["names"][name]
    named = has(words, group[module])
    return (named + 1 if named else 0) + (1 if has(words, group["kind"]) else 0)


@functools.cache
def order_of(module: str) -> int:
    """Where a module comes among those of its group: the first is mostly the first in a file."""
    groups = knowledge()["names"]
    return min((list(groups[name]).index(module) for name in groups_of(module)), default=0)


def speaks_against(words: frozenset[str], module: str) -> str:
    """The module that a name speaks for rather than for this one, or nothing."""
    for name in groups_of(module):
        own = _in_group(words, module, name)
        others: list[str] = list(knowledge()["names"][name])
        for other in others:
            if other not in ("kind", module) and _in_group(words, other, name) > own:
                return other
    return ""


def other_kind(words: frozenset[str], module: str) -> bool:
    """Whether a name is of another kind than this module: of a norm, say, and this is a scale."""
    groups = knowledge()["names"]
    kinds = {name: has(words, groups[name]["kind"]) for name in ("block_norms", "block_scales")}
    own = [name for name in groups_of(module) if name in kinds]
    return bool(own) and any(kinds.values()) and not any(kinds[name] for name in own)
