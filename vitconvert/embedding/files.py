"""Images that are files of their own: their lists in the plan, and reading them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.embedding.folders import Folder
from vitconvert.embedding.places import Found, absolute, is_url, picture, state_of
from vitconvert.embedding.units import Item, Unit, decoded, encoded, key_of, place_of
from vitconvert.errors import CorruptFile

_SCHEMA = pa.schema(
    {"name": pa.binary(), "group": pa.binary(), "size": pa.int64(), "changed": pa.int64()}
)


def write_list(folder: Folder, name: str, found: list[Found]) -> None:
    """Write which files a unit has, and what they were like."""
    states = [file.state or (None, None) for file in found]
    columns: list[list[Any]] = [
        [encoded(file.name) for file in found],
        [None if file.group is None else encoded(file.group) for file in found],
        [size for size, _ in states],
        [changed for _, changed in states],
    ]
    table = pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), schema=_SCHEMA)
    with folder.writing(name) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def names(folder: Folder, unit: Unit) -> list[str]:
    """The names of a unit's files, as they were given.

    Raises:
        CorruptFile: The list is damaged.
    """
    return _read(folder, unit)["name"]


def places(folder: Folder, unit: Unit) -> Iterator[str]:
    """Where a unit's files are, from any directory."""
    return (absolute(place_of(name, unit.base)) for name in names(folder, unit))


def read(folder: Folder, unit: Unit) -> Iterator[Item]:
    """The images of a unit, in order.

    Raises:
        CorruptFile: Their list is damaged.
    """
    rows = _read(folder, unit)
    for name, group, *state in zip(*(rows[column] for column in _SCHEMA.names), strict=True):
        place = place_of(name, unit.base)
        # Of objects, this would take longer than to compute them.
        now = None if is_url(place) else state_of(place)
        changed = now is not None and state[0] is not None and now != tuple(state)
        yield Item(key_of(name), picture(place), {"class": group}, changed)


def _read(folder: Folder, unit: Unit) -> dict[str, list[Any]]:
    try:
        with folder.open(unit.file) as file:
            table = pq.read_table(file, schema=_SCHEMA, page_checksum_verification=True)
        if table.num_rows != unit.rows:
            raise ValueError(f"{table.num_rows} files of {unit.rows}")
        found: dict[str, list[Any]] = table.to_pydict()
        found["name"] = [decoded(name) for name in found["name"]]
        found["group"] = [group and decoded(group) for group in found["group"]]
    except (pa.ArrowException, OSError, ValueError, AttributeError) as error:
        raise CorruptFile(
            "A list of files in the plan is damaged, or cannot be read.",
            evidence={"output": folder, "list": unit.file, "why": error},
            hint="plan it anew, into a new output.",
        ) from None
    return found
