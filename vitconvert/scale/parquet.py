"""Images inside Parquet files, as Hugging Face datasets keep them: a column of bytes."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.errors import CorruptFile, IntegrityError, UsageError
from vitconvert.scale.places import opened, state_of
from vitconvert.scale.units import Item, Unit

_ROWS = 64  # read at a time: a photograph may have megabytes


def split(file: str, rows: int) -> Iterator[tuple[int, int]]:
    """Which rows are units: where each begins, and how many it has.

    Raises:
        CorruptFile: It is no Parquet file.
    """
    with _opened(file) as parquet:
        total = parquet.metadata.num_rows
    for begin in range(0, total, rows):
        yield begin, min(rows, total - begin)


def image_column(file: str, named: str | None) -> str:
    """The column that holds the images: the one that is named, or the only one that may.

    Raises:
        UsageError: There is none, or several are.
    """
    with _opened(file) as parquet:
        schema = parquet.schema_arrow
    declared = _declared(schema)
    candidates = declared or [field.name for field in schema if _holds_bytes(field.type)]
    if named is not None and named in schema.names and _holds_bytes(schema.field(named).type):
        return named
    if named is None and len(candidates) == 1:
        return candidates[0]
    raise UsageError(
        f"No column {named!r} of this file holds images."
        if named
        else "It is not clear which column of this file holds the images.",
        evidence={"file": file, "columns": ", ".join(schema.names)},
        hint=f"--image-column {candidates[0] if candidates else 'NAME'} says which.",
    )


def kept_types(file: str, names: Iterable[str]) -> dict[str, str]:
    """The types of columns that go along, as `pa.type_for_alias` reads them.

    Raises:
        UsageError: There is no such column, or it has parts.
    """
    with _opened(file) as parquet:
        schema = parquet.schema_arrow
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise UsageError(
            f"There is no column {missing[0]!r} to keep.",
            evidence={"file": file, "columns": ", ".join(schema.names)},
        )
    return {name: _alias(schema.field(name), file) for name in names}


def _alias(field: pa.Field, file: str) -> str:
    try:
        pa.type_for_alias(str(field.type))
    except ValueError:
        raise UsageError(
            f"The column {field.name!r} cannot go along: it holds no simple values.",
            evidence={"file": file, "type": field.type},
        ) from None
    return str(field.type)


def read(unit: Unit, column: str, kept: Iterable[str] = ()) -> Iterator[Item]:
    """The images of a unit, in order; those of a damaged part are errors.

    Raises:
        IntegrityError: The file is another than when the plan was made.
    """
    if state_of(unit.file) != unit.state:
        raise IntegrityError(
            "The file changed after the plan was made.",
            evidence={"file": unit.file},
            hint="a new output, or the file as it was.",
        )
    number = unit.begin
    end = unit.begin + unit.rows
    with _opened(unit.file) as parquet:
        for group, first in _groups(parquet, unit.begin, end):
            number = max(first, unit.begin)
            last = min(first + parquet.metadata.row_group(group).num_rows, end)
            for item in _group(parquet, group, first, unit, column, tuple(kept)):
                yield item
                number += 1
            for missing in range(number, last):
                yield Item(f"{unit.file}#{missing}", _damaged(unit.file))


def _group(
    parquet: pq.ParquetFile,
    group: int,
    first: int,
    unit: Unit,
    column: str,
    kept: tuple[str, ...],
) -> Iterator[Item]:
    """The images of one group of rows that a unit has, up to where the group is damaged."""
    number = first
    batches = parquet.iter_batches(_ROWS, row_groups=[group], columns=[column, *kept])
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError):
            return
        if batch is None:
            return
        for row in batch.to_pylist():
            if unit.begin <= number < unit.begin + unit.rows:
                key = f"{unit.file}#{number}"
                yield Item(key, _picture(row[column], key), {name: row[name] for name in kept})
            number += 1


def _groups(parquet: pq.ParquetFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Groups of rows that lie between two rows, and the first row of each."""
    first = 0
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if first < end and begin < first + rows:
            yield group, first
        first += rows


def _picture(value: Any, key: str) -> bytes | CorruptFile:
    content = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(content, bytes):
        return content
    # A path beside the bytes is somebody else's word, and no reason to open a file of ours.
    return CorruptFile("The row has no bytes of an image.", evidence={"image": key})


def _damaged(file: str) -> CorruptFile:
    return CorruptFile("This part of the Parquet file is damaged.", evidence={"file": file})


def _declared(schema: pa.Schema) -> list[str]:
    """Columns that the `datasets` library wrote as images."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = [name for name, what in features.items() if what.get("_type") == "Image"]
    except (KeyError, ValueError, TypeError, AttributeError):
        return []
    return [name for name in found if name in schema.names]


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return "bytes" in names and _holds_bytes(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


@contextmanager
def _opened(file: str) -> Iterator[pq.ParquetFile]:
    with opened(file) as stream:
        try:
            parquet = pq.ParquetFile(stream)
        except (pa.ArrowException, OSError) as error:
            raise CorruptFile(
                "This is no Parquet file, or a damaged one.",
                evidence={"file": file, "why": error},
            ) from None
        yield parquet
