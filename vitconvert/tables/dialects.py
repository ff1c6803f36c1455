"""Finding dialects: by name, by ecosystem, or by the keys of a file."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

from vitconvert.config import TextConfig, ViTConfig
from vitconvert.errors import TableError, UsageError, nearest, printable
from vitconvert.tables.candidates import ecosystem_of, likely_dialects, may_find_required
from vitconvert.tables.inheritance import (
    TEXT,
    builtin_label,
    builtin_sections,
    builtin_texts,
    read_sections,
    stem_of,
)
from vitconvert.tables.names import Names
from vitconvert.tables.rows import Row
from vitconvert.tables.table import Table, table_of
from vitconvert.tables.table_reader import TableReader
from vitconvert.toml_files import tables_dir


class _BuiltinTables(Mapping[str, Table]):
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for."""

    def __getitem__(self, name: str) -> Table:
        if name not in builtin_texts():
            raise KeyError(name)
        return _builtin_table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(builtin_texts())

    def __len__(self) -> int:
        return len(builtin_texts())


@functools.cache
def _builtin_table(name: str) -> Table:
    return table_of(TableReader(name, builtin_label(name), builtin_sections(name)))


def builtin_tables() -> Mapping[str, Table]:
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for.

    Raises:
        TableError: When a table that does not parse is asked for.
    """
    return _BuiltinTables()


@functools.cache
def text_table(name: str) -> Table:
    """The table of a kind of text tower, of `weights_map/text/`.

    Raises:
        TableError: There is none of this name, or it does not parse.
    """
    label = builtin_label(TEXT + name)
    if name not in builtin_texts(TEXT):
        known = ", ".join(builtin_texts(TEXT))
        raise TableError("There is no such table.", evidence={"file": label, "there are": known})
    return table_of(TableReader(name, label, builtin_sections(name, TEXT), TextConfig))


def text_tables_beside(table: Table, config: ViTConfig) -> list[Table]:
    """The tables of text towers that a dialect may hold beside this image tower."""
    return [text_table(t.name) for t in table.text_towers if t.holds_for(config)]


def likely_tables(names: Names) -> list[Table]:
    """The dialects that may explain these names and find what they require, in order of name.

    The others do not, and were not parsed to know it. Those that are `named_only` are left out.
    """
    likely = likely_dialects(names.alike.keys())
    tables = (_builtin_table(dialect) for dialect in likely if may_find_required(dialect, names))
    return [table for table in tables if not table.named_only and _finds_required(table, names)]


def _finds_required(table: Table, names: Names) -> bool:
    """Whether all parts of a row of each group of `requires` are there."""
    found = {
        name
        for name in set(itertools.chain(*table.requires)) & table.row_of.keys()
        if _finds(table.row_of[name], names)
    }
    return all(found.union(table.reader.section("ignore")) & set(group) for group in table.requires)


def _finds(row: Row, names: Names) -> bool:
    return any(
        all(any(names.spelled_by(part.key)) for part in alternative.parts)
        for alternative in row.alternatives
    )


def tables_of(ecosystem: str) -> list[Table]:
    """All dialects of an ecosystem; none where only a table of the user's own is of it."""
    names = (name for name in builtin_texts() if ecosystem_of(name) == ecosystem)
    return [_builtin_table(name) for name in names]


def find_tables(name: str) -> list[Table]:
    """All dialects of the ecosystem of this name, or the dialect of this name.

    Raises:
        UsageError: There is none; names the nearest.
    """
    if found := tables_of(name) or [_builtin_table(d) for d in builtin_texts() if d == name]:
        return found
    ecosystems = {dialect: ecosystem_of(dialect) for dialect in builtin_texts()}
    near = nearest(name, sorted({*ecosystems, *ecosystems.values()}), 5, alike=0)
    raise UsageError(
        f"There is no dialect {name!r}.",
        evidence={"nearest": ", ".join(near)} if near else {},
        hint="`vitconvert list` describes all of them.",
    )


def is_of(name: str, file: str | PathLike[str] | None) -> bool:
    """Whether a file has the dialect of this name: it is called so, but for its suffix."""
    return file is not None and printable(stem_of(Path(file))) == name


def read_table(file: Path) -> Table:
    """Parse a dialect from a TOML file.

    Raises:
        TableError: With the place in the file and what is wrong there.
    """
    builtin = file.parent == tables_dir()
    label = builtin_label(stem_of(file)) if builtin else str(file)
    name = printable(stem_of(file))  # it is published with what is read by the table
    try:
        table = table_of(TableReader(name, label, read_sections(file, label)))
        table.check()
    except RecursionError:
        raise TableError(
            "The table nests words, brackets or conditions too deep.", evidence={"file": label}
        ) from None
    return table
