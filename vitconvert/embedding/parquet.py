"""Images inside Parquet files, as Hugging Face datasets keep them: a column of bytes."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.embedding.pages import pages
from vitconvert.embedding.places import (
    MOST_BYTES,
    MOST_TIMES,
    Reading,
    check_state,
    opened,
    too_large,
)
from vitconvert.embedding.units import Item, Unit, key_of
from vitconvert.errors import CorruptFile, UnsafeFile, UsageError, VitConvertError, some

_ROWS = 16  # read at a time: a photograph may have megabytes
_PAGE_TIMES = 8  # bytes of a page for each that it has in the file, beyond what one image may have
_LEAST = 2**20  # bytes that any group of rows may become


def split(file: str, rows: int) -> Iterator[tuple[int, int]]:
    """Which rows are units: where each begins, and how many it has.

    Raises:
        CorruptFile: It is no Parquet file.
    """
    with _opened(file) as (parquet, _):
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
    with _opened(file) as (parquet, _):
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
    check_state(unit.place, unit.state)
    name = key_of(unit.file)
    end = unit.begin + unit.rows
    with _opened(unit.place) as (parquet, file):
        for group, first in _groups(parquet, unit.begin, end):
            number = max(first, unit.begin)
            last = min(first + parquet.metadata.row_group(group).num_rows, end)
            rows = _rows(parquet, file, group, [column, *kept], number - first, last - first)
            left: VitConvertError = _damaged(unit.file)
            try:
                for values in rows:
                    key = f"{name}#{number}"
                    along = dict(zip(kept.values(), values[1:], strict=True))
                    yield Item(key, _picture(values[0], key), along)
                    number += 1
            except UnsafeFile as error:
                left = error.with_traceback(None)  # whose frames hold what was read
            for missing in range(number, last):
                yield Item(f"{name}#{missing}", left)


def _rows(
    parquet: pq.ParquetFile, file: Reading, group: int, columns: list[str], begin: int, end: int
) -> Iterator[tuple[pa.Scalar, ...]]:
    """The rows of a group from one to another, up to where the group is damaged.

    Raises:
        UnsafeFile: They unpack to more than the file justifies.
    """
    number = 0
    image = parquet.schema_arrow.field(columns[0]).type
    read = [f"{columns[0]}.bytes" if pa.types.is_struct(image) else columns[0], *columns[1:]]
    try:
        room = _Room(parquet.metadata, file, group, read)
        batches = parquet.iter_batches(room.rows, row_groups=[group], columns=read)
    except (pa.ArrowException, OSError, ValueError):
        return
    while number < end:
        try:
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)  # offsets, and that text is text
        except (pa.ArrowException, OSError, ValueError):
            return
        if batch is None:
            return
        values = [_values(batch.column(name)) for name in columns]
        room.take(sum(column.nbytes for column in values))
        wanted = slice(max(0, begin - number), max(0, end - number))
        yield from zip(*(column[wanted] for column in values), strict=True)
        number += batch.num_rows


class _Room:
    """What a group of rows may become in memory, and how many rows at a time.

    Raises:
        UnsafeFile: Its pages become more.
        ValueError: It has none.
    """

    def __init__(
        self, footer: pq.FileMetaData, file: Reading, group: int, names: list[str]
    ) -> None:
        found = [page for place in _chunks(footer, group, names) for page in pages(file, *place)]
        self._file = file
        self._left = max(MOST_BYTES // footer.num_row_groups, _LEAST)
        self._left += MOST_TIMES * sum(page.packed for page in found)
        if any(page.unpacked > max(MOST_BYTES, _PAGE_TIMES * page.packed) for page in found):
            raise _too_much(file)
        if sum(page.unpacked for page in found) > self._left:
            raise _too_much(file)
        repeated = sum(page.unpacked for page in found if page.repeats)
        self.rows = max(1, min(_ROWS, MOST_BYTES // max(1, repeated)))

    def take(self, size: int) -> None:
        """So much of it is used: a value that stands in many rows is so many values.

        Raises:
            UnsafeFile: There is not so much left.
        """
        self._left -= size
        if self._left < 0:
            raise _too_much(self._file)


def _chunks(footer: pq.FileMetaData, group: int, names: list[str]) -> Iterator[tuple[int, int]]:
    """Where the columns of a group begin, and end."""
    for number in range(footer.num_columns):
        column = footer.row_group(group).column(number)
        if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in names):
            begin = min(column.data_page_offset, column.dictionary_page_offset or 2**63)
            yield begin, begin + column.total_compressed_size


def _too_much(file: Reading) -> UnsafeFile:
    return UnsafeFile(
        "This part of the Parquet file unpacks to far more than it is.",
        evidence={"file": file.name},
    )


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
        content = inner.as_buffer()
        return content.to_pybytes() if content.size <= MOST_BYTES else too_large(key)
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
def _opened(file: str) -> Iterator[tuple[pq.ParquetFile, Reading]]:
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
        yield parquet, stream


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
