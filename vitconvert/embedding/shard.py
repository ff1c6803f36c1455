"""Computes a unit and writes its shard: one Parquet file, whole or not at all.

Columns: key; what goes along; features, or of classes indices, labels and scores. Images that gave
no answer stand in a file of the same name under failed/. The shard is written last: it says that
both are there.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.embedding.embedder import LoadedTask
from vitconvert.embedding.folders import Folder
from vitconvert.embedding.plan import Plan
from vitconvert.embedding.units import Item, Unit, reason, text
from vitconvert.errors import CorruptFile, NotRepresentable, SourceError, VitConvertError
from vitconvert.inference.batches import Picture

if TYPE_CHECKING:
    from vitconvert.inference.embed import Embedding
    from vitconvert.inference.predict import Prediction

FOOTER = b"vitconvert"
FAILED = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("key", "code", "message")]
)
_MOST_ROWS, _MOST_NUMBERS = 4096, 2**23  # of a group of rows, which is in memory
_MOST_FLOAT16 = 65520  # from there on, numbers are rounded to infinity
STORES = {"float32": pa.float32(), "float16": pa.float16()}

_TAKEN = b""
OF_ONE_UNIT = (SourceError, CorruptFile)  # its archive is gone, changed or damaged: others are not

Progress = Callable[[int, int], None]  # how many more images, and how many of them failed


def data_folder(computed: str) -> str:
    """Where shards lie in the output."""
    return "predictions" if computed == "classes" else "features"


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What became of a unit.

    Attributes:
        number: Of the unit.
        rows: Images with an answer.
        failed: Images without one.
        changed: Images whose file is another than when the plan was made.
    """

    number: int
    rows: int
    failed: int
    changed: int


def write_shard(
    folder: Folder,
    plan: Plan,
    unit: Unit,
    loaded: LoadedTask,
    *,
    store: str,
    progress: Progress = lambda _done, _failed: None,
) -> ShardReport:
    """Compute a unit and write its shard.

    Raises:
        SourceError, IntegrityError: The unit's archive is gone, or another.
    """
    failed_name = f"failed/{unit.part}"
    name = f"{data_folder(loaded.task.computed)}/{unit.part}"
    with folder.writing(name) as file:
        group = min(_MOST_ROWS, max(1, _MOST_NUMBERS // math.prod(loaded.shape)))
        shard = _Shard(file, schema(plan, loaded, store), _encodings(store, loaded), group)
        for item, answer in _answers(plan.items(folder, unit), loaded):
            progress(1, int(not shard.add(item, answer)))
        report = ShardReport(
            number=unit.number,
            rows=shard.rows,
            failed=len(shard.failures),
            changed=shard.changed,
        )
        shard.close({**vars(report), "identity": plan.identity, "shape": loaded.shape})
        if report.rows + report.failed != unit.rows:
            raise CorruptFile(
                "There are not as many images as the plan says.",
                evidence={
                    "output": folder,
                    "source": unit.file,
                    "images": f"{report.rows + report.failed:,}; {unit.rows:,} in the plan",
                },
                hint="a new output.",
            )
        if shard.failures:
            _write_failures(folder, failed_name, shard.failures)
        else:
            folder.remove(failed_name)  # of an earlier try, which was not finished
    return report


def failures(folder: Folder, plan: Plan, unit: Unit, *, has_failures: bool) -> int:
    """How many images of a finished shard failed.

    Raises:
        CorruptFile: It is damaged, or is none of this output.
    """
    name = f"{data_folder(plan.identity['computed']['what'])}/{unit.part}"
    try:
        stated = _metadata(folder, name)
        said = json.loads(stated.metadata[FOOTER])
        failed = _metadata(folder, f"failed/{unit.part}").num_rows if has_failures else 0
        _require(said["identity"] == json.loads(json.dumps(plan.identity)), "of another output")
        _require(stated.num_rows + said["failed"] == unit.rows, "images are missing")
        _require(failed in (0, said["failed"]), f"failed/{unit.part} is of another shard")
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise CorruptFile(
            "A shard is damaged, or is none of this output.",
            evidence={"output": folder, "shard": name, "why": error},
            hint="remove both files of this name, in failed/ too: the same command goes on.",
        ) from None
    return int(said["failed"])


def _metadata(folder: Folder, name: str) -> Any:
    with folder.open(name) as file:
        return pq.read_metadata(file)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def schema(plan: Plan, loaded: LoadedTask, store: str) -> pa.Schema:
    """The columns of a shard."""
    kept = [pa.field(name, pa.type_for_alias(kind)) for name, kind in plan.columns.items()]
    return pa.schema([pa.field("key", pa.string(), nullable=False), *kept, *_answer(loaded, store)])


def _answer(loaded: LoadedTask, store: str) -> list[pa.Field]:
    size = math.prod(loaded.shape)

    def several(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", kind, nullable=False), size)

    columns = {"features": several(STORES[store])}
    if loaded.task.computed == "classes":
        columns = {"indices": several(pa.int32()), "scores": several(pa.float32())}
        if loaded.labels:
            columns["labels"] = several(pa.string())
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


def _encodings(store: str, loaded: LoadedTask) -> dict[str, Any]:
    """How columns are laid out: numbers that are all different have no dictionary.

    Bytes of equal places stand together, which zstd shortens by 8 % for features of float32.
    DuckDB 2.0 cannot read that of float16.
    """
    if loaded.task.computed == "classes":
        return {"use_dictionary": ["labels.list.element"]}
    split = {"features.list.element": "BYTE_STREAM_SPLIT"} if store == "float32" else None
    return {"use_dictionary": False, "column_encoding": split}


def _answers(
    items: Iterator[Item], loaded: LoadedTask
) -> "Iterator[tuple[Item, Embedding | Prediction]]":
    """Each item with what is computed of it; items are taken as threads get time for them."""
    waiting: deque[Item] = deque()

    def pictures() -> Iterator[Picture]:
        for item in items:
            waiting.append(replace(item, picture=_TAKEN))  # whoever takes it, lets it go
            yield item.picture

    compute = loaded.classes if loaded.task.computed == "classes" else loaded.features
    for answer in compute(pictures()):
        item = waiting.popleft()
        yield item, answer


@dataclass
class _Shard:
    """A shard while it is written: a group of rows is in memory, the rest in the file."""

    file: Any
    schema: pa.Schema
    encodings: Mapping[str, Any]
    group: int  # rows that are written together
    rows: int = 0
    changed: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    _waiting: "list[tuple[Item, Any]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self._writer = pq.ParquetWriter(
            self.file,
            self.schema,
            compression="zstd",
            write_page_checksum=True,
            **self.encodings,
        )

    def add(self, item: Item, answer: "Embedding | Prediction") -> bool:
        """Add the answer for an image, or why there is none; says whether there is one."""
        self.changed += item.changed
        error = answer.error or self._misfit(answer)
        if error is not None:
            self.failures.append((item.key, error.code, reason(error)))
            return False
        self.rows += 1
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
        self._writer.add_key_value_metadata({FOOTER: json.dumps(footer)})
        self._writer.close()

    def _write(self) -> None:
        items = [item for item, _ in self._waiting]
        answers = [answer for _, answer in self._waiting]
        self._waiting = []
        columns = [self._column(column, items, answers) for column in self.schema]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))

    def _column(self, column: pa.Field, items: list[Item], answers: list[Any]) -> pa.Array:
        match column.name:
            case "key":
                return pa.array([text(item.key) for item in items], pa.string())
            case "features":
                return _fixed(column.type, [answer.features.numpy() for answer in answers])
            case "indices":
                return _fixed(column.type, [[c.index for c in answer.top] for answer in answers])
            case "scores":
                top = [[c.probability for c in answer.top] for answer in answers]
                return _fixed(column.type, top)
            case "labels":
                labels = [c.label for answer in answers for c in answer.top]
                values = pa.array(labels, pa.string())
                return pa.FixedSizeListArray.from_arrays(values, type=column.type)
        return pa.array([item.columns.get(column.name) for item in items], column.type)


def _fixed(kind: pa.DataType, rows: list[Any]) -> pa.Array:
    values = np.asarray(rows, dtype=kind.value_type.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(values, kind.value_type), type=kind)


def _write_failures(folder: Folder, name: str, failures: list[tuple[str, str, str]]) -> None:
    columns = [[text(value) for value in column] for column in zip(*failures, strict=True)]
    with folder.writing(name) as file:
        table = pa.table(columns, schema=FAILED)
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
