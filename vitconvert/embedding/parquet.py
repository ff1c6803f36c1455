"""Images inside Parquet files, as Hugging Face datasets keep them: a column of bytes."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.embedding.sources import (
    MOST_BYTES,
    MOST_TIMES,
    Item,
    Layout,
    Reading,
    Wanted,
    opened,
    too_large,
)
from vitconvert.errors import CorruptFile, UnsafeFile, UsageError, VitConvertError, some

_ROWS = 16  # read at a time: an image may have megabytes
_PAGE_TIMES = 8  # bytes of a page for each that it has in the file, beyond what one image may have
_LEAST = 2**20  # bytes that any group of rows may become


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
    """The types of columns that are kept, as `pa.type_for_alias` reads them.

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
            f"The column {field.name!r} cannot be kept: it holds no simple values.",
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


def read(file: str, key: str, column: str | None, layout: Layout, wanted: Wanted) -> Iterator[Item]:
    """The images of a file that are wanted, in order; those of a damaged part are errors.

    Args:
        file: A path or a URL.
        key: What it is called.
        column: That holds the images, if it is not clear.
        layout: Of the output.
        wanted: Says of each key whether the image is.

    Raises:
        SourceError: The file cannot be read.
        CorruptFile: It is no Parquet file.
        UsageError: Its columns are others.
    """
    images = image_column(file, column)
    for name, kind in kept_types(file, layout.kept).items():
        if layout.columns[layout.kept[name]] != kind:
            raise UsageError(
                f"The column {name!r} has another type in another file.",
                evidence={"file": file, "type": kind, "before": layout.columns[layout.kept[name]]},
            )
    first = 0
    with _opened(file) as (parquet, stream):
        for group in range(parquet.metadata.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            asked = bytearray(wanted(f"{key}#{n}") for n in range(first, first + count))
            rest = enumerate(asked, first)
            first += count
            if not any(asked):
                continue
            left: VitConvertError = CorruptFile(
                "This part of the Parquet file is damaged.", evidence={"file": file}
            )
            try:
                for values in _rows(parquet, stream, group, [images, *layout.kept]):
                    number, is_wanted = next(rest)
                    if is_wanted:
                        name = f"{key}#{number}"
                        columns = dict(zip(layout.kept.values(), values[1:], strict=True))
                        yield Item(name, _picture(values[0], name), columns)
            except UnsafeFile as error:
                left = error.with_traceback(None)  # whose frames hold what was read
            yield from (Item(f"{key}#{n}", left) for n, is_wanted in rest if is_wanted)


def _rows(
    parquet: pq.ParquetFile, file: Reading, group: int, columns: list[str]
) -> Iterator[tuple[pa.Scalar, ...]]:
    """The rows of a group, up to where it is damaged.

    Raises:
        UnsafeFile: They unpack to more than the file justifies.
    """
    left = parquet.metadata.row_group(group).num_rows
    image = parquet.schema_arrow.field(columns[0]).type
    read = [f"{columns[0]}.bytes" if pa.types.is_struct(image) else columns[0], *columns[1:]]
    try:
        room = _Room(parquet.metadata, file, group, read)
        batches = parquet.iter_batches(room.rows, row_groups=[group], columns=read)
    except (pa.ArrowException, OSError, ValueError):
        return
    while left:
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
        yield from zip(*(column[:left] for column in values), strict=True)
        left -= min(left, batch.num_rows)


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


def _picture(value: Any, key: str) -> bytes | VitConvertError:
    inner = value["bytes"] if value.is_valid and pa.types.is_struct(value.type) else value
    if inner.is_valid:
        content = inner.as_buffer()
        return content.to_pybytes() if content.size <= MOST_BYTES else too_large(key)
    # A path beside the bytes is somebody else's word, and no reason to open a file of ours.
    return CorruptFile("The row has no bytes of an image.", evidence={"image": key})


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


# What pages become when they are unpacked, read before any of them is: the footer may say anything,
# and what is allocated is what the header of each page says. Source:
# github.com/apache/parquet-format, parquet.thrift (PageHeader), and Thrift's compact protocol.

_HEADERS = (2**12, 2**24)  # bytes that are read for one: most have 30; Arrow takes 16 MiB
_DATA, _DICTIONARY = 0, 2  # types of pages; the other with values is a newer one of data
_DELTA_BYTES = 7  # an encoding: each value begins as the one before it


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page, as its header describes it.

    Attributes:
        packed: Bytes in the file.
        unpacked: Bytes of which its values are read.
        repeats: Whether a row may take few of them and become all of them.
    """

    packed: int
    unpacked: int
    repeats: bool


def pages(file: Reading, begin: int, end: int) -> Iterator[Page]:
    """The pages between two places of a file.

    Raises:
        ValueError: There are none.
    """
    while begin < end:
        header, size = _read_header(file, begin)
        kind, unpacked, packed = (header.get(number) for number in (1, 2, 3))
        if not isinstance(packed, int) or not isinstance(unpacked, int):
            raise ValueError("a page without a size")
        if not 0 <= packed < 2**31 or not 0 <= unpacked < 2**31:
            raise ValueError("a page of a size that it cannot have")
        encoding = header.get(5, {}).get(2) if kind == _DATA else header.get(8, {}).get(4)
        repeats = kind == _DICTIONARY or encoding == _DELTA_BYTES
        yield Page(packed=packed, unpacked=unpacked, repeats=repeats)
        begin += size + packed


def _read_header(file: Reading, place: int) -> tuple[dict[int, Any], int]:
    for size in _HEADERS:
        file.seek(place)
        reader = _Compact(file.read(size))
        try:
            return reader.struct(), reader.position
        except IndexError:
            continue
    raise ValueError("a page without an end of its header")


class _Compact:
    """Reads structs of Thrift's compact protocol: what there is in headers of pages."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Its fields by their numbers."""
        if depth > 4:
            raise ValueError("a header within headers")
        found: dict[int, Any] = {}
        number = 0
        while start := self._byte():
            number = number + (start >> 4) if start >> 4 else self._whole()
            found[number] = self._value(start & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._whole()
            case 7 | 8:
                length = 8 if kind == 7 else self._natural()
                self.position += length
                return None
            case 12:
                return self.struct(depth + 1)
        raise ValueError("a header with more than numbers")

    def _whole(self) -> int:
        value = self._natural()
        return value >> 1 ^ -(value & 1)

    def _natural(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number without an end")

    def _byte(self) -> int:
        byte = self._content[self.position]
        self.position += 1
        return byte
