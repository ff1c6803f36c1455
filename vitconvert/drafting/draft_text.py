"""A draft as the text of a table, in the language of `weights_map/`."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitconvert.drafting.entries import SIGNS, TO_WORDS
from vitconvert.drafting.rows import DraftRow
from vitconvert.errors import printable
from vitconvert.tables.names import runs
from vitconvert.tables.table import Table
from vitconvert.version import VERSION

MARK = "# A draft of a table, by vitconvert"  # how a file that may be replaced begins
_BLOCK = re.compile(r"[^\s(),|:=\[\]]+?\{(?:2\*)?i(?:\+[0-9]+)?\}")
_ENOUGH = 3  # rows that have the same beginning: it becomes a word
_FIRST = ("blocks.{i}.mlp.fc1.weight", "blocks.{i}.attn.qkv.weight", "blocks.{i}.norm1.weight")


def draft_text(
    source: str,
    like: str,
    rows: Sequence[DraftRow],
    ignored: Mapping[str, str],
    left: Mapping[str, str],
    unfilled: Sequence[str],
    facts: Mapping[str, Any],
) -> str:
    """The table: certain rows, guesses as comments, and as comments what is left."""
    words = _words(rows, ignored)
    lines = [
        *_heading(source, like, rows, left),
        "",
        "[dialect]",
        f"title    = {_quoted(f'{source}, a draft')}",
        f"source   = {_quoted(f'drafted by vitconvert {VERSION}, like {like}')}",
        *_requires(rows),
        *_section("words", (f"{word} = {_quoted(text)}" for word, text in words.items())),
        *_section("rows", _rows(rows, words)),
        *_section("ignore", (f"{_key(k)} = {_quoted(why)}" for k, why in _looped(ignored))),
        *_left(left, unfilled),
        *_section("config", (f"{_name(n)} = {_value(v)}" for n, v in facts.items())),
    ]
    return "\n".join(lines) + "\n"


def parse_draft(text: str) -> Table:
    """The table that a draft is.

    Raises:
        TableError: It does not parse.
    """
    import tomllib

    table = Table("draft", "the draft", tomllib.loads(text))
    table.check()
    return table


def _heading(
    source: str, like: str, rows: Sequence[DraftRow], left: Mapping[str, str]
) -> Iterator[str]:
    guesses = sum(not row.certain for row in rows)
    yield f"{MARK} {VERSION}: {printable(source)},"
    yield f"# like {printable(like)}."
    yield "#"
    yield f"# {len(rows) - guesses} rows are certain, {guesses} are guesses and commented out,"
    yield "# with the reason; take the sign away from those that are right. Of the file's tensors,"
    yield f"# {len(left)} are left: name those that play no part in [ignore], with a reason."
    yield "# weights_map/README.md is the language. `vitconvert verify FILE --table THIS --module"
    yield "# YOUR_CODE:build` compares with the code that the file belongs to."


def _requires(rows: Sequence[DraftRow]) -> list[str]:
    certain = {row.name.replace("{p}", "weight") for row in rows if row.certain}
    first = next((name for name in (*_FIRST, *sorted(certain)) if name in certain), None)
    return [f"requires = [{_quoted(first)}]"] if first else []


def _section(name: str, lines: Iterator[str]) -> list[str]:
    several = list(lines)
    return ["", f"[{name}]", *several] if several else []


def _words(rows: Sequence[DraftRow], ignored: Mapping[str, str]) -> dict[str, str]:
    """What blocks begin with, and signs that the language has for itself."""
    found = Counter(begin for row in rows for begin in _BLOCK.findall(row.spelling))
    block, count = found.most_common(1)[0] if found else ("", 0)
    words = {"block": block} if count >= _ENOUGH else {}
    texts = " ".join([*(row.spelling for row in rows), *map(_spelled, ignored)])
    return words | {word: sign for sign, word in SIGNS.items() if f"{{{word}}}" in texts}


def _rows(rows: Sequence[DraftRow], words: Mapping[str, str]) -> Iterator[str]:
    width = max((len(row.name) for row in rows), default=0) + 2
    for row in rows:
        spelling = row.spelling
        if block := words.get("block"):
            spelling = re.sub(rf"(?<![^\s(,]){re.escape(block)}", "{block}", spelling)
        line = f"{_quoted(row.name):<{width}} = {_quoted(spelling)}"
        if not row.certain:
            yield f"# guess: {printable(row.reason)}"
        yield line if row.certain else f"# {line}"


def _looped(ignored: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Ignored names, those of all blocks as one."""
    for why in dict.fromkeys(ignored.values()):
        names = (_spelled(name) for name, reason in ignored.items() if reason == why)
        yield from ((text, why) for text in dict.fromkeys(_one_for_all(names)))


def _spelled(name: str) -> str:
    return name.translate(TO_WORDS)


def _one_for_all(names: Iterator[str]) -> Iterator[str]:
    """Names with `{_}` for the numbers in which several differ."""
    several = list(names)
    alike = Counter(re.sub(r"[0-9]+", "{_}", name) for name in several)
    for name in several:
        pattern = re.sub(r"[0-9]+", "{_}", name)
        yield pattern if alike[pattern] > 1 else name


def _left(left: Mapping[str, str], unfilled: Sequence[str]) -> Iterator[str]:
    """What no row uses, and what no row fills, as comments."""
    for why in dict.fromkeys(left.values()):
        yield f"\n# Left: {why}."
        for text, count in runs(name for name, reason in left.items() if reason == why):
            times = f"  x {count}" if count > 1 else ""
            yield f"#   {printable(text)}{times}"
    if unfilled:
        yield "\n# Nothing was found for these tensors of the reference."
        yield from (f"#   {name}" for name in unfilled)


def _key(name: str) -> str:
    return _quoted(name)


def _name(field: str) -> str:
    return field if field.isidentifier() else _quoted(field)


def _value(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _quoted(text: str) -> str:
    return json.dumps(printable(text) if not text.isprintable() else text, ensure_ascii=False)
