"""Images inside Parquet files, as Hugging Face datasets keep them: a column of bytes."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.errors import CorruptFile, UsageError, VitConvertError, some
from vitconvert.scale.places import MOST_BYTES, check_state, opened, too_large
from vitconvert.scale.units import Item, Unit

_ROWS = 16  # read at a time: a photograph may have megabytes


def split(file: str, rows: int) -> Iterator[tuple[int, int]]:
    """Which rows are units: where each begins, and how many it has.

    Raises:
        CorruptFile: It is no Parquet file.
    """
    with _opened(file) as parquet:
        total: int = parquet.metadata.num_rows
    for begin in range(0, total, rows):
        yield begin, min(rows, total - begin)


def image_column(file: str, named: str | None) -> str:
    """The column that holds the images: the one that is named, or the only one that may.

    Raises:
        UsageError: There is none, or several are.
    """
    schema = _schema(file)
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
    schema = _schema(file)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise UsageError(
            f"There is no column {missing[0]!r} to keep.",
            evidence={"file": file, "columns": ", ".join(schema.names)},
        )
    return {name: _alias(schema.field(name), file) for name in names}


def _alias(field: pa.Field, file: str) -> str:
    # A column of few different values becomes one of values.
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    try:
        pa.type_for_alias(str(kind))
    except ValueError:
        raise UsageError(
            f"The column {field.name!r} cannot go along: it holds no simple values.",
            evidence={"file": file, "type": field.type},
        ) from None
    return str(kind)


def _schema(file: str) -> pa.Schema:
    with _opened(file) as parquet:
        schema = parquet.schema_arrow
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise CorruptFile(
            f"Several columns are called {twice[0]!r}.",
            evidence={"file": file, "columns": some(schema.names, 9)},
        )
    return schema


def read(unit: Unit, column: str, kept: Mapping[str, str]) -> Iterator[Item]:
    """The images of a unit, in order; those of a damaged part are errors.

    Args:
        unit: Of a Parquet file.
        column: That holds the images.
        kept: Columns that go along -> what they are called there.

    Raises:
        SourceError: The file is gone, another than when the plan was made, or cannot be read.
    """
    check_state(unit.file, unit.state)
    end = unit.begin + unit.rows
    with _opened(unit.file) as parquet:
        for group, first in _groups(parquet, unit.begin, end):
            number = max(first, unit.begin)
            last = min(first + parquet.metadata.row_group(group).num_rows, end)
            rows = _rows(parquet, group, [column, *kept], number - first, last - first)
            for values in rows:
                key = f"{unit.file}#{number}"
                along = dict(zip(kept.values(), values[1:], strict=True))
                yield Item(key, _picture(values[0], key), along)
                number += 1
            for missing in range(number, last):
                yield Item(f"{unit.file}#{missing}", _damaged(unit.file))


def _rows(
    parquet: pq.ParquetFile, group: int, columns: list[str], begin: int, end: int
) -> Iterator[tuple[pa.Scalar, ...]]:
    """The rows of a group from one to another, up to where the group is damaged."""
    number = 0
    batches = parquet.iter_batches(_ROWS, row_groups=[group], columns=columns)
    while number < end:
        try:
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)  # offsets, and that text is text
        except (pa.ArrowException, OSError, ValueError):
            return
        if batch is None:
            return
        skipped = max(0, begin - number)
        some_rows = batch.slice(skipped, max(0, end - number - skipped))
        yield from zip(*(_values(some_rows.column(name)) for name in columns), strict=True)
        number += batch.num_rows


def _values(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _groups(parquet: pq.ParquetFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Groups of rows that lie between two rows, and the first row of each."""
    first = 0
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if first < end and begin < first + rows:
            yield group, first
        first += rows


def _picture(value: Any, key: str) -> bytes | VitConvertError:
    inner = value["bytes"] if value.is_valid and pa.types.is_struct(value.type) else value
    if inner.is_valid:
        content: bytes = inner.as_py()
        return content if len(content) <= MOST_BYTES else too_large(key)
    # A path beside the bytes is somebody else's word, and no reason to open a file of ours.
    return CorruptFile("The row has no bytes of an image.", evidence={"image": key})


def _damaged(file: str) -> CorruptFile:
    return CorruptFile("This part of the Parquet file is damaged.", evidence={"file": file})


def _declared(schema: pa.Schema) -> list[str]:
    """Columns that the `datasets` library wrote as images."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = [name for name, what in features.items() if what.get("_type") == "Image"]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return []
    return [name for name in found if name in schema.names]


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        inner = [kind.field(i).type for i in kind.get_all_field_indices("bytes")]
        return len(inner) == 1 and _is_bytes(inner[0])
    return _is_bytes(kind)


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


@contextmanager
def _opened(file: str) -> Iterator[pq.ParquetFile]:
    with opened(file) as stream:
        try:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            # Images have bytes; numbers of rows are but what the file says.
            _require(parquet.metadata.num_rows <= stream.size(), "more rows than bytes")
            groups = range(parquet.metadata.num_row_groups)
            sizes = [parquet.metadata.row_group(group).num_rows for group in groups]
            _require(min(sizes, default=0) >= 0, "less than no rows")
            _require(sum(sizes) == parquet.metadata.num_rows, "other numbers of rows in its parts")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptFile(
                "This is no Parquet file, or a damaged one.",
                evidence={"file": file, "why": error},
            ) from None
        yield parquet


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
