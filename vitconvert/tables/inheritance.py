"""The sections of a table of the user's own, on top of those of the table that it extends."""

import re
from pathlib import Path

from vitconvert.documents import check_values, read_bytes
from vitconvert.errors import SourceError, TableError, nearest
from vitconvert.toml_files import (
    Sections,
    compiled_tables,
    extended_by,
    not_toml,
    on_top,
    read_tables,
)

MOST_BYTES = 2**20  # of a table; the longest of ours has a hundredth
# tomllib looks through all parts of a key again for each of them (CPython 3.11).
_CHAIN = re.compile(r"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){32}")


def read_sections(file: Path, label: str) -> Sections:
    """The sections of any file.

    Raises:
        TableError: It cannot be read, is not TOML or extends what is no table.
    """
    own = _parse(_read(file, label), label)
    parent = extended_by(own, stem_of(file), label, compiled_tables().summaries)
    return own if parent is None else on_top(read_tables(parent), own)


def stem_of(file: Path) -> str:
    """The name of the dialect in a file."""
    return file.name.removesuffix(".toml")


def mistake(label: str, place: str, problem: object, hint: str | None = None) -> TableError:
    """A mistake at a place of a file."""
    return TableError(
        "The table does not parse.",
        evidence={"file": label, "place": place, "problem": problem},
        hint=hint,
    )


def place_of(section: str, key: str) -> str:
    """The name of an entry in messages: the section before the key, as in TOML."""
    return f"{section}.{key}" if key.isidentifier() else f'{section}."{key}"'


def _read(file: Path, label: str) -> str:
    try:
        return read_bytes(file, MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
    except ValueError as error:
        raise not_toml(label, error) from None
    except SourceError as error:
        near = nearest(file.name, (other.name for other in file.parent.glob("*.toml")), 3)
        raise TableError(
            "The table cannot be read.",
            evidence={"file": label, "problem": error.evidence["reason"]},
            hint=f"did you mean {' or '.join(str(file.parent / name) for name in near)}?"
            if near
            else None,
        ) from None


def _parse(text: str, label: str) -> Sections:
    import tomllib

    if chain := _CHAIN.search(text):
        raise not_toml(label, f"a key of too many parts: {chain[0][:40]}...")
    try:
        sections = tomllib.loads(text)
        check_values(sections)
    except (ValueError, RecursionError) as error:  # the first, too, of a number without end
        raise not_toml(label, error) from None
    return sections
