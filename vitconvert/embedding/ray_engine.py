"""The engine "ray": workers of Ray, one for each device, each with one shard at a time.

Ray's core alone: actors, and no datasets. A shard is lost with its worker, and computed again; with
one in flight each, it is known which shard a worker died of.
Written for Ray 2.60, https://docs.ray.io/en/latest/ray-core/walkthrough.html.
"""

import dataclasses
import os
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from vitconvert.embedding import require_package
from vitconvert.embedding.embedder import LoadedTask, Task
from vitconvert.embedding.events import Totals
from vitconvert.embedding.folders import Folder
from vitconvert.embedding.options import RunOptions
from vitconvert.embedding.plan import Plan
from vitconvert.embedding.shard import OF_ONE_UNIT, ShardReport, write_shard
from vitconvert.embedding.units import Unit
from vitconvert.errors import SourceError, UsageError, VitConvertError

_TRIES = 3  # of a shard whose workers die
_PATIENCE = 30  # seconds until the first worker has its processors


def compute_with_ray(
    folder: Folder,
    plan: Plan,
    pending: Sequence[Unit],
    task: Task,
    options: RunOptions,
    totals: Totals,
) -> None:
    """Compute units on the workers of a cluster, or of this machine.

    Raises:
        UsageError: The cluster has no worker's processors or GPUs.
        SourceError: There is no cluster at the address.
    """
    if not pending:
        return
    threads = task.threads or max(1, int(options.cpus_per_worker))
    work = _Work(
        folder=folder,
        plan=dataclasses.replace(plan, units=()),
        task=dataclasses.replace(task, threads=threads),
        store=options.store,
        base=os.getcwd(),  # noqa: PTH109
    )
    with _cluster(options.address):
        _Pool(work, pending, options, totals).run()


def check_workers(task: Task, options: RunOptions) -> None:
    """Check, before any work is done, that there can be workers for it.

    Raises:
        MissingPackage: ray is not installed.
        UsageError: They would wait for GPUs that they do not use, or use what Ray does not give.
    """
    require_package("ray")
    given = options.gpus_per_worker > 0
    if given == (task.device != "cpu"):
        return
    raise UsageError(
        "The workers' GPUs and the device do not fit together.",
        evidence={"GPUs of a worker": f"{options.gpus_per_worker:g}", "device": task.device},
        hint="--device cuda uses them." if given else "--gpus-per-worker 1 asks for one.",
    )


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """The cluster at the address, one that this process has already, or one of this machine."""
    import ray

    if ray.is_initialized():
        yield
        return
    _require_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else {"include_dashboard": False}),
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise _no_cluster(address, error) from None
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str | None) -> None:
    """Ray itself would ask for minutes, without a word."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> SourceError:
    return SourceError(
        "There is no cluster of Ray at this address.",
        evidence={"address": address or "this machine", "why": str(error).split("\n")[0]},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What every worker is told.

    Attributes:
        folder: Of the output.
        plan: Without its units.
        task: With the threads of a worker.
        store: Numbers of features.
        base: The directory that relative names start from.
    """

    folder: Folder
    plan: Plan
    task: Task
    store: str
    base: str

    def load(self) -> LoadedTask:
        """The model, in the process of a worker."""
        with suppress(FileNotFoundError):  # on this machine; absolute names and URLs remain
            os.chdir(self.base)
        return self.task.load()

    def compute(self, unit: Unit, loaded: LoadedTask) -> ShardReport | VitConvertError:
        """Compute a unit; an error that is about it alone is a value."""
        try:
            return write_shard(self.folder, self.plan, unit, loaded, store=self.store)
        except OF_ONE_UNIT as error:
            return error


def _worker_class() -> type:
    """What runs in a process of Ray: a model, loaded once.

    The class stands in a function, so that Ray sends its code and not its name: a worker says that
    it is there before it imports torch, which can take a minute on a machine that has just begun.
    """

    class Worker:
        def __init__(self) -> None:
            self.loaded: Any = None

        def alive(self) -> None:
            """It is, if it answers: this process has its processors."""

        def compute(self, work: "_Work", unit: "Unit") -> "ShardReport | VitConvertError":
            self.loaded = self.loaded or work.load()
            return work.compute(unit, self.loaded)

    return Worker


class _Pool:
    """Workers, and the units that they have, or that wait for one."""

    def __init__(
        self, work: _Work, pending: Sequence[Unit], options: RunOptions, totals: Totals
    ) -> None:
        import ray

        self._work = ray.put(work)
        self._options = options
        self._totals = totals
        self._waiting = deque(pending)
        self._deaths: Counter[int] = Counter()  # of a unit's workers
        self._stillborn = 0
        self._busy: dict[Any, tuple[Any, Unit]] = {}  # what a worker will answer -> it, and what of
        self._starting: dict[Any, Any] = {}  # what says that a worker is there -> it

    def run(self) -> None:
        """Compute all."""
        import ray

        try:
            for _ in range(min(_workers(self._options), len(self._waiting))):
                self._start()
            while self._busy or self._waiting:
                for answer in self._answers():
                    if answer in self._starting:
                        self._welcome(answer)
                    else:
                        self._take(answer)
        finally:
            for worker in [
                *self._starting.values(),
                *(worker for worker, _ in self._busy.values()),
            ]:
                ray.kill(worker)

    def _start(self) -> None:
        import ray

        options = self._options
        remote: Any = ray.remote(
            num_cpus=options.cpus_per_worker, num_gpus=options.gpus_per_worker, max_restarts=0
        )
        worker = remote(_worker_class()).remote()
        self._starting[worker.alive.remote()] = worker

    def _answers(self) -> list[Any]:
        """What can be taken next. Workers may compute for hours, but not wait for processors."""
        import ray

        awaited = [*self._busy, *self._starting]
        timeout = None if self._busy else _PATIENCE
        ready: list[Any] = ray.wait(awaited, num_returns=1, timeout=timeout)[0]
        if not ready:
            raise UsageError(
                f"No worker got its processors within {_PATIENCE} seconds.",
                evidence={"a worker": _needs(self._options), "free": _free()},
                hint="wait for other jobs, or ask for less: --cpus-per-worker, --gpus-per-worker.",
            )
        return ready

    def _welcome(self, answer: Any) -> None:
        """A worker has its processors; or it is dead before it had any work."""
        import ray

        worker = self._starting.pop(answer)
        try:
            ray.get(answer)
        except ray.exceptions.RayError as error:
            self._stillborn += 1
            if self._stillborn == _TRIES:
                raise VitConvertError(
                    "Workers of Ray end as soon as they start.",
                    evidence={"why": _first_line(error)},
                ) from None
            self._start()
        else:
            self._give_unit(worker)

    def _give_unit(self, worker: Any) -> None:
        import ray

        if self._waiting:
            unit = self._waiting.popleft()
            self._busy[worker.compute.remote(self._work, unit)] = worker, unit
        else:
            ray.kill(worker)  # others may have its processors

    def _take(self, answer: Any) -> None:
        """What a worker answers; or it is dead, and another takes its place."""
        import ray

        worker, unit = self._busy.pop(answer)
        try:
            report = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            ray.kill(worker)
            raise error.cause or error from None
        except ray.exceptions.RayError as error:  # of the worker, its node or its memory
            ray.kill(worker)  # it may only be out of reach
            self._bury(unit, _first_line(error))
            return
        if isinstance(report, VitConvertError):
            self._totals.abandoned(unit, report.fact)
        else:
            self._totals.images(report.rows + report.failed, report.failed)
            self._totals.shard(report)
        self._give_unit(worker)

    def _bury(self, unit: Unit, why: str) -> None:
        self._deaths[unit.number] += 1
        if self._deaths[unit.number] < _TRIES:
            self._waiting.append(unit)
        else:
            self._totals.abandoned(unit, f"its worker died {_TRIES} times: {why}")
        if self._waiting:
            self._start()


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


def _free() -> str:
    import ray

    return _resources(ray.available_resources())


def _resources(found: Any) -> str:
    return f"{found.get('CPU', 0):g} CPUs, {found.get('GPU', 0):g} GPUs"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
