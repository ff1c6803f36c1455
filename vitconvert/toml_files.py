"""The tables of `weights_map/`: TOML, compiled once into one file.

A wheel brings the compiled file; a checkout makes it when it is first used, and again when a table
or this module is another. A line of JSON says what each table is about, and a line for each table
holds its sections, on top of those of the table that it extends. A run parses the lines that it
needs.
"""

import functools
import json
import os
import re
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from vitconvert.errors import TableError, UsageError

Sections = Mapping[str, Any]

TEXT = "text/"  # the folder of the tables of text encoders
CORES = "cores/"  # of what several tables begin with, and which is no dialect itself
COMPILED = "compiled.jsonl"

_PACKAGE = Path(__file__).parent
WORD = re.compile(r"[A-Za-z]+")  # of a key: what a summary has, and a key is looked for by
# What a table says of itself alone.
_NOT_INHERITED = ("requires", "named_only", "historic", "install", "resampling")


class DialectSummary(TypedDict):
    """What is known of a dialect before its sections are parsed.

    Attributes:
        ecosystem: It belongs to.
        family: The table that it extends in the end.
        words: Every word of its keys.
        any_rest: Beginnings of keys that may go on with any words.
        required: By group of `requires`, how it spells each tensor of the group.
    """

    ecosystem: str
    family: str
    words: str
    any_rest: Sequence[str]
    required: Sequence[Sequence[str]]


class CompiledTables:
    """Every table by its name, which is its path without the suffix.

    Attributes:
        checksum: Of what was compiled.
        summaries: Of those that others may extend: the dialects, the text encoders, and `cores/`.
    """

    def __init__(self, text: str) -> None:
        first, *self._lines = text.split("\n")
        index = json.loads(first)
        self.checksum: int = index["checksum"]
        self.summaries: Mapping[str, DialectSummary] = index["summaries"]
        self._line_of = {name: at for at, name in enumerate(index["tables"])}
        self._parsed: dict[str, Sections] = {}

    def sections(self, name: str) -> Sections:
        """Those of a table, parsed when they are first asked for."""
        if name not in self._parsed:
            self._parsed[name] = json.loads(self._lines[self._line_of[name]])
        return self._parsed[name]


def tables_dir() -> Path:
    """The mapping tables: inside the package once installed, next to it in a checkout."""
    installed = _PACKAGE / "weights_map"
    return installed if installed.is_dir() else _PACKAGE.parent / "weights_map"


def read_tables(name: str) -> Sections:
    """The sections of `weights_map/NAME.toml`."""
    return compiled_tables().sections(name)


@functools.cache
def summaries(folder: str = "") -> Mapping[str, DialectSummary]:
    """What is known of every dialect of `weights_map/`, or of a folder in it, by name, sorted."""
    return {
        name.removeprefix(folder): said
        for name, said in compiled_tables().summaries.items()
        if name.rpartition("/")[0] == folder.rstrip("/")
    }


@functools.cache
def compiled_tables() -> CompiledTables:
    """The tables, compiled now unless the file beside them is of these very tables.

    Raises:
        TableError: One of them is not TOML, or extends what is no table.
    """
    folder = tables_dir()
    sources = _sources(folder)
    file = folder / COMPILED
    with suppress(OSError, ValueError, LookupError, TypeError):  # there is none, or another
        found = CompiledTables(file.read_text(encoding="utf-8"))
        if found.checksum == _checksum(sources):
            return found
    text = _compiled(sources)
    _keep(file, text)
    return CompiledTables(text)


def compile_tables(folder: Path) -> str:
    """The compiled file of the tables of a folder.

    Raises:
        TableError: One of them is not TOML, or extends what is no table.
    """
    return _compiled(_sources(folder))


def _sources(folder: Path) -> Mapping[str, bytes]:
    """The text of every table by its name."""
    places = {
        place + entry.name.removesuffix(".toml"): entry.path
        for place in ("", TEXT, CORES)
        for entry in os.scandir(folder / place)
        if entry.name.endswith(".toml")
    }
    return {name: Path(places[name]).read_bytes() for name in sorted(places)}


def _checksum(sources: Mapping[str, bytes]) -> int:
    """Of the tables, and of this module, which compiles them."""
    checksum = zlib.crc32(Path(__file__).read_bytes())
    for name, text in sources.items():
        checksum = zlib.crc32(text, zlib.crc32(name.encode(), checksum))
    return checksum


def _keep(file: Path, text: str) -> None:
    """Keep the compiled file for later runs; where its folder cannot be written, they compile."""
    from vitconvert.atomic_write import atomic_file  # late: most runs find the file

    with suppress(OSError, UsageError), atomic_file(file) as writer:
        writer.write(text.encode())


def _compiled(sources: Mapping[str, bytes]) -> str:
    import tomllib  # late: most runs find the compiled file

    own: dict[str, Sections] = {}
    for name, text in sources.items():
        try:
            own[name] = tomllib.loads(text.decode())
        except ValueError as error:
            raise not_toml(builtin_label(name), error) from None
    dialects = {n: sections for n, sections in own.items() if CORES in n or "dialect" in sections}
    whole = dict(own)
    summaries: dict[str, DialectSummary] = {}
    for name in dialects:
        family, whole[name] = _with_ancestors(name, dialects)
        summaries[name] = _summary(name, family, whole[name])
    index = {"checksum": _checksum(sources), "tables": list(whole), "summaries": summaries}
    return "\n".join(map(json.dumps, [index, *whole.values()]))


def _with_ancestors(name: str, own: Mapping[str, Sections]) -> tuple[str, Sections]:
    """The table that one extends in the end, and its sections on top of all that it extends."""
    folder, _, stem = name.rpartition("/")
    parent = extended_by(own[name], stem, builtin_label(name), own, f"{folder}/" if folder else "")
    if parent is None:
        return name, own[name]
    family, sections = _with_ancestors(parent, own)
    return family, on_top(sections, own[name])


def extended_by(
    sections: Sections, name: str, label: str, known: Container[str], folder: str = ""
) -> str | None:
    """The table of `weights_map/` that another extends; None if it extends none.

    Args:
        sections: Of the other.
        name: Its own, within its folder.
        label: Its name in messages.
        known: The tables that there are.
        folder: In which its name, and that of the table that it extends, is looked up.

    Raises:
        TableError: There is no such table.
    """
    dialect = sections.get("dialect")
    if not isinstance(dialect, dict) or "extends" not in dialect:
        return None
    extended = str(dialect["extends"])
    parent = extended if extended.startswith(CORES) else folder + extended
    if parent not in known or extended == name:
        what = "itself" if parent in known else "no table"
        raise TableError(
            f"The table extends {extended!r}, which is {what}.", evidence={"file": label}
        )
    return parent


def on_top(parent: Sections, own: Sections) -> Sections:
    """Sections key by key; a table's own replace those of the table that it extends."""
    return {name: _section_on_top(name, parent, own) for name in {**parent, **own}}


def _section_on_top(name: str, parent: Sections, own: Sections) -> Any:
    if name not in parent:
        return own[name]
    base, top = parent[name], own.get(name, {})
    if name == "dialect":
        base = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    elif name == "preprocessing" and name not in own and _of_another_ecosystem(parent, own):
        base = {}  # the same tensors, but other code may prepare images: such a table says how
    elif name == "rows" and isinstance(base, dict) and isinstance(top, dict):
        # Else a parent's row for one of the two would count more than the child's for both.
        gathered = {key.removesuffix("{p}") for key in top if key.endswith(".{p}")}
        alone = {start + kind for start in gathered for kind in ("weight", "bias")}
        base = {key: value for key, value in base.items() if key not in alone}
    return _merged(base, top)


def _of_another_ecosystem(parent: Sections, own: Sections) -> bool:
    """Whether a table extends one of another library, which is no core of several."""
    top, base = own.get("dialect"), parent["dialect"]
    if not isinstance(top, dict) or str(top.get("extends")).startswith(CORES):
        return False
    return bool(top.get("ecosystem", base.get("ecosystem")) != base.get("ecosystem"))


def _merged(base: Any, top: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(top, dict):
        return top
    return base | {key: _merged(base[key], v) if key in base else v for key, v in top.items()}


def _summary(name: str, family: str, sections: Sections) -> DialectSummary:
    said: dict[str, Mapping[str, Any]] = {
        part: section if isinstance(section := sections.get(part), dict) else {}
        for part in ("dialect", "words", "rows", "ignore", "constants")
    }
    beside = [*said["ignore"], *said["constants"]]  # keys of theirs
    spelled = [*_texts_in(said["words"]), *_texts_in(said["rows"]), *beside]
    any_rest = (key[:-1].rpartition("}")[2] for key in beside if key.endswith("*"))
    groups = (group.split("|") for group in _texts_in(said["dialect"].get("requires", ())))
    return {
        "ecosystem": str(said["dialect"].get("ecosystem", name)),
        "family": family,
        "words": " ".join(sorted(set(WORD.findall("\n".join(spelled))))),
        "any_rest": list(any_rest),
        "required": [[_spelling_of(row.strip(), said["rows"]) for row in g] for g in groups],
    }


def _spelling_of(row: str, rows: Mapping[str, Any]) -> str:
    """How rows spell one of our tensors; what they do not have is a key of theirs, as it is."""
    stated = [rows[key] for key in (row, row.rpartition(".")[0] + ".{p}") if key in rows]
    if not stated:
        return row
    return next(_texts_in(stated), "")  # "": the table says that there is none


def _texts_in(value: object) -> Iterator[str]:
    """Every text of values in values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(inner)


def builtin_label(name: str) -> str:
    """The name of a file of `weights_map/` in messages."""
    return f"weights_map/{name}.toml"


def not_toml(label: str, problem: object) -> TableError:
    """A file that tomllib does not parse."""
    return TableError(
        "The table is not TOML.",
        evidence={"file": label, "problem": problem},
        hint="keys that hold dots or braces must be quoted.",
    )
