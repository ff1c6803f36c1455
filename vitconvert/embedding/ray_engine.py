"""The engine "ray": Ray Data gives files to a pool of actors, each of which writes whole shards.

Written for Ray Data 2.60, https://docs.ray.io/en/latest/data/data.html. What stays by hand, and
why, is in README.md.
"""

import logging
import os
import pickle
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from vitconvert.embedding import require_package
from vitconvert.embedding.embedder import LoadedTask, Task
from vitconvert.embedding.files import Item, Wanted, digest
from vitconvert.embedding.options import RunOptions, Totals
from vitconvert.embedding.outputs import Output
from vitconvert.embedding.shards import answers, key_sum, report_of, write_shard
from vitconvert.embedding.sources import Found, Sources, asked
from vitconvert.errors import CorruptFile, SourceError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from ray import ObjectRef

_TRIES = 3  # of a shard whose workers die
_PATIENCE = 30  # seconds until the first worker has its processors
_ROWS, _BYTES = 2048, 2**26  # of a shard, at most: images from archives are in memory
_TASKS = 1024  # groups of names, or archives, that Ray Data is given at once: they are in memory


def check_workers(task: Task, options: RunOptions) -> None:
    """Check, before any work is done, that there can be workers for it.

    Raises:
        MissingPackage: ray is not installed, or not with what Ray Data needs.
        UsageError: There are to be none; or they would wait for GPUs that they do not use, or use
            what Ray does not give.
    """
    if task.computing.workers == 0:
        raise UsageError("Nobody computes without workers of Ray.", hint="--workers 1, or more.")
    require_package("ray")
    require_package("pandas")
    given, device = options.gpus_per_worker > 0, task.computing.device
    if given == (device != "cpu"):
        return
    raise UsageError(
        "The workers' GPUs and the device do not fit together.",
        evidence={
            "GPUs of a worker": f"{options.gpus_per_worker:g}",
            "device": task.computing.device,
        },
        hint="--device cuda uses them." if given else "--gpus-per-worker 1 asks for one.",
    )


class Report(NamedTuple):
    """What became of a shard, or why it or an archive was given up."""

    name: str
    rows: int = 0
    failed: int = 0
    why: str | None = None


class Group(NamedTuple):
    """Files that one worker reads: names that stand alone, or an archive, or a part of its images.

    Attributes:
        files: Which.
        part: (k, n): the k-th of n parts of the images, from 0.
    """

    files: list[Found]
    part: tuple[int, int] = (0, 1)


def compute_with_ray(
    output: Output,
    sources: Sources,
    files: Iterable[Found],
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
    threads = task.computing.threads or max(1, int(options.cpus_per_worker))
    work = Work(
        output=output,
        sources=replace(sources, listed=()),
        task=task.with_computing(threads=threads, workers=None),
        most=min(options.shard_rows, _ROWS),
        base=os.getcwd(),  # noqa: PTH109
    )
    groups = _groups(files, work, wanted)
    first = list(islice(groups, _TASKS))
    given_up: set[str] = set()
    with _cluster(options.address) if first else nullcontext():
        import ray

        shared = ray.put(wanted)
        while first:
            for report in _reports(first, work, shared, options, task.computing.workers):
                if report.why is None:
                    totals.images(report.rows + report.failed, report.failed)
                    totals.shard(report.name, report.rows, report.failed)
                elif report.name not in given_up:  # each part of an archive tells of it
                    given_up.add(report.name)
                    totals.abandoned(report.name, report.why)
            first = list(islice(groups, _TASKS))


def _groups(files: Iterable[Found], work: "Work", wanted: Wanted) -> Iterator[Group]:
    waiting: list[Found] = []
    for file, _ in asked(files, work.output.layout, wanted):
        if file.is_archive:
            yield Group([file])
            continue
        waiting.append(file)
        if len(waiting) == work.most:
            yield Group(waiting)
            waiting = []
    if waiting:
        yield Group(waiting)


def _reports(
    groups: list[Group],
    work: "Work",
    wanted: "ObjectRef[Wanted]",
    options: RunOptions,
    asked_for: int | None,
) -> Iterator[Report]:
    import ray

    def needs() -> str:
        return f"{options.cpus_per_worker:g} CPUs, {options.gpus_per_worker:g} GPUs"

    def resources(found: Mapping[str, float]) -> str:
        return f"{found.get('CPU', 0):g} CPUs, {found.get('GPU', 0):g} GPUs"

    total = ray.cluster_resources()
    asked = {"CPU": options.cpus_per_worker, "GPU": options.gpus_per_worker}
    room = min((int(total.get(name, 0) / each) for name, each in asked.items() if each), default=1)
    if room < 1:
        raise UsageError(
            "The cluster has no room for a worker.",
            evidence={"a worker": needs(), "the cluster": resources(total)},
            hint="ask for less: --cpus-per-worker, --gpus-per-worker.",
        )
    workers = asked_for or room  # of which some may wait for processors
    parts = max(1, workers // len(groups))  # of few archives, each is read by several workers
    rows = [
        {"pickled": pickle.dumps(group._replace(part=(k, n)))}
        for group in groups
        for n in [parts if group.files[0].is_archive else 1]
        for k in range(n)
    ]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = _PATIENCE  # without it, it waits without a word (ray#44687)
    context.target_max_block_size = 1  # a report is told of when its shard is there
    reports = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _worker_class(wanted),
        fn_constructor_args=[work],
        batch_format="pyarrow",
        batch_size=None,
        num_cpus=options.cpus_per_worker,
        num_gpus=options.gpus_per_worker,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
    )
    try:
        for row in reports.iter_rows():
            yield Report(**row)
    except ray.exceptions.GetTimeoutError:
        raise UsageError(
            f"No worker got its processors within {_PATIENCE} seconds.",
            evidence={"a worker": needs(), "free": resources(ray.available_resources())},
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
        """The model, in the process of a worker, where relative names lead to the same files."""
        with suppress(FileNotFoundError):  # another machine
            os.chdir(self.base)
        return self.task.load()

    def compute(self, group: Group, loaded: LoadedTask, missing: Wanted) -> Iterator[Report]:
        """Write the shards of files."""
        k, n = group.part
        given_up: list[Report] = []

        def wanted(keys: Sequence[str]) -> list[bool]:
            if not group.files[0].is_archive:
                return [True] * len(keys)  # as was asked when names were grouped
            ours = [int.from_bytes(digest(key)) % n == k for key in keys]
            answers = iter(missing(list(compress(keys, ours))))
            return [is_ours and next(answers) for is_ours in ours]

        def abandoned(name: str, why: str) -> None:
            given_up.append(Report(name, why=why))

        waiting: list[Item] = []
        size = 0
        for item in self.sources.items(group.files, self.output.layout, wanted, abandoned):
            waiting.append(item)
            size += len(item.picture) if isinstance(item.picture, bytes) else 0
            if len(waiting) == self.most or size > _BYTES:
                yield self._write(waiting, loaded)
                waiting, size = [], 0
        if waiting:
            yield self._write(waiting, loaded)
        yield from given_up

    def _write(self, items: list[Item], loaded: LoadedTask) -> Report:
        """Write a shard, or give it up if its workers died thrice."""
        output, folder = self.output, self.output.folder
        # A group that is computed again, by whomever, is written to the same place.
        number = f"{key_sum([*(item.key for item in items), str(output.tries)]):032x}"
        name = f"part-{number}{output.part}.parquet"
        with suppress(CorruptFile):  # as a rule, none is there
            written = report_of(output, name)
            return Report(name, written.rows, written.failed)
        before = sum(found.startswith(f"tries-{number}") for found in folder.names("tmp"))
        if before == _TRIES:
            return Report(name, why=f"its worker died {_TRIES} times")
        with folder.writing(f"tmp/tries-{number}-{before}"):
            pass
        found = answers(loaded, iter(items))
        report = write_shard(output, name, found, loaded, most=len(items), seconds=float("inf"))
        assert report
        for tried in range(before + 1):
            folder.remove(f"tmp/tries-{number}-{tried}")
        return Report(name, report.rows, report.failed)


def _worker_class(wanted: "ObjectRef[Wanted]") -> type:
    """An actor: a model, loaded once. Ray sends the code of a class in a function by value, so it
    says that it is there before it imports torch.
    """

    class Worker:
        def __init__(self, work: "Work") -> None:
            self.work = work
            self.loaded: Any = None

        def __call__(self, table: "pa.Table") -> "Iterator[pa.Table]":
            import pickle

            import pyarrow
            import ray

            self.loaded = self.loaded or self.work.load()
            kinds = {"name": "string", "rows": "int64", "failed": "int64", "why": "string"}
            schema = pyarrow.schema([(n, pyarrow.type_for_alias(k)) for n, k in kinds.items()])
            for pickled in table.column("pickled").to_pylist():
                group = pickle.loads(pickled)  # noqa: S301 (the driver's)
                for report in self.work.compute(group, self.loaded, ray.get(wanted)):
                    yield pyarrow.Table.from_pylist([report._asdict()], schema)

    return Worker


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
            "There is no Ray cluster at this address.",
            evidence={"address": address or "this machine", "why": str(error).split("\n")[0]},
        ) from None
    # Of nodes that died Ray 2.60 tells on stdout, where our lines of JSON are.
    module = ray._private.worker
    tell = module.print_to_stdstream
    module.print_to_stdstream = lambda data, **how: tell({**data, "is_err": True}, **how)
    try:
        yield
    finally:
        ray.shutdown()
        module.print_to_stdstream = tell
