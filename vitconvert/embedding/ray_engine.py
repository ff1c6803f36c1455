"""The engine "ray": Ray Data streams images to a pool of actors, which write whole shards.

Written for Ray Data 2.60, https://docs.ray.io/en/latest/data/data.html. What stays by hand, and
why, is in README.md.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from vitconvert.embedding import require_package, shards
from vitconvert.embedding.embedder import LoadedTask, Task
from vitconvert.embedding.images import archive
from vitconvert.embedding.options import RunOptions, Totals
from vitconvert.embedding.shards import Output, ShardReport, key_sum
from vitconvert.embedding.sources import (
    Item,
    Sources,
    Wanted,
    is_archive,
    picture,
    reason,
)
from vitconvert.errors import CorruptFile, SourceError, UnsafeFile, UsageError, VitConvertError

_TRIES = 3  # of a shard whose workers die
_PATIENCE = 30  # seconds until the first worker has its processors
_ROWS, _BYTES = 2048, 2**26  # of a block, at most
_TASKS = 1024  # blocks of names, or archives, that Ray Data is given at once: they are in memory
_GIVEN_UP = "given up"


def check_workers(task: Task, options: RunOptions) -> None:
    """Check, before any work is done, that there can be workers for it.

    Raises:
        MissingPackage: ray is not installed, or not with what Ray Data needs.
        UsageError: They would wait for GPUs that they do not use, or use what Ray does not give.
    """
    require_package("ray")
    require_package("pandas")
    given = options.gpus_per_worker > 0
    if given == (task.device != "cpu"):
        return
    raise UsageError(
        "The workers' GPUs and the device do not fit together.",
        evidence={"GPUs of a worker": f"{options.gpus_per_worker:g}", "device": task.device},
        hint="--device cuda uses them." if given else "--gpus-per-worker 1 asks for one.",
    )


def compute_with_ray(
    output: Output,
    sources: Sources,
    wanted: Wanted,
    task: Task,
    options: RunOptions,
    totals: Totals,
) -> None:
    """Compute what is wanted on the workers of a cluster, or of this machine.

    Raises:
        UsageError: The cluster has no worker's processors or GPUs.
        SourceError: There is no cluster at the address.
    """
    threads = task.threads or max(1, int(options.cpus_per_worker))
    work = Work(
        output=output,
        sources=replace(sources, listed=()),
        task=replace(task, threads=threads),
        most=min(options.shard_rows, _ROWS),
        base=os.getcwd(),  # noqa: PTH109
    )
    tasks = _tasks(work, sources, wanted, options.mine)
    first = list(islice(tasks, _TASKS))
    with _cluster(options.address) if first else nullcontext():
        import ray

        asked = ray.put(wanted)
        while first:
            _compute(first, work, asked, options, totals)
            first = list(islice(tasks, _TASKS))


def _compute(
    tasks: list[dict[str, Any]], work: "Work", wanted: Any, options: RunOptions, totals: Totals
) -> None:
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = _PATIENCE  # without it, it waits without a word (ray#44687)
    workers = _workers(options)
    blocks = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
        lambda batch: _read(batch, work, wanted),
        batch_format="pyarrow",
        batch_size=None,
        num_cpus=0,  # workers may have all processors
        compute=ray.data.TaskPoolStrategy(workers),
    )
    reports = blocks.map_batches(
        _worker_class(),
        fn_constructor_args=[work],
        batch_format="pyarrow",
        batch_size=None,
        num_cpus=options.cpus_per_worker,
        num_gpus=options.gpus_per_worker,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
    )
    try:
        for row in reports.iter_rows():
            if row["why"] is not None:
                totals.abandoned(row["name"], row["why"])
            else:
                totals.images(row["rows"] + row["failed"], row["failed"])
                totals.shard(ShardReport(**{n: row[n] for n in ("name", "rows", "failed")}))
    except ray.exceptions.GetTimeoutError:
        raise UsageError(
            f"No worker got its processors within {_PATIENCE} seconds.",
            evidence={"a worker": _needs(options), "free": _resources(ray.available_resources())},
            hint="wait for other jobs, or ask for less: --cpus-per-worker, --gpus-per-worker.",
        ) from None
    except ray.exceptions.RayTaskError as error:
        cause: BaseException | None = error
        while isinstance(cause, ray.exceptions.RayError):  # an OSError without a number, too
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise cause or error from None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every worker is told.

    Attributes:
        output: Where shards are written.
        sources: Without the names of a list.
        task: With the threads of a worker.
        most: Images of a shard.
        base: The directory that relative names start from.
    """

    output: Output
    sources: Sources
    task: Task
    most: int
    base: str

    def load(self) -> LoadedTask:
        """The model, in the process of a worker."""
        self.go_to_base()
        return self.task.load()

    def go_to_base(self) -> None:
        """Relative names lead to the same files, where this is the same machine."""
        with suppress(FileNotFoundError):
            os.chdir(self.base)

    def write(self, table: pa.Table, loaded: LoadedTask) -> Iterator[dict[str, Any]]:
        """Write the shards of a block; each is given up if its workers died thrice."""
        rows = [row for row in table.to_pylist() if row["code"] != _GIVEN_UP]
        for row in table.to_pylist():
            if row["code"] == _GIVEN_UP:
                yield _report(row["key"], why=row["message"])
        for begin in range(0, len(rows), self.most):
            some = rows[begin : begin + self.most]
            # A block that is computed again, by whomever, is written to the same place.
            number = key_sum([*(row["key"] for row in some), str(self.output.tries)])
            name = f"part-{number:032x}{self.output.part}.parquet"
            tries = f"tmp/tries-{number:032x}"
            folder = self.output.folder
            before = sum(found.startswith(f"tries-{number:032x}") for found in folder.names("tmp"))
            if before == _TRIES:
                yield _report(name, why=f"its worker died {_TRIES} times")
                continue
            with folder.writing(f"{tries}-{before}"):
                pass
            answered = shards.answers(loaded, map(self._item, some))
            report = shards.write_shard(
                self.output, name, answered, loaded, most=self.most, seconds=float("inf")
            )
            assert report
            for n in range(before + 1):
                folder.remove(f"{tries}-{n}")
            yield _report(name, report.rows, report.failed)

    def _item(self, row: dict[str, Any]) -> Item:
        columns = {name: row.get(f"column {name}") for name in self.output.layout.columns}
        if row["file"] is not None:
            return Item(row["key"], picture(os.fsdecode(row["file"])), columns)
        if row["message"] is None:
            return Item(row["key"], row["content"], columns)
        return Item(row["key"], _Told(row["message"], row["code"]), columns)


class _Told(VitConvertError):
    """An error that an archive's reader had, elsewhere."""

    def __init__(self, fact: str, code: str) -> None:
        super().__init__(fact)
        self.__dict__["code"] = code


def _report(name: str, rows: int = 0, failed: int = 0, why: str | None = None) -> dict[str, Any]:
    return {"name": name, "rows": rows, "failed": failed, "why": why}


def _worker_class() -> type:
    """An actor: a model, loaded once. Ray sends the code of a class in a function by value, so it
    says that it is there before it imports torch.
    """

    class Worker:
        def __init__(self, work: "Work") -> None:
            self.work = work
            self.loaded: Any = None

        def __call__(self, table: "pa.Table") -> "Iterator[pa.Table]":
            import pyarrow

            self.loaded = self.loaded or self.work.load()
            kinds = {"name": "string", "rows": "int64", "failed": "int64", "why": "string"}
            schema = pyarrow.schema([(n, pyarrow.type_for_alias(k)) for n, k in kinds.items()])
            for report in self.work.write(table, self.loaded):
                yield pyarrow.Table.from_pylist([report], schema)

    return Worker


def _tasks(
    work: Work, sources: Sources, wanted: Wanted, mine: Callable[[str], bool]
) -> Iterator[dict[str, Any]]:
    """What is read together: an archive, or names of files that stand alone."""
    layout, waiting = work.output.layout, []
    for found in sources.found():
        key = layout.key(found.name)
        if not mine(key):
            continue
        if is_archive(found.name):
            yield {"archive": os.fsencode(found.name), "rows": []}
        elif wanted(key):
            row = {"key": key, "file": os.fsencode(found.name), "group": found.group}
            waiting.append(row)
            if len(waiting) == work.most:
                yield {"archive": None, "rows": waiting}
                waiting = []
    if waiting:
        yield {"archive": None, "rows": waiting}


def _read(batch: pa.Table, work: Work, asked: Any) -> Iterator[pa.Table]:
    """The images of tasks, as blocks: names of files, or bytes from archives."""
    import ray

    work.go_to_base()
    for task in batch.to_pylist():
        if task["archive"] is None:
            yield _table(work, [_row(r["key"], r["group"], file=r["file"]) for r in task["rows"]])
            continue
        name = os.fsdecode(task["archive"])
        yield from _blocks(work, _from_archive(name, work, ray.get(asked)))


def _from_archive(name: str, work: Work, wanted: Wanted) -> Iterator[dict[str, Any]]:
    key = work.output.layout.key(name)
    try:
        for item in archive(name, key, work.sources, work.output.layout, wanted):
            row = _row(item.key, None)
            row |= {f"column {column}": value for column, value in item.columns.items()}
            if isinstance(item.picture, VitConvertError):
                row |= {"code": item.picture.code, "message": reason(item.picture)}
            else:
                row["content"] = item.picture
            yield row
    except (SourceError, CorruptFile, UnsafeFile) as error:
        yield {**_row(key, None), "code": _GIVEN_UP, "message": reason(error)}


def _blocks(work: Work, rows: Iterable[dict[str, Any]]) -> Iterator[pa.Table]:
    waiting: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row["content"] or b"")
        if len(waiting) == work.most or size > _BYTES:
            yield _table(work, waiting)
            waiting, size = [], 0
    if waiting:
        yield _table(work, waiting)


def _row(key: str, group: str | None, file: bytes | None = None) -> dict[str, Any]:
    row = dict.fromkeys(("content", "code", "message"))
    return {**row, "key": key, "file": file, "column class": group}


def _table(work: Work, rows: list[dict[str, Any]]) -> pa.Table:
    kinds = {"key": pa.string(), "file": pa.binary(), "content": pa.large_binary()}
    kinds |= {"code": pa.string(), "message": pa.string()}
    columns = work.output.layout.columns.items()
    kinds |= {f"column {name}": pa.type_for_alias(kind) for name, kind in columns}
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """The cluster at the address, one that this process has already, or one of this machine."""
    import ray

    if ray.is_initialized():
        yield
        return
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        if colon and port.isdecimal():  # Ray itself would ask for minutes, without a word
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else {"include_dashboard": False}),
        )
    except (ConnectionError, ValueError, RuntimeError, OSError, OverflowError) as error:
        raise SourceError(
            "There is no cluster of Ray at this address.",
            evidence={"address": address or "this machine", "why": str(error).split("\n")[0]},
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _workers(options: RunOptions) -> int:
    """As many workers as are asked for, some of which may wait for processors, or as many as fit.

    Raises:
        UsageError: None fits.
    """
    import ray

    total = ray.cluster_resources()
    cpus, gpus = options.cpus_per_worker, options.gpus_per_worker
    fitting = [int(total.get("CPU", 0) / cpus)] if cpus else []
    fitting += [int(total.get("GPU", 0) / gpus)] if gpus else []
    most = min(fitting, default=1)
    if most < 1:
        raise UsageError(
            "The cluster has no room for a worker.",
            evidence={"a worker": _needs(options), "the cluster": _resources(total)},
            hint="ask for less: --cpus-per-worker, --gpus-per-worker.",
        )
    return options.workers or most


def _needs(options: RunOptions) -> str:
    return f"{options.cpus_per_worker:g} CPUs, {options.gpus_per_worker:g} GPUs"


def _resources(found: Any) -> str:
    return f"{found.get('CPU', 0):g} CPUs, {found.get('GPU', 0):g} GPUs"
