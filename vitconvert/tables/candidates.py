"""Which dialects may explain a file: found by searching the text of the tables, unparsed.

Parsing every table would take longer than everything else that happens before weights are read.
Searching their text is fast, and most tables lack a word of the file's keys.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.inheritance import builtin_sections, builtin_texts
from vitconvert.tables.names import Names
from vitconvert.tables.rows import letters_of

_EXTENDS = re.compile(r'^extends\s*=\s*"([^"]*)"', re.MULTILINE)
_ECOSYSTEM = re.compile(r'^ecosystem\s*=\s*"([^"]*)"', re.MULTILINE)
# Of a key of [ignore] that ends in "*", the letters before it.
_ANY_REST = re.compile(r'^"(?:[^"]*\})?([^"{}]*)\*"', re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')
_LEFT_SIDE = re.compile(r"^[^=\n]*=", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z]+")
# Words of what tables spell {p}: weight, bias, running_mean, running_var, num_batches_tracked.
_KINDS = {"weight", "bias", "running", "mean", "var", "num", "batches", "tracked"}


@dataclass(frozen=True)
class _Spelling:
    """Everything that a table's keys are made of."""

    text: str
    any_rest: tuple[str, ...]  # keys that hold one of these may hold any word


def likely_dialects(keys: Collection[str]) -> list[str]:
    """Names of the dialects that have the words of every key, and perhaps of some that do not.

    No dialect that explains all keys is left out.
    """
    words = set(_WORD.findall("\n".join(keys))) - _KINDS
    longest_first = sorted(words, key=len, reverse=True)
    return [name for name, s in _spellings().items() if _may_spell(s, keys, longest_first)]


def _may_spell(spelling: _Spelling, keys: Collection[str], words: list[str]) -> bool:
    if not spelling.any_rest:
        return all(word in spelling.text for word in words)
    foreign = (key for key in keys if not _has_words_of(key, spelling.text))
    return all(any(_begins(key, start) for start in spelling.any_rest) for key in foreign)


def _has_words_of(key: str, text: str) -> bool:
    return all(word in text for word in _WORD.findall(key) if word not in _KINDS)


def _begins(key: str, start: str) -> bool:
    """Whether a key, or what follows a prefix of it, begins so."""
    return key.startswith(start) or any(f"{mark}{start}" in key for mark in "./_")


@functools.cache
def _spellings() -> Mapping[str, _Spelling]:
    texts = {name: "\n".join(map(_their_side, _with_ancestors(name))) for name in builtin_texts()}
    return {name: _Spelling(text, tuple(_ANY_REST.findall(text))) for name, text in texts.items()}


def may_find_required(name: str, names: Names) -> bool:
    """Whether these names may be all that a dialect requires."""
    return all(
        any(
            names.may_have(letters_of(_right_side(row.strip(), name), {}))
            for row in group.split("|")
        )
        for group in builtin_sections(name)["dialect"].get("requires", ())
    )


def _right_side(row: str, name: str) -> str:
    """How a dialect spells one of our tensors; an ignored key is itself."""
    if row not in canonical_tensors():
        return row
    kind = row.rpartition(".")[2]
    for text in _with_ancestors(name):
        lines = [_line(text, key) for key in (row, row.removesuffix(kind) + "{p}")]
        told = [line for line in lines if line is not None]
        if told:  # nothing, if all are set to false
            return "".join(_QUOTED.findall(" ".join(told))[:1])
    return row


def _line(text: str, key: str) -> str | None:
    """What a table says of a key, or None."""
    at = text.find(f'\n"{key}"')
    return text[at + len(key) + 3 :].partition("\n")[0] if at >= 0 else None


def ecosystem_of(name: str) -> str:
    """The ecosystem of a dialect."""
    said = (_ECOSYSTEM.search(text) for text in _with_ancestors(name))
    return next((match[1] for match in said if match), name)


def family_of(name: str) -> str:
    """The dialect that one extends in the end; those of one family are spellings of one model."""
    while parent := _parent(name):
        name = parent
    return name


def _with_ancestors(name: str) -> Iterator[str]:
    """The text of a table, then of those that it extends, nearest first."""
    while name:
        yield builtin_texts().get(name, "")
        name = _parent(name)


@functools.cache
def _parent(name: str) -> str:
    said = _EXTENDS.search(builtin_texts().get(name, ""))
    return said[1] if said else ""


@functools.cache
def _their_side(text: str) -> str:
    """Right sides of [words] and [rows]; of the other sections that name keys, everything."""
    found: list[str] = []
    for section in text.split("\n["):
        name, _, lines = section.partition("]")
        if name in ("words", "rows"):
            found.append(_LEFT_SIDE.sub("", lines))
        elif name in ("ignore", "empty"):
            found.append(lines)
    return "\n".join(found)
