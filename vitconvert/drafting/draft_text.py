"""A draft as the text of a table in the language of `weights_map/`, and where it is written."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from vitconvert.atomic_write import atomic_file, require_place
from vitconvert.config import ViTConfig, field_names
from vitconvert.drafting.entries import SIGNS, TO_WORDS
from vitconvert.drafting.rows import DraftRow
from vitconvert.errors import OutputExists, UsageError, printable
from vitconvert.facts.fact import TENSORS
from vitconvert.facts.gathering import DEFAULTS, Gathered, gather_facts, open_arguments
from vitconvert.tables.axes import Shape
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import canonical_tensors
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
    facts: Mapping[str, object],
    sections: Mapping[str, Mapping[str, object]] | None = None,
    *,
    guessed: frozenset[str] = frozenset(),
) -> str:
    """The table: certain rows, guesses as comments, and as comments what is left.

    `guessed` are fields of which the value is a guess, too.
    """
    # A word for what blocks begin with, and one for each sign that the language has for itself.
    begins = Counter(begin for row in rows for begin in _BLOCK.findall(row.spelling))
    block, count = begins.most_common(1)[0] if begins else ("", 0)
    words = {"block": block} if count >= _ENOUGH else {}
    texts = " ".join([*(row.spelling for row in rows), *map(_spelled, ignored)])
    words |= {word: sign for sign, word in SIGNS.items() if f"{{{word}}}" in texts}
    certain = {row.name.replace("{p}", "weight") for row in rows if row.certain}
    first = next((name for name in (*_FIRST, *sorted(certain)) if name in certain), None)
    lines = [
        *_heading(source, like, rows, left),
        "",
        "[dialect]",
        f"title    = {_quoted(f'{source}, a draft')}",
        f"source   = {_quoted(f'drafted by vitconvert {VERSION}, like {like}')}",
        *([f"requires = [{_quoted(first)}]"] if first else []),
        *_section("words", (f"{word} = {_quoted(text)}" for word, text in words.items())),
        *_section("rows", _rows(rows, words)),
        *_section("ignore", (f"{_quoted(k)} = {_quoted(why)}" for k, why in _looped(ignored))),
        *_left(left, unfilled),
        *(
            line
            for section, entries in {"config": facts, **(sections or {})}.items()
            for line in _section(section, _values(entries, guessed))
        ),
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


def _section(name: str, lines: Iterator[str]) -> list[str]:
    several = list(lines)
    return ["", f"[{name}]", *several] if several else []


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


def _values(entries: Mapping[str, object], guessed: frozenset[str]) -> Iterator[str]:
    for name, value in entries.items():
        if name in guessed:
            yield "# guess: no tensor shows it, and the code was not run with success"
        yield f"{'# ' if name in guessed else ''}{_name(name)} = {_value(value)}"


def _looped(ignored: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Ignored names, those of all blocks as one."""
    for why in dict.fromkeys(ignored.values()):
        names = [_spelled(name) for name, reason in ignored.items() if reason == why]
        patterns = {name: re.sub(r"[0-9]+", "{_}", name) for name in names}
        alike = Counter(patterns.values())  # of several, the numbers are {_}
        texts = (one if alike[one] > 1 else name for name, one in patterns.items())
        yield from ((text, why) for text in dict.fromkeys(texts))


def _spelled(name: str) -> str:
    return name.translate(TO_WORDS)


def _left(left: Mapping[str, str], unfilled: Sequence[str]) -> Iterator[str]:
    """Comments that list tensors without a row, and rows without a tensor."""
    for why in dict.fromkeys(left.values()):
        yield f"\n# Left: {why}."
        for text, count in runs(name for name, reason in left.items() if reason == why):
            times = f"  x {count}" if count > 1 else ""
            yield f"#   {printable(text)}{times}"
    if unfilled:
        yield "\n# Nothing was found for these tensors of the reference."
        yield from (f"#   {name}" for name in unfilled)


def _name(field: str) -> str:
    return field if field.isidentifier() else _quoted(field)


def _value(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _quoted(text: str) -> str:
    return json.dumps(printable(text) if not text.isprintable() else text, ensure_ascii=False)


# Sizes: the tensors of each file show them, as far as they are not asked for.
_SIZES = {"image_size", "patch_size", "in_channels", "num_classes", "embed_dim", "depth"}
_SIZES |= {"head_dim", "num_heads"}


def facts_of(
    config: ViTConfig,
    rows: Sequence[DraftRow],
    ignored: Mapping[str, str],
    shapes: Mapping[str, Shape],
    *,
    same_weights: bool,
) -> dict[str, object]:
    """Lines of `[config]`: the reference's value of what no tensor shows, where it is not usual.

    What the names of torch's own layers leave open is left out, unless the reference has the same
    weights: another model does not know it.
    """
    believed = [row_as_certain(row) for row in rows]

    def gathered(facts: Mapping[str, object]) -> Gathered:
        table = parse_draft(draft_text("", "", believed, ignored, {}, (), facts))
        return gather_facts(bind(table, shapes), {})

    left_open = {} if same_weights else open_arguments(shapes)
    shown = {n for n, fact in gathered({}).facts.items() if fact.origin == TENSORS}
    facts: dict[str, object] = {}
    for name in (n for n in field_names() if n in (*config.function(), "position_resampling")):
        value = getattr(config, name)
        usual = name in DEFAULTS and DEFAULTS[name] == value
        if not usual and name not in shown and name not in (*_SIZES, *left_open):
            facts[name] = value
    if "num_heads" not in shown:  # another width has other heads
        facts[f"num_heads if embed_dim == {config.embed_dim}"] = config.num_heads
    asked = [name for name in gathered(facts).asked if name not in left_open]
    return facts | {name: getattr(config, name) for name in asked if name in field_names()}


# Parts that a class lacks if it has no row for them; then no model with them is written.
_NO_ROW = (
    *("num_registers", "dist_token", "layer_scale", "qk_norm", "whole_qk_norm", "attention_norm"),
    *("mlp_norm", "gated_mlp", "pre_norm", "fc_norm", "representation_size"),
)
# Without them, a model has tensors of other names, for which there is no row.
_OF_OTHER_ROWS = {"images", "single_branch", "two_steps", "joined_qkv", "separate_proj"}
_OF_OTHER_ROWS |= {"plain_merge"}
# What the code does with its tensors, and to which tokens positions belong.
_SAID = (
    *("activation", "pooling", "block_order", "representation_activation"),
    *("no_embed_class", "register_positions"),
)


def only_of(config: ViTConfig, rows: Sequence[DraftRow]) -> dict[str, object]:
    """Lines of `[only]`: what a model must be for the code of these names to load its tensors."""
    named = {row.name.replace("{p}", kind) for row in rows for kind in ("weight", "bias")}
    tensors = canonical_tensors()
    found: dict[str, object] = {}
    for name in (name for name in tensors if name in named):
        for word in tensors[name].conditions:
            value = getattr(config, word)
            if word == "learned_positions":
                found["position_embedding"] = config.position_embedding
            elif word == "num_classes":
                found["num_classes > 0"] = "the code has a head"
            elif value is True and word not in _OF_OTHER_ROWS:
                found[word] = True
            elif value and value is not True:  # a size
                found[f"{word} > 0"] = f"the code has {name.rpartition('.')[0] or name}"
    for word in _NO_ROW:
        if not getattr(config, word):
            found[word] = getattr(config, word)
    function = config.function()
    return found | {word: function[word] for word in _SAID if word in function}


def row_as_certain(row: DraftRow) -> DraftRow:
    """A row as if it were no guess."""
    return replace(row, certain=True)


_SUFFIX = ".toml"


def check_draft_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a draft may be written.

    Raises:
        UsageError: The name is no table's, or no file can be there.
        OutputExists: The file exists, and `overwrite` is false or it is no draft.
    """
    if path.suffix != _SUFFIX:
        raise UsageError(f"The name of a table ends with {_SUFFIX}.", evidence={"output": path})
    require_place(path)
    if not path.exists():
        return
    if not overwrite:
        hint = "--force (in Python, overwrite=True) replaces an earlier draft."
        raise OutputExists("The table already exists.", evidence={"output": path}, hint=hint)
    draft = False
    if path.is_file():
        with path.open("rb") as file:
            draft = file.read(len(MARK)) == MARK.encode()
    if not draft:
        raise OutputExists(
            "The file is not a draft of a table, so it is not replaced.",
            evidence={"output": path},
        )


def write_draft(text: str, path: Path, *, overwrite: bool = False) -> None:
    """Write a draft, which appears whole or not at all.

    Raises:
        UsageError: There is no place for the file.
        OutputExists: As for `check_draft_output`, of what appeared meanwhile.
    """
    with atomic_file(path, check=partial(check_draft_output, overwrite=overwrite)) as file:
        file.write(text.encode())
