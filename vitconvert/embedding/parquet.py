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
    grouped,
    opened,
    too_large,
)
from vitconvert.errors import CorruptFile, UnsafeFile, UsageError, VitConvertError, some

_ROWS = 16  # read at a time: an image may have megabytes
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
    with _opened(file) as parquet:
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
    with _opened(file) as parquet:
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
                for image, *values in _rows(parquet, file, group, columns):
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
def _opened(file: str) -> Iterator[pq.ParquetFile]:
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
                "This is not a Parquet file, or it is damaged.",
                evidence={"file": file, "why": error},
            ) from None
        yield parquet


def _rows(
    parquet: pq.ParquetFile, file: str, group: int, columns: list[str]
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
        "This part of the Parquet file unpacks to far more than its size.",
        evidence={"file": file},
    )
    chunks = [
        column
        for column in map(footer.column, range(parquet.metadata.num_columns))
        if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in read)
    ]
    room = max(MOST_BYTES // parquet.metadata.num_row_groups, _LEAST)
    room += MOST_TIMES * sum(chunk.total_compressed_size for chunk in chunks)
    if sum(chunk.total_uncompressed_size for chunk in chunks) > room:
        raise unsafe
    left = footer.num_rows
    for batch in parquet.iter_batches(_ROWS, row_groups=[group], columns=read):
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
