"""Proof that an output is whole: every image of the plan once, in a shard or among the failures."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitconvert.embedding.folders import Folder, folder_at
from vitconvert.embedding.plan import Plan, read_plan
from vitconvert.embedding.shard import FOOTER, data_folder
from vitconvert.embedding.units import Unit, text
from vitconvert.errors import MissingFact, VitConvertError


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What an output holds.

    Attributes:
        images: Of the plan.
        rows: With an answer.
        failed: Without one.
        shards: That are there, of `units`.
        units: Of the plan.
        problems: What is wrong, in words; empty if the output is whole.
    """

    images: int
    rows: int
    failed: int
    shards: int
    units: int
    problems: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, doubled, damaged or strange."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"whole": self.whole, **vars(self), "problems": list(self.problems)}


def check(output: str) -> CheckReport:
    """Read an output whole: the checksums of its pages, its numbers, and each key of the plan.

    The keys of files are compared with the plan; of archives, only how many there are, and that
    none is there twice that is there once in the archive.

    Raises:
        MissingFact: There is no plan.
    """
    folder = folder_at(output)
    plan = read_plan(folder)
    if plan is None:
        raise MissingFact(
            "There is no plan of vitconvert, or it was not finished.", evidence={"output": output}
        )
    data = data_folder(plan.identity["computed"]["what"])
    there, failures = set(folder.names(data)), set(folder.names("failed"))
    problems = [f"{data}/{name} is not in the plan" for name in sorted(_strange(there, plan))]
    problems += [f"failed/{name} is not in the plan" for name in sorted(_strange(failures, plan))]
    rows = failed = 0
    columns: pa.Schema | None = None
    for unit in plan.units:
        if unit.part not in there:
            problems.append(f"{data}/{unit.part} is missing")
            continue
        try:
            found = _Contents(folder, data, unit, has_failures=unit.part in failures)
        except (pa.ArrowException, OSError, ValueError, LookupError, AttributeError) as error:
            why = str(error).split("\n", 1)[0]
            problems.append(f"{unit.part} cannot be read: {why}")
            continue
        rows += len(found.keys)
        failed += len(found.failed)
        problems += [f"{unit.part}: {what}" for what in found.problems(folder, plan)]
        columns = found.columns if columns is None else columns
        if found.columns != columns:
            problems.append(f"{unit.part}: its columns are not those of the others")
    return CheckReport(
        images=plan.rows,
        rows=rows,
        failed=failed,
        shards=len(there - _strange(there, plan)),
        units=len(plan.units),
        problems=tuple(problems),
    )


def _strange(names: set[str], plan: Plan) -> set[str]:
    return names - {unit.part for unit in plan.units}


class _Contents:
    """What one shard says."""

    def __init__(self, folder: Folder, data: str, unit: Unit, *, has_failures: bool) -> None:
        self.unit = unit
        self.keys: list[str] = []
        self.finite = True
        with folder.open(f"{data}/{unit.part}") as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            self.columns = parquet.schema_arrow.remove_metadata()
            footer = json.loads((parquet.metadata.metadata or {}).get(FOOTER, b"{}"))
            self.identity = footer.get("identity")
            for batch in parquet.iter_batches(4096):
                batch.validate(full=True)
                self.keys += batch.column("key").to_pylist()
                self.finite &= _finite(batch)
        self.failed: list[str] = []
        if has_failures:
            with folder.open(f"failed/{unit.part}") as file:
                table = pq.read_table(file, page_checksum_verification=True)
                self.failed = table.column("key").to_pylist()

    def problems(self, folder: Folder, plan: Plan) -> Iterator[str]:
        """What is wrong with it."""
        unit = self.unit
        if self.identity != plan.identity:
            yield "it is of another model, or of another plan"
        if not self.finite:
            yield "numbers are not finite"
        counted = len(self.keys) + len(self.failed)
        if not all(isinstance(key, str) for key in (*self.keys, *self.failed)):
            yield "keys are missing"
        elif counted != unit.rows:
            yield f"{counted} images, and {unit.rows} in the plan"
        elif unit.kind == "files" or len({*self.keys, *self.failed}) != counted:
            yield from self._other_keys(folder, plan)

    def _other_keys(self, folder: Folder, plan: Plan) -> Iterator[str]:
        try:
            planned = [text(item.key) for item in plan.items(folder, self.unit)]
        except VitConvertError as error:
            yield f"its keys cannot be compared: {error.fact}"
        else:
            if sorted(planned) != sorted([*self.keys, *self.failed]):
                yield "its keys are not those of the plan, each as often as there"


def _finite(batch: pa.RecordBatch) -> bool:
    names = [name for name in ("features", "scores") if name in batch.schema.names]
    columns = (batch.column(name).flatten().to_numpy(zero_copy_only=False) for name in names)
    return all(bool(np.isfinite(column).all()) for column in columns)
