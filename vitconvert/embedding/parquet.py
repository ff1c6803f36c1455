"""Images inside Parquet files, as Hugging Face datasets keep them: a column of bytes."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vitconvert.embedding.files import (
    MOST_BYTES,
    MOST_TIMES,
    Item,
    Wanted,
    WatchedFile,
    grouped,
    opened,
    too_large,
)
from vitconvert.errors import CorruptFile, UnsafeFile, UsageError, VitConvertError, some

_ROWS = 16  # read at a time: an image may have megabytes
_PAGE_TIMES = 8  # bytes of a page for each that it has in the file, beyond what one image may have
_LEAST = 2**20  # bytes that any group of rows may become
_DAMAGE = (pa.ArrowException, OSError, ValueError)


def image_column(file: str, schema: pa.Schema, named: str | None) -> str:
    """The column that holds the images: the one that is named, or the only one that may.

    Raises:
        UsageError: There is none, or several are.
    """
    holding = [field.name for field in schema if _holds_bytes(field.type)]
    declared: list[str] = []  # by the `datasets` library, as images
    with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = [name for name, what in features.items() if what.get("_type") == "Image"]
        declared = [name for name in found if name in schema.names]
    candidates = declared or holding
    if named is not None and named in holding:
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


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        inner = [kind.field(i).type for i in kind.get_all_field_indices("bytes")]
        return len(inner) == 1 and _holds_bytes(inner[0]) and not pa.types.is_struct(inner[0])
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def kept_types(file: str, names: Iterable[str]) -> dict[str, str]:
    """The types of columns that are kept, as `pa.type_for_alias` reads them.

    Raises:
        UsageError: There is no such column, or it has parts.
    """
    with _opened(file) as (parquet, _):
        return _kept_types(file, parquet.schema_arrow, names)


def _kept_types(file: str, schema: pa.Schema, names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        if name not in schema.names:
            raise UsageError(
                f"There is no column {name!r} to keep.",
                evidence={"file": file, "columns": ", ".join(schema.names)},
            )
        kind = schema.field(name).type
        if pa.types.is_dictionary(kind):  # a column of few different values becomes one of values
            kind = kind.value_type
        try:
            pa.type_for_alias(str(kind))
        except ValueError:
            raise UsageError(
                f"The column {name!r} cannot be kept: it holds no simple values.",
                evidence={"file": file, "type": schema.field(name).type},
            ) from None
        found[name] = str(kind)
    return found


def read(
    file: str,
    key: str,
    column: str | None,
    kept: Mapping[str, str],
    types: Mapping[str, str],
    wanted: Wanted,
) -> Iterator[Item]:
    """The images of a file that are wanted, in order; those of a damaged part are errors.

    Args:
        file: A path or a URL.
        key: What it is called.
        column: That holds the images, if it is not clear.
        kept: Columns that are kept -> their names in the output.
        types: The types of these, as the output has them.
        wanted: Says of each key whether the image is.

    Raises:
        SourceError: The file cannot be read.
        CorruptFile: It is no Parquet file.
        UsageError: Its columns are others.
    """
    with _opened(file) as (parquet, stream):
        columns = [image_column(file, parquet.schema_arrow, column), *kept]
        for name, kind in _kept_types(file, parquet.schema_arrow, kept).items():
            if types[kept[name]] != kind:
                raise UsageError(
                    f"The column {name!r} has another type in another file.",
                    evidence={"file": file, "type": kind, "before": types[kept[name]]},
                )
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            keys = (f"{key}#{n}" for n in range(first, first + count))
            asked = bytearray(chain.from_iterable(map(wanted, grouped(keys))))
            rest = enumerate(asked, first)
            first += count
            if not any(asked):
                continue
            left: VitConvertError = CorruptFile(
                "This part of the Parquet file is damaged.", evidence={"file": file}
            )
            try:
                for image, *values in _rows(parquet, stream, group, columns):
                    number, is_wanted = next(rest)
                    if is_wanted:
                        name = f"{key}#{number}"
                        beside = dict(zip(kept.values(), values, strict=True))
                        yield Item(name, _picture(image, name), beside)
            except _DAMAGE:
                pass
            except UnsafeFile as error:
                left = error.with_traceback(None)  # whose frames hold what was read
            yield from (Item(f"{key}#{n}", left) for n, is_wanted in rest if is_wanted)


def _picture(image: pa.Scalar, key: str) -> bytes | VitConvertError:
    if not image.is_valid:
        # A path beside the bytes is somebody else's word, and no reason to open a file of ours.
        return CorruptFile("The row has no bytes of an image.", evidence={"image": key})
    content = image.as_buffer()
    return content.to_pybytes() if content.size <= MOST_BYTES else too_large(key)


@contextmanager
def _opened(file: str) -> Iterator[tuple[pq.ParquetFile, WatchedFile]]:
    with opened(file) as stream:
        try:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            stated = parquet.metadata.num_rows
            groups = range(parquet.metadata.num_row_groups)
            sizes = [parquet.metadata.row_group(group).num_rows for group in groups]
            # Images have bytes; numbers of rows are but what the file says.
            if stated > stream.size() or min(sizes, default=0) < 0 or sum(sizes) != stated:
                raise ValueError("its numbers of rows cannot be")
            if twice := [
                n for n, count in Counter(parquet.schema_arrow.names).items() if count > 1
            ]:
                raise CorruptFile(
                    f"Several columns are called {twice[0]!r}.",
                    evidence={"file": file, "columns": some(parquet.schema_arrow.names, 9)},
                )
        except _DAMAGE as error:
            raise CorruptFile(
                "This is no Parquet file, or a damaged one.",
                evidence={"file": file, "why": error},
            ) from None
        yield parquet, stream


def _rows(
    parquet: pq.ParquetFile, file: WatchedFile, group: int, columns: list[str]
) -> Iterator[tuple[pa.Scalar, ...]]:
    """The rows of a group, up to where it is damaged.

    Raises:
        ValueError, OSError, pyarrow.ArrowException: It is damaged there.
        UnsafeFile: They unpack to more than the file justifies.
    """
    footer = parquet.metadata.row_group(group)
    image = parquet.schema_arrow.field(columns[0]).type
    read = [f"{columns[0]}.bytes" if pa.types.is_struct(image) else columns[0], *columns[1:]]
    unsafe = UnsafeFile(
        "This part of the Parquet file unpacks to far more than it is.",
        evidence={"file": file.name},
    )
    # What pages become when they are unpacked is looked at before any of them is.
    found: list[tuple[int, int, bool]] = []
    for column in map(footer.column, range(parquet.metadata.num_columns)):
        if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in read):
            begin = min(column.data_page_offset, column.dictionary_page_offset or 2**63)
            found += pages(file, begin, begin + column.total_compressed_size)
    room = max(MOST_BYTES // parquet.metadata.num_row_groups, _LEAST)
    room += MOST_TIMES * sum(packed for packed, _, _ in found)
    too_much = (unpacked > max(MOST_BYTES, _PAGE_TIMES * packed) for packed, unpacked, _ in found)
    if any(too_much) or sum(unpacked for _, unpacked, _ in found) > room:
        raise unsafe
    # A row may take few bytes of these pages, and become all of them.
    repeated = sum(unpacked for _, unpacked, repeats in found if repeats)
    rows = max(1, min(_ROWS, MOST_BYTES // max(1, repeated)))
    left = footer.num_rows
    for batch in parquet.iter_batches(rows, row_groups=[group], columns=read):
        batch.validate(full=True)  # offsets, and that text is text
        values = [batch.column(name) for name in columns]
        values = [v.dictionary_decode() if pa.types.is_dictionary(v.type) else v for v in values]
        if pa.types.is_struct(image):
            values[0] = pc.struct_field(values[0], "bytes")
        room -= sum(column.nbytes for column in values)
        if room < 0:  # a value that stands in many rows is so many values
            raise unsafe
        yield from zip(*(column[:left] for column in values), strict=True)
        left -= min(left, batch.num_rows)


# The footer may say anything: what is allocated is what the header of each page says.
# Source: github.com/apache/parquet-format, parquet.thrift (PageHeader), and
# github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.

_HEADERS = (2**12, 2**24)  # bytes that are read for one: most have 30; Arrow takes 16 MiB
_DATA, _DICTIONARY = 0, 2  # types of pages; the other with values is a newer one of data
_DELTA_BYTES = 7  # an encoding: each value begins as the one before it


def pages(file: WatchedFile, begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """The pages between two places of a file, as their headers describe them.

    Returns:
        Bytes in the file; bytes when it is unpacked; whether rows may share them.

    Raises:
        ValueError: There are none.
    """
    while begin < end:
        for size in _HEADERS:
            file.seek(begin)
            content = file.read(size)
            with suppress(IndexError):
                header, length = _struct(content)
                break
        else:
            raise ValueError("a page without an end of its header")
        unpacked, packed = header.get(2), header.get(3)
        if not isinstance(packed, int) or not isinstance(unpacked, int):
            raise ValueError("a page without a size")
        if not 0 <= packed < 2**31 or not 0 <= unpacked < 2**31:
            raise ValueError("a page of a size that it cannot have")
        stated = header.get(5) if header.get(1) == _DATA else header.get(8)
        place = 2 if header.get(1) == _DATA else 4
        encoding = stated.get(place) if isinstance(stated, dict) else None
        yield packed, unpacked, header.get(1) == _DICTIONARY or encoding == _DELTA_BYTES
        begin += length + packed


Struct = dict[int, "int | Struct | None"]


def _struct(content: bytes, place: int = 0, depth: int = 0) -> tuple[Struct, int]:
    """The fields of a struct of Thrift's compact protocol by their numbers, and where it ends."""

    def natural() -> int:
        nonlocal place
        value = shift = 0
        while shift < 70:
            byte = content[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number without an end")

    found: Struct = {}
    number = 0
    while start := content[place]:
        place += 1
        delta, kind = start >> 4, start & 15
        whole = 0 if delta else natural()
        number += delta or (whole >> 1 ^ -(whole & 1)) - number
        match kind:
            case 1 | 2:  # true, false
                found[number] = kind
            case 3:
                found[number] = content[place]
                place += 1
            case 4 | 5 | 6:
                whole = natural()
                found[number] = whole >> 1 ^ -(whole & 1)
            case 7:
                place += 8
            case 8:  # bytes, such as the least value
                length = natural()
                place += length
            case 12 if depth < 4:
                found[number], place = _struct(content, place, depth + 1)
            case _:
                raise ValueError("a header with more than numbers")
    return found, place + 1
