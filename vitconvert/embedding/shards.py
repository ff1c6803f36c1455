"""Shards, which appear whole or not at all, and are the only record of what is done.

A shard is a Parquet file under features/ (of classes, predictions/) with a row for each image: key,
kept columns, and features, or indices, scores and labels. Images without an answer are rows of the
file of the same name under failed/, which is written first: the shard says that both are there. Of
which images something was left out, the file under remarks/ says, if there is one.
"""

import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vitconvert.comparison import overflows
from vitconvert.embedding.embedder import LoadedTask
from vitconvert.embedding.files import Item, digest, reason, text
from vitconvert.embedding.folders import Folder, folder_at, read_json
from vitconvert.embedding.outputs import FINISHED, SHARD, UNREADABLE, Output, find_output
from vitconvert.errors import CorruptFile, NotRepresentable, SourceError, VitConvertError
from vitconvert.inference.embed import Embedding
from vitconvert.inference.predict import Prediction
from vitconvert.inference.preparing import Picture

SECONDS = 60  # after which a shard ends
FAILED = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("key", "code", "message")]
)
REMARKS = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("key", "remark")])
_FOOTER = b"vitconvert"
_MOST_ROWS, _MOST_NUMBERS = 4096, 2**23  # of a group of rows, which is in memory

Numbers = NDArray[np.uint64]
Answered = tuple[Item, Embedding | Prediction]
Progress = Callable[[int, int], None]  # how many more images, and how many of them failed


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What became of the images of a shard: with an answer, and without."""

    name: str
    rows: int
    failed: int


def key_sum(keys: Iterable[str], begin: int = 0) -> int:
    """The digests of keys, added up: it changes when any of them does, but not with their order."""
    return (begin + sum(int.from_bytes(digest(key)) for key in keys)) % 2**128


class Keys:
    """Keys of images, each as often as it was given, by their digests of 128 bits.

    Args:
        names: Keys, in groups that are in memory together.
        count: How many there are.
    """

    def __init__(self, names: Iterable[pa.Array], count: int) -> None:
        digests, done = np.empty((count, 2), np.uint64), 0
        for group in names:
            digests[done : done + len(group)] = _digests(group.to_pylist())
            done += len(group)
        order = digests[:, 0].argsort()
        self._first, self._second = digests[order, 0], digests[order, 1]
        self._taken: NDArray[np.bool_] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Without what was taken: a worker of Ray may not write into what it is given."""
        return {**vars(self), "_taken": None}

    def take(self, names: Sequence[str]) -> list[bool]:
        """Which keys are there one time more than they were taken: a list may name a file twice."""
        if self._taken is None:
            self._taken = np.zeros(len(self._first), bool)
        first, second = _digests(names).T
        # Nearly always one key has such a first half, or none.
        begins, ends = (self._first.searchsorted(first, side) for side in ("left", "right"))
        found = []
        for begin, end, half in zip(begins.tolist(), ends.tolist(), second, strict=True):
            for place in range(begin, end):
                if self._second[place] == half and not self._taken[place]:
                    self._taken[place] = True
                    found.append(True)
                    break
            else:
                found.append(False)
        return found


def _digests(names: Sequence[str]) -> Numbers:
    """Two numbers of 64 bits for each key: (N, 2)."""
    return np.frombuffer(b"".join(map(digest, names)), np.uint64).reshape(-1, 2)


# Reading.


@contextmanager
def _opened(output: Output, name: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file of the output, whose damage is told."""
    try:
        with output.folder.open(name) as file:
            yield pq.ParquetFile(file, page_checksum_verification=True)
    except UNREADABLE as error:
        raise CorruptFile(
            "A shard is damaged, or belongs to another output.",
            evidence={
                "output": output.folder,
                "shard": name.partition("/")[2],
                "why": str(error).split("\n", 1)[0],
            },
            hint="remove both files of this name, in failed/ too: the same command goes on.",
        ) from None


def read_keys(output: Output, name: str, folder: str = "") -> pa.Array:
    """The keys of a shard, or of its failures with "failed" for the folder.

    Raises:
        CorruptFile: It is damaged.
    """
    with _opened(output, f"{folder or output.data}/{name}") as parquet:
        keys = parquet.read(["key"]).column("key").combine_chunks()
        keys.validate(full=True)
        if keys.type != pa.string() or keys.null_count:
            raise ValueError("keys are missing")
    return keys


@dataclass(frozen=True)
class _Footer:
    """What a shard says of itself; `rows` and `failed` when it was written."""

    rows: int
    failed: int
    tries: int
    keys: str


def _footer(output: Output, name: str, parquet: pq.ParquetFile) -> _Footer:
    stated = json.loads((parquet.metadata.metadata or {})[_FOOTER])
    if stated["identity"] != output.identity or stated["name"] != name:
        raise ValueError("it is of another output, or another shard")
    if not all(isinstance(stated[count], int) for count in ("rows", "failed", "try")):
        raise ValueError("its numbers are none")
    if not isinstance(stated["keys"], str):
        raise ValueError("its keys are not summed")
    return _Footer(stated["rows"], stated["failed"], stated["try"], stated["keys"])


def report_of(output: Output, name: str) -> ShardReport:
    """What became of the images of a shard that was written."""
    with _opened(output, f"{output.data}/{name}") as parquet:
        footer = _footer(output, name, parquet)
    return ShardReport(name=name, rows=footer.rows, failed=footer.failed)


def survey(output: Output) -> tuple[dict[str, list[int]], int]:
    """What shards are there: the rows and failures of each; and how often failures were retried.

    What a run left unfinished is removed: failures without their shard, and failures of images that
    were computed again since.

    Raises:
        CorruptFile: A shard is damaged, or is of another output.
    """
    found: dict[str, list[int]] = {}
    tries: dict[int, list[str]] = {}
    failures = set(output.folder.names("failed"))
    for name in output.names():
        failed = 0
        if name in failures:
            with _opened(output, f"failed/{name}") as parquet:
                failed = parquet.metadata.num_rows
        with _opened(output, f"{output.data}/{name}") as parquet:
            footer = _footer(output, name, parquet)
            if failed > footer.failed or parquet.metadata.num_rows != footer.rows:
                raise ValueError("images are missing, or there are too many")
        found[name] = [footer.rows, failed]
        tries.setdefault(footer.tries, []).append(name)
    for place, names in (("failed", failures), ("remarks", set(output.folder.names("remarks")))):
        for name in filter(SHARD.fullmatch, names - found.keys()):
            if name.endswith(f"{output.part}.parquet"):
                output.folder.remove(f"{place}/{name}")
    last = max(tries, default=0)
    later: set[bytes] = set()  # keys that were computed again
    for number in sorted(tries, reverse=True) if last else ():
        for name in tries[number]:
            if later and found[name][1]:
                found[name][1] = _drop_failures(output, name, later)
        for name in tries[number] if number else ():
            places = [output.data, *(["failed"] if found[name][1] else [])]
            later |= {
                digest(key)
                for place in places
                for key in read_keys(output, name, place).to_pylist()
            }
    return found, last


def _drop_failures(output: Output, name: str, others: set[bytes]) -> int:
    """Remove the failures of images that were computed again; returns how many are left."""
    with _opened(output, f"failed/{name}") as parquet:
        table = parquet.read()
    left = [digest(key) not in others for key in table.column("key").to_pylist()]
    if not any(left):
        output.folder.remove(f"failed/{name}")
    elif not all(left):
        _write_table(output.folder, f"failed/{name}", table.filter(pa.array(left)))
    return sum(left)


# Writing.


def answers(loaded: LoadedTask, items: Iterable[Item]) -> Iterator[Answered]:
    """Each image with what is computed of it, or its error, in order.

    Images are taken as threads get time for them, and let go once they are decoded.
    """
    waiting: deque[Item] = deque()

    def pictures() -> Iterator[Picture]:
        for item in items:
            waiting.append(replace(item, picture=b""))
            yield item.picture

    for answer in loaded.answers(pictures()):
        yield waiting.popleft(), answer


def write_shard(
    output: Output,
    name: str,
    answered: Iterator[Answered],
    loaded: LoadedTask,
    *,
    most: int,
    seconds: float = SECONDS,
    progress: Progress = lambda _done, _failed: None,
) -> ShardReport | None:
    """Write the next answers as a shard, at most so many or those of a minute; None if none is.

    A group of rows is in memory, the rest in the file.
    """
    first = next(answered, None)
    if first is None:
        return None
    until = time.monotonic() + seconds
    schema = _schema(output, loaded)
    group = min(_MOST_ROWS, max(1, _MOST_NUMBERS // math.prod(loaded.shape)))
    # Numbers that are all different have no dictionary. Bytes of equal places stand together, which
    # zstd shortens by 8 % for features of float32; DuckDB 2.0 cannot read that of float16.
    split = "features" in schema.names and schema.field("features").type.value_type == pa.float32()
    encodings = {
        "use_dictionary": ["labels.list.element"] if "labels" in schema.names else False,
        "column_encoding": {"features.list.element": "BYTE_STREAM_SPLIT"} if split else None,
    }
    rows = keys = 0
    waiting: list[Answered] = []
    failures: list[tuple[str, ...]] = []
    remarks: list[tuple[str, ...]] = []
    with output.folder.writing(f"{output.data}/{name}") as file:
        with _parquet_writer(file, schema, **encodings) as writer:
            for item, answer in chain([first], answered):
                error = answer.error or _misfit(answer, schema)
                remarks += ((item.key, remark) for remark in answer.remarks)
                if error is None:
                    rows, keys = rows + 1, key_sum([item.key], keys)
                    waiting.append((item, answer))
                else:
                    failures.append((item.key, error.code, reason(error)))
                if len(waiting) == group:
                    writer.write_table(_table(waiting, schema))
                    waiting = []
                progress(1, int(error is not None))
                if rows + len(failures) == most or time.monotonic() > until:
                    break
            writer.write_table(_table(waiting, schema))
            report = ShardReport(name=name, rows=rows, failed=len(failures))
            stated = {"try": output.tries, "keys": f"{keys:032x}", "shape": loaded.shape}
            footer = {**vars(report), **stated, "identity": output.identity}
            writer.add_key_value_metadata({_FOOTER: json.dumps(footer)})
        for place, told, columns in (("failed", failures, FAILED), ("remarks", remarks, REMARKS)):
            if told:
                values = [[text(v) for v in column] for column in zip(*told, strict=True)]
                _write_table(output.folder, f"{place}/{name}", pa.table(values, schema=columns))
            else:
                output.folder.remove(f"{place}/{name}")  # of an earlier try, which was not finished
    return report


def _write_table(folder: Folder, name: str, table: pa.Table) -> None:
    with folder.writing(name) as file, _parquet_writer(file, table.schema) as writer:
        writer.write_table(table)


@contextmanager
def _parquet_writer(file: IO[bytes], schema: pa.Schema, **encodings: Any) -> Iterator[Any]:
    """Write a Parquet file, unless an error ends the block: then nothing more is written."""
    writer = pq.ParquetWriter(
        file, schema, compression="zstd", write_page_checksum=True, **encodings
    )
    try:
        yield writer
        writer.close()
    finally:
        writer.is_open = False  # or it is closed once more, when it is collected


def _schema(output: Output, loaded: LoadedTask) -> pa.Schema:
    kinds = {"features": pa.type_for_alias(output.identity["output"]["store"])}
    if output.computed == "classes":
        kinds = {"indices": pa.int32(), "scores": pa.float32()}
        kinds |= {"labels": pa.string()} if loaded.labels else {}
    length = math.prod(loaded.shape)
    lists = {
        name: pa.list_(pa.field("element", kind, nullable=False), length)
        for name, kind in kinds.items()
    }
    kept = [pa.field(name, pa.type_for_alias(k)) for name, k in output.layout.columns.items()]
    answered = [pa.field(name, kind, nullable=False) for name, kind in lists.items()]
    return pa.schema([pa.field("key", pa.string(), nullable=False), *kept, *answered])


def _misfit(answer: Embedding | Prediction, schema: pa.Schema) -> VitConvertError | None:
    """Why an answer cannot be stored, if it cannot."""
    if isinstance(answer, Embedding) and answer.features is not None:
        half = schema.field("features").type.value_type == pa.float16()
        if half and overflows(answer.features, answer.features.half()):
            return NotRepresentable("float16 does not hold numbers of this size: store float32.")
    return None


_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "features": lambda answer: answer.features.numpy(),
    "indices": lambda answer: [likely.index for likely in answer.top],
    "scores": lambda answer: [likely.score for likely in answer.top],
    "labels": lambda answer: [likely.label for likely in answer.top],
}


def _table(answered: list[Answered], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name in _NUMBERS:
            kind = field.type.value_type
            rows = [_NUMBERS[field.name](answer) for _, answer in answered]
            values = np.asarray(rows, dtype=kind.to_pandas_dtype()).reshape(-1)
            flat = pa.array(values, kind)
            columns.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
        elif field.name == "key":
            columns.append(pa.array([item.key for item, _ in answered], field.type))
        else:
            kept = [item.columns.get(field.name) for item, _ in answered]
            columns.append(pa.array(kept, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


# For people.


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What an output holds.

    Attributes:
        rows: Images with an answer.
        failed: Images without one.
        shards: That are there.
        problems: What is wrong, in words; empty if the output is whole.
    """

    rows: int
    failed: int
    shards: int
    problems: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether the last run finished, and nothing is missing, doubled, damaged or strange."""
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        """As JSON types."""
        return {"whole": self.whole, **vars(self), "problems": list(self.problems)}


def check(place: str) -> CheckReport:
    """Read an output whole: the checksums of its pages, its numbers, its keys, what runs left.

    Raises:
        SourceError: There is none.
        ConflictingFact, CorruptFile: It is of another version, or its record is damaged.
    """
    output = find_output(folder_at(place))
    if output is None:
        raise SourceError(
            "vitconvert wrote no features here.",
            evidence={"output": place},
            hint="--check DIR reads a directory that `embed -o DIR` or `predict -o DIR` wrote.",
        )
    there, failures = set(output.folder.names(output.data)), set(output.folder.names("failed"))
    runs = output.folder.names(FINISHED)
    read = (read_json(output.folder, f"{FINISHED}/{name}") for name in runs)
    left = {name: counts for finished in read for name, counts in finished.items()}
    parts = [k for name in runs if (k := re.fullmatch(r"part-(\d+)-of-(\d+)\.json", name))]
    of = {int(part[2]) for part in parts}
    done = any({int(p[1]) for p in parts if int(p[2]) == n} == {*range(1, n + 1)} for n in of)
    problems = [] if done or "all.json" in runs else ["the last run did not finish"]
    rows = failed = 0
    columns: set[pa.Schema] = set()
    for name in sorted(there):
        if not SHARD.fullmatch(name):
            problems.append(f"{output.data}/{name} was not written by vitconvert")
            continue
        try:
            counts, schema, found = _check_shard(output, name, has_failures=name in failures)
        except CorruptFile as error:
            problems.append(f"{name} cannot be read: {error.evidence['why']}")
            continue
        rows, failed = rows + counts[0], failed + counts[1]
        problems += [f"{name}: {what}" for what in found]
        if left and name in left and left[name] != counts:
            problems.append(f"{name}: {sum(counts)} images, and a run left {sum(left[name])}")
        columns = columns or {schema}
        if schema not in columns:
            problems.append(f"{name}: its columns are not those of the others")
    problems += [f"{output.data}/{name} is missing" for name in sorted(left.keys() - there)]
    problems += [
        f"failed/{name} was not written by vitconvert"
        for name in sorted(failures - there - left.keys())
    ]
    return CheckReport(rows=rows, failed=failed, shards=len(there), problems=tuple(problems))


def _check_shard(
    output: Output, name: str, *, has_failures: bool
) -> tuple[list[int], pa.Schema, list[str]]:
    """The rows and failures of a shard, its columns, and what is wrong with it."""
    rows = keys = 0
    problems: list[str] = []
    with _opened(output, f"{output.data}/{name}") as parquet:
        footer = _footer(output, name, parquet)
        schema = parquet.schema_arrow.remove_metadata()
        for batch in parquet.iter_batches(4096):
            batch.validate(full=True)
            rows += batch.num_rows
            found = batch.column("key").to_pylist()
            if None in found:
                problems.append("keys are missing")
            keys = key_sum(filter(None, found), keys)
            numbers = [n for n in ("features", "scores") if n in batch.schema.names]
            flat = [batch.column(n).flatten().to_numpy(zero_copy_only=False) for n in numbers]
            if not all(np.isfinite(column).all() for column in flat):
                problems.append("numbers are not finite")
    failed = len(read_keys(output, name, "failed")) if has_failures else 0
    if rows != footer.rows or f"{keys:032x}" != footer.keys:
        problems.append("its keys are not those that were written")
    return [rows, failed], schema, problems
