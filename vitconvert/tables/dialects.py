"""Finding dialects: by name, by ecosystem, or by the keys of a file."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path

from vitconvert.errors import UsageError
from vitconvert.tables.directory import tables_dir
from vitconvert.tables.reading import Reader
from vitconvert.tables.rows import may_spell
from vitconvert.tables.screening import ecosystem_of, likely_dialects
from vitconvert.tables.sections import (
    builtin_label,
    builtin_sections,
    builtin_texts,
    read_sections,
    stem_of,
)
from vitconvert.tables.table import Table, table_of
from vitconvert.tables.templates import skeleton_of


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
    return table_of(Reader(name, builtin_label(name), builtin_sections(name)))


def builtin_tables() -> Mapping[str, Table]:
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for.

    Raises:
        TableError: When a table that does not parse is asked for.
    """
    return _BuiltinTables()


def likely_tables(keys: Iterable[str]) -> list[Table]:
    """The dialects that may explain these keys and find what they require, in order of name.

    The others do not, and were not parsed to know it. Those that are `named_only` are left out.
    """
    skeletons = {skeleton_of(key) for key in keys}
    tables = (_builtin_table(name) for name in likely_dialects(skeletons))
    text = "\n".join(skeletons)
    return [table for table in tables if not table.named_only and _may_find_required(table, text)]


def _may_find_required(table: Table, skeletons: str) -> bool:
    return all(any(_may_find(table, name, skeletons) for name in group) for group in table.requires)


def _may_find(table: Table, name: str, skeletons: str) -> bool:
    """Whether keys of these skeletons may fill a row, or be an ignored key."""
    if name in table.row_of:
        return table.row_of[name].may_use(skeletons)
    return may_spell(name, table.reader.words, skeletons)


def find_tables(name: str) -> list[Table]:
    """All dialects of the ecosystem of this name, or the dialect of this name.

    Raises:
        UsageError: There is none; names the nearest.
    """
    ecosystems = {dialect: ecosystem_of(dialect) for dialect in builtin_texts()}
    found = [dialect for dialect, ecosystem in ecosystems.items() if name == ecosystem]
    found = found or [dialect for dialect in ecosystems if name == dialect]
    if found:
        return [_builtin_table(dialect) for dialect in found]
    near = get_close_matches(name, sorted({*ecosystems, *ecosystems.values()}), n=3)
    raise UsageError(
        f"There is no dialect {name!r}.",
        evidence={"dialects": ", ".join(ecosystems)},
        hint=f"Did you mean {' or '.join(near)}?" if near else "`vitconvert list` describes them.",
    )


def read_table(file: Traversable | Path) -> Table:
    """Parse a dialect from a TOML file.

    Raises:
        TableError: With the place in the file and what is wrong there.
    """
    builtin = not isinstance(file, Path) or file.parent == tables_dir()
    label = builtin_label(stem_of(file)) if builtin else str(file)
    table = table_of(Reader(stem_of(file), label, read_sections(file, label)))
    table.check()
    return table
