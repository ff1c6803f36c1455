"""An output: shards that appear whole or not at all, and what they say of themselves.

A shard is a Parquet file under features/ (of classes, predictions/) with a row for each image: key,
kept columns, and features, or indices, scores and labels. Images without an answer are rows of the
file of the same name under failed/, which is written first: the shard says that both are there.
So the shards are the only record of what is done.
"""

import hashlib
import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.embedding.embedder import LoadedTask
from vitconvert.embedding.folders import SCRATCH, Folder, folder_at, read_json, write_json
from vitconvert.embedding.parquet import kept_types
from vitconvert.embedding.sources import Item, Layout, Sources, reason, text
from vitconvert.errors import (
    ConflictingFact,
    CorruptFile,
    MissingFact,
    NotRepresentable,
    OutputExists,
    VitConvertError,
    printable,
    some,
)
from vitconvert.inference.batches import Picture
from vitconvert.version import VERSION

FORMAT = 2  # of outputs; 1 had a plan
RECORD, README, FINISHED = "vitconvert.json", "README.md", "finished"
STORES = {"float32": pa.float32(), "float16": pa.float16()}
SECONDS = 60  # after which a shard ends
FAILED = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("key", "code", "message")]
)
_FOOTER = b"vitconvert"
_PART = re.compile(r"part-(\d{6,}|[0-9a-f]{32})(-\d+-of-\d+)?\.parquet")
_MOST_ROWS, _MOST_NUMBERS = 4096, 2**23  # of a group of rows, which is in memory
_MOST_FLOAT16 = 65520  # from there on, numbers are rounded to infinity
_LONGEST = 60  # characters of what differs, as an error shows it
_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError)

Progress = Callable[[int, int], None]  # how many more images, and how many of them failed


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What became of the images of a shard: with an answer, and without."""

    name: str
    rows: int
    failed: int


@dataclass(frozen=True)
class Output:
    """Where shards are written, and what all of them share. It pickles to little.

    Attributes:
        folder: Where.
        identity: What must be the same in all runs.
        layout: Of the rows.
        part: "" or, of the K-th of N parts, "-K-of-N": stands in the names of its shards.
        tries: How often failed images were computed again before.
    """

    folder: Folder
    identity: Mapping[str, Any]
    layout: Layout
    part: str = ""
    tries: int = 0

    @property
    def computed(self) -> str:
        """ "features", "tokens", "projected" or "classes"."""
        return str(self.identity["computed"]["what"])

    @property
    def data(self) -> str:
        """The folder of the shards."""
        return "predictions" if self.computed == "classes" else "features"

    def names(self) -> list[str]:
        """The shards that are there."""
        return [name for name in self.folder.names(self.data) if _PART.fullmatch(name)]

    def next_number(self) -> int:
        """Of a shard that comes after those that are there."""
        own = (name for name in self.names() if name.endswith(f"{self.part}.parquet"))
        numbers = [found[1] for name in own if (found := _PART.fullmatch(name))]
        return max((int(n) + 1 for n in numbers if n.isdecimal() and len(n) < 32), default=0)


def begin(
    folder: Folder, loaded: LoadedTask, sources: Sources, *, store: str, append: bool, part: str
) -> Output:
    """The output of a run: the one that is there, if it is of the same, or a new one.

    Raises:
        OutputExists: Something else is there.
        ConflictingFact: It holds other numbers, or is of another version.
        MissingFact: There is nothing to add to.
    """
    require_ours(folder)
    identity = {**loaded.identity, "output": {"store": store}}
    output = read_record(folder) if RECORD in folder.entries() else None
    if output and output.names():  # else nothing is lost if it begins anew
        wanted = {**identity, "source": sources.description(output.layout)}
        if append:  # other sources, of the same columns
            names = ("keep", "image column")
            columns = {name: wanted["source"][name] for name in names}
            wanted["source"] = {**output.identity["source"], **columns}
        _check_same(output.identity, wanted)
        return replace(output, part=part)
    if append:
        raise MissingFact(
            "There is no output yet to add to.",
            evidence={"output": folder},
            hint="leave out --append: the command then makes it.",
        )
    layout = Layout.of(sources, kept_types)
    identity["source"] = sources.description(layout)
    output = Output(folder, json.loads(json.dumps(identity)), layout, part)
    write_records(output, {})
    return output


def require_ours(folder: Folder) -> None:
    """Refuse a folder with files that no run of ours wrote.

    Raises:
        OutputExists, ConflictingFact: There are some.
    """
    entries = folder.entries()
    if "plan" in entries and "plan.json" in folder.names("plan"):
        raise ConflictingFact(
            "An earlier version of vitconvert made this output, which had a plan.",
            evidence={"output": folder},
            hint="finish it with that version, 0.23 or earlier, or name a new output with -o.",
        )
    strange = [name for name in entries if name != SCRATCH]
    if RECORD not in entries and strange:
        raise OutputExists(
            "There are files in the output that are no features of vitconvert.",
            evidence={"output": folder, "files": some(strange)},
            hint="name another output with -o.",
        )


def read_record(folder: Folder) -> Output:
    """The output that a record describes.

    Raises:
        ConflictingFact: It is of another version.
        CorruptFile: Somebody changed it.
    """
    stated = read_json(folder, RECORD)
    if stated.get("format") != FORMAT:
        raise ConflictingFact(
            "Another version of vitconvert made this output.",
            evidence={"output": folder},
            hint="use that version, or a new output.",
        )
    try:
        layout = Layout(**stated["layout"])
        for kind in layout.columns.values():
            pa.type_for_alias(kind)
        output = Output(folder, stated["identity"], layout)
        sound = isinstance(output.identity["source"], dict) and output.computed.isalpha()
        if not sound or not set(layout.kept.values()) <= layout.columns.keys():
            raise ValueError("columns or an identity that make no sense")
        if not isinstance(layout.base, str | None):
            raise ValueError("a base that is no text")
    except (*_UNREADABLE, RecursionError) as error:
        raise CorruptFile(
            "The record of this output is damaged, or is none of ours.",
            evidence={"output": folder, "file": RECORD, "why": error},
            hint="name a new output with -o.",
        ) from None
    return output


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = list(_differences(found, json.loads(json.dumps(wanted)), ""))
    if differing:
        short = [[str(value)[:_LONGEST] for value in pair] for _, *pair in differing]
        raise ConflictingFact(
            "The output holds other numbers, and they are not mixed.",
            evidence={
                name: f"{old} there, {new} now"
                for (name, *_), (old, new) in zip(differing, short, strict=True)
            },
            hint="name another output with -o, or repeat the options that this one began with.",
        )


def _differences(found: Any, wanted: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in found.keys() | wanted.keys():
            yield from _differences(found.get(key), wanted.get(key), f"{name} {key}".strip())
    elif found != wanted:
        yield name, found, wanted


# What is done.


class Keys:
    """Keys of images, each as often as it was given: 16 bytes and two for a count.

    Args:
        names: Keys, in groups that are in memory together.
    """

    def __init__(self, names: Iterable[Iterable[str]]) -> None:
        groups = [np.array([digest(name) for name in group], "S16") for group in names]
        found = np.sort(np.concatenate([np.empty(0, "S16"), *groups]))
        new = np.ones(len(found), bool)
        new[1:] = found[1:] != found[:-1]
        counts = np.diff(np.append(np.flatnonzero(new), len(found)))
        self._digests = found[new]
        self._left = np.minimum(counts, 2**16 - 1).astype(np.uint16)

    def _place(self, name: str) -> int | None:
        if not len(self._digests):
            return None
        wanted = np.bytes_(digest(name).rstrip(b"\0"))  # as NumPy gives one of an array
        place = int(np.searchsorted(self._digests, wanted))
        hit = place < len(self._digests) and self._digests[place] == wanted
        return place if hit else None

    def __contains__(self, name: str) -> bool:
        return self._place(name) is not None

    def take(self, name: str) -> bool:
        """Whether a key is there one time more than it was taken: a list may name a file twice."""
        place = self._place(name)
        if place is None or not self._left[place]:
            return False
        if not self._left.flags.writeable:  # as Ray gives it to a worker
            self._left = self._left.copy()
        self._left[place] -= 1
        return True


def digest(name: str) -> bytes:
    """128 bits that stand for a key. NumPy ignores zeros at the end, of equal lengths no loss."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def read_keys(output: Output, name: str, folder: str = "") -> list[str]:
    """The keys of a shard, or of its failures with "failed" for the folder.

    Raises:
        CorruptFile: It is damaged.
    """
    with _reading(output, f"{folder or output.data}/{name}") as parquet:
        keys: list[str] = parquet.read(["key"]).column("key").to_pylist()
    if not all(isinstance(key, str) for key in keys):
        raise _damaged(output, name, "keys are missing")
    return keys


def survey(output: Output) -> tuple[dict[str, list[int]], int]:
    """What shards are there: the rows and failures of each; and how often failures were retried.

    What a run left unfinished is removed: failures without their shard, and failures of images that
    were computed again since.

    Raises:
        CorruptFile: A shard is damaged, or is of another output.
    """
    folder, found = output.folder, {}
    tries: dict[int, list[str]] = {}
    with_failures = set(folder.names("failed"))
    for name in output.names():
        footer, rows = _footer(output, name)
        failed = 0
        if name in with_failures:
            with _reading(output, f"failed/{name}") as parquet:
                failed = parquet.metadata.num_rows
        if failed > footer["failed"] or rows != footer["rows"]:
            raise _damaged(output, name, "images are missing, or there are too many")
        found[name] = [rows, failed]
        tries.setdefault(footer["try"], []).append(name)
    for name in filter(_PART.fullmatch, with_failures - found.keys()):
        if name.endswith(f"{output.part}.parquet"):
            folder.remove(f"failed/{name}")
    later: set[bytes] = set()
    for number in sorted(tries, reverse=True) if len(tries) > 1 or 0 not in tries else ():
        for name in tries[number]:
            if later and found[name][1]:
                found[name][1] = _drop_failures(output, name, later)
        for name in tries[number] if number else ():
            places = [output.data, *(["failed"] if found[name][1] else [])]
            later |= {digest(key) for place in places for key in read_keys(output, name, place)}
    return found, max(tries, default=0)


def _drop_failures(output: Output, name: str, others: set[bytes]) -> int:
    """Remove the failures of images that were computed again; returns how many are left."""
    with _reading(output, f"failed/{name}") as parquet:
        table = parquet.read()
    left = [digest(key) not in others for key in table.column("key").to_pylist()]
    if not any(left):
        output.folder.remove(f"failed/{name}")
    elif not all(left):
        _write_table(output.folder, f"failed/{name}", table.filter(pa.array(left)))
    return sum(left)


class _reading:  # noqa: N801 (a context)
    """A Parquet file of the output, whose damage is told."""

    def __init__(self, output: Output, name: str) -> None:
        self._output, self._name = output, name

    def __enter__(self) -> pq.ParquetFile:
        try:
            self._file = self._output.folder.open(self._name)
        except OSError as error:
            raise _damaged(self._output, self._name, error) from None
        try:
            return pq.ParquetFile(self._file, page_checksum_verification=True)
        except _UNREADABLE as error:
            self._file.close()
            raise _damaged(self._output, self._name, error) from None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._file.close()
        if isinstance(error, _UNREADABLE):
            raise _damaged(self._output, self._name, error) from None


def _footer(output: Output, name: str) -> tuple[dict[str, Any], int]:
    with _reading(output, f"{output.data}/{name}") as parquet:
        footer: dict[str, Any] = json.loads((parquet.metadata.metadata or {})[_FOOTER])
        if footer["identity"] != output.identity or footer["name"] != name:
            raise ValueError("it is of another output, or another shard")
        if not all(isinstance(footer[count], int) for count in ("rows", "failed", "try")):
            raise ValueError("its numbers are none")
        if not isinstance(footer["keys"], str):
            raise ValueError("its keys are not summed")
        return footer, parquet.metadata.num_rows


def _damaged(output: Output, name: str, why: object) -> CorruptFile:
    return CorruptFile(
        "A shard is damaged, or is none of this output.",
        evidence={"output": output.folder, "shard": name, "why": str(why).split("\n", 1)[0]},
        hint="remove both files of this name, in failed/ too: the same command goes on.",
    )


# Writing.


def answers(loaded: LoadedTask, items: Iterable[Item]) -> Iterator[tuple[Item, Any]]:
    """Each image with what is computed of it, or its error, in order.

    Images are taken as threads get time for them, and let go once they are decoded.
    """
    waiting: deque[Item] = deque()

    def pictures() -> Iterator[Picture]:
        for item in items:
            waiting.append(replace(item, picture=b""))
            yield item.picture

    compute = loaded.classes if loaded.task.computed == "classes" else loaded.features
    for answer in compute(pictures()):
        yield waiting.popleft(), answer


def write_shard(
    output: Output,
    name: str,
    answered: Iterator[tuple[Item, Any]],
    loaded: LoadedTask,
    *,
    most: int,
    seconds: float | None = None,
    progress: Progress = lambda _done, _failed: None,
) -> ShardReport | None:
    """Write the next answers as a shard, at most so many or those of a minute; None if none is."""
    first = next(answered, None)
    if first is None:
        return None
    folder, begun = output.folder, time.monotonic()
    with folder.writing(f"{output.data}/{name}") as file:
        shard = _Shard(file, _schema(output, loaded), _encodings(output, loaded))
        shard.group = min(_MOST_ROWS, max(1, _MOST_NUMBERS // math.prod(loaded.shape)))
        item, answer = first
        while True:
            progress(1, int(not shard.add(item, answer)))
            done = shard.rows + len(shard.failures)
            if done == most or time.monotonic() - begun > (seconds or SECONDS):
                break
            following = next(answered, None)
            if following is None:
                break
            item, answer = following
        report = ShardReport(name=name, rows=shard.rows, failed=len(shard.failures))
        stated = {"try": output.tries, "keys": shard.keys, "shape": loaded.shape}
        shard.close({**vars(report), **stated, "identity": output.identity})
        if shard.failures:
            columns = [[text(v) for v in column] for column in zip(*shard.failures, strict=True)]
            _write_table(folder, f"failed/{name}", pa.table(columns, schema=FAILED))
        else:
            folder.remove(f"failed/{name}")  # of an earlier try, which was not finished
    return report


def _write_table(folder: Folder, name: str, table: pa.Table) -> None:
    with folder.writing(name) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def _schema(output: Output, loaded: LoadedTask) -> pa.Schema:
    def several(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", kind, nullable=False), math.prod(loaded.shape))

    columns = {"features": several(STORES[output.identity["output"]["store"]])}
    if output.computed == "classes":
        columns = {"indices": several(pa.int32()), "scores": several(pa.float32())}
        if loaded.labels:
            columns["labels"] = several(pa.string())
    kept = [pa.field(name, pa.type_for_alias(k)) for name, k in output.layout.columns.items()]
    answered = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema([pa.field("key", pa.string(), nullable=False), *kept, *answered])


def _encodings(output: Output, loaded: LoadedTask) -> dict[str, Any]:
    """How columns are laid out: numbers that are all different have no dictionary.

    Bytes of equal places stand together, which zstd shortens by 8 % for features of float32.
    DuckDB 2.0 cannot read that of float16.
    """
    if output.computed == "classes":
        return {"use_dictionary": ["labels.list.element"] if loaded.labels else False}
    split = output.identity["output"]["store"] == "float32"
    encoding = {"features.list.element": "BYTE_STREAM_SPLIT"} if split else None
    return {"use_dictionary": False, "column_encoding": encoding}


@dataclass
class _Shard:
    """A shard while it is written: a group of rows is in memory, the rest in the file."""

    file: Any
    schema: pa.Schema
    encodings: Mapping[str, Any]
    group: int = 1  # rows that are written together
    rows: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    _sum: int = 0  # of the digests of its keys
    _waiting: list[tuple[Item, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._writer = pq.ParquetWriter(
            self.file, self.schema, compression="zstd", write_page_checksum=True, **self.encodings
        )

    @property
    def keys(self) -> str:
        """What changes when any key of the rows does, but not with their order."""
        return f"{self._sum:032x}"

    def add(self, item: Item, answer: Any) -> bool:
        """Add the answer for an image, or why there is none; says whether there is one."""
        error = answer.error or self._misfit(answer)
        if error is not None:
            self.failures.append((item.key, error.code, reason(error)))
            return False
        self.rows += 1
        self._sum = key_sum([item.key], self._sum)
        self._waiting.append((item, answer))
        if len(self._waiting) == self.group:
            self._write()
        return True

    def _misfit(self, answer: Any) -> VitConvertError | None:
        """Why these features cannot be stored, if they cannot: larger numbers become infinite."""
        if "features" not in self.schema.names:
            return None
        kind = self.schema.field("features").type.value_type
        if kind != pa.float16() or np.abs(answer.features.numpy()).max() < _MOST_FLOAT16:
            return None
        return NotRepresentable("float16 does not hold numbers of this size: store float32.")

    def close(self, footer: Mapping[str, Any]) -> None:
        """Write the rest, and what the shard is."""
        self._write()
        self._writer.add_key_value_metadata({_FOOTER: json.dumps(footer)})
        self._writer.close()

    def _write(self) -> None:
        items, found = [[pair[n] for pair in self._waiting] for n in (0, 1)]
        self._waiting = []
        columns = [self._column(column, items, found) for column in self.schema]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))

    def _column(self, column: pa.Field, items: list[Any], found: list[Any]) -> pa.Array:
        match column.name:
            case "key":
                return pa.array([item.key for item in items], pa.string())
            case "features":
                return _fixed(column.type, [answer.features.numpy() for answer in found])
            case "indices":
                return _fixed(column.type, [[c.index for c in answer.top] for answer in found])
            case "scores":
                return _fixed(column.type, [[c.probability for c in a.top] for a in found])
            case "labels":
                labels = pa.array([c.label for answer in found for c in answer.top], pa.string())
                return pa.FixedSizeListArray.from_arrays(labels, type=column.type)
        return pa.array([item.columns.get(column.name) for item in items], column.type)


def key_sum(keys: Iterable[str], begin: int = 0) -> int:
    """The digests of keys, added up."""
    return (begin + sum(int.from_bytes(digest(key)) for key in keys)) % 2**128


def _fixed(kind: pa.DataType, rows: Sequence[Any]) -> pa.Array:
    values = np.asarray(rows, dtype=kind.value_type.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(values, kind.value_type), type=kind)


# For people, and for `check`.


def unfinish(output: Output) -> None:
    """Say that a run is on: what runs left before is no longer all."""
    for name in output.folder.names(FINISHED):
        if not output.part or name in ("all.json", f"part{output.part}.json"):
            output.folder.remove(f"{FINISHED}/{name}")


def write_records(
    output: Output, shards: Mapping[str, Sequence[int]], *, end: bool = False
) -> None:
    """Write what the output is; at the end of a run also which shards it left.

    A README.md that somebody else changed stays.
    """
    folder = output.folder
    record: dict[str, object] = {
        "vitconvert": VERSION,
        "format": FORMAT,
        "identity": output.identity,
        "layout": asdict(output.layout),
    }
    if not output.part or RECORD not in folder.entries():
        rows, failed = (sum(counts[n] for counts in shards.values()) for n in (0, 1))
        readme = _readme(output, rows, failed, len(shards)).encode()
        record |= {"rows": rows, "failed": failed, "shards": len(shards)}
        record["readme_sha256"] = hashlib.sha256(readme).hexdigest()
        if README not in folder.entries():  # alone, a README.md would be somebody else's
            write_json(folder, RECORD, record)
        if _is_ours(folder, readme):
            with folder.writing(README) as file:
                file.write(readme)
        write_json(folder, RECORD, record)
    if end:
        mine = {n: c for n, c in shards.items() if n.endswith(f"{output.part}.parquet")}
        write_json(
            folder, f"{FINISHED}/{f'part{output.part}' if output.part else 'all'}.json", mine
        )


def _is_ours(folder: Folder, readme: bytes) -> bool:
    """Whether the README.md is what we wrote last: then, or when we were killed after it."""
    names = folder.entries()
    if README not in names:
        return True
    with folder.open(README) as file:
        found = file.read()
    stated = read_json(folder, RECORD) if RECORD in names else {}
    return found == readme or hashlib.sha256(found).hexdigest() == stated.get("readme_sha256")


def _readme(output: Output, rows: int, failed: int, shards: int) -> str:
    data = output.data
    failures = "- config_name: failed\n  data_files: failed/*.parquet\n" if failed else ""
    kept = ", ".join(
        "`" + printable(name).replace("`", "'") + "`" for name in output.layout.columns
    )
    what = "classes, with labels and scores" if data == "predictions" else "features"
    return f"""---
configs:
- config_name: {data}
  data_files: {data}/*.parquet
  default: true
{failures}---

# The {what} of {rows:,} images

Made by vitconvert {VERSION}: {shards:,} shards, each a Parquet file in `{data}/` with a row for
each image: `key`{f", {kept}" if kept else ""} and what was computed. {failed:,} images gave no
answer: `failed/` says why. `vitconvert.json` says which model and preprocessing this is of.

```python
from datasets import load_dataset

dataset = load_dataset(".", "{data}", split="train")
```
"""


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"whole": self.whole, **vars(self), "problems": list(self.problems)}


def check(place: str) -> CheckReport:
    """Read an output whole: the checksums of its pages, its numbers, its keys, what runs left.

    Raises:
        MissingFact: There is none.
        ConflictingFact, CorruptFile: It is of another version, or its record is damaged.
    """
    folder = folder_at(place)
    require_ours(folder)
    if RECORD not in folder.entries():
        raise MissingFact("There are no features of vitconvert here.", evidence={"output": place})
    output = read_record(folder)
    there, failures = set(folder.names(output.data)), set(folder.names("failed"))
    left, problems = _left_by_runs(output)
    rows = failed = 0
    columns: set[pa.Schema] = set()
    for name in sorted(there):
        if not _PART.fullmatch(name):
            problems.append(f"{output.data}/{name} is none of ours")
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
        columns.add(schema)
        if len(columns) > 1:
            problems.append(f"{name}: its columns are not those of the others")
            columns.remove(schema)
    problems += [f"{output.data}/{name} is missing" for name in sorted(left.keys() - there)]
    problems += [
        f"failed/{name} is none of ours" for name in sorted(failures - there - left.keys())
    ]
    return CheckReport(rows=rows, failed=failed, shards=len(there), problems=tuple(problems))


def _left_by_runs(output: Output) -> tuple[dict[str, list[int]], list[str]]:
    """The shards that finished runs left, and what is wrong with that."""
    names = output.folder.names(FINISHED)
    parts = [found for name in names if (found := re.fullmatch(r"part-(\d+)-of-(\d+)\.json", name))]
    of = {int(found[2]) for found in parts}
    whole = any({int(p[1]) for p in parts if int(p[2]) == n} == {*range(1, n + 1)} for n in of)
    left = {n: c for name in names for n, c in read_json(output.folder, f"finished/{name}").items()}
    return left, [] if whole or "all.json" in names else ["the last run did not finish"]


def _check_shard(
    output: Output, name: str, *, has_failures: bool
) -> tuple[list[int], pa.Schema, list[str]]:
    """The rows and failures of a shard, its columns, and what is wrong with it."""
    footer, _ = _footer(output, name)
    rows = keys = 0
    problems: list[str] = []
    with _reading(output, f"{output.data}/{name}") as parquet:
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
    if rows != footer["rows"] or f"{keys:032x}" != footer["keys"]:
        problems.append("its keys are not those that were written")
    return [rows, failed], schema, problems
