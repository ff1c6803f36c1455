"""Images that are files of their own: their lists in the plan, and reading them."""

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.scale.folders import Folder
from vitconvert.scale.places import Found, is_url, picture, state_of
from vitconvert.scale.units import Item, Unit

_SCHEMA = pa.schema(
    {"key": pa.string(), "group": pa.string(), "size": pa.int64(), "changed": pa.int64()}
)


def write_list(folder: Folder, name: str, found: list[Found]) -> None:
    """Write which files a unit has, and what they were like."""
    states = [file.state or (None, None) for file in found]
    columns: list[list[Any]] = [
        [file.name for file in found],
        [file.group for file in found],
        [size for size, _ in states],
        [changed for _, changed in states],
    ]
    table = pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), schema=_SCHEMA)
    with folder.writing(name) as file:
        pq.write_table(table, file, compression="zstd")


def keys(folder: Folder, unit: Unit) -> Any:
    """The keys of a unit, as an array of Arrow."""
    with folder.open(unit.file) as file:
        return pq.read_table(file, columns=["key"]).column("key").combine_chunks()


def read(folder: Folder, unit: Unit) -> Iterator[Item]:
    """The images of a unit, in order."""
    with folder.open(unit.file) as file:
        rows = pq.read_table(file).to_pydict()
    for key, group, *state in zip(*(rows[name] for name in _SCHEMA.names), strict=True):
        place = key if is_url(key) else os.path.join(unit.base, key)  # noqa: PTH118
        now = state_of(place)
        changed = now is not None and state[0] is not None and now != tuple(state)
        yield Item(key, picture(place), {"class": group}, changed)
