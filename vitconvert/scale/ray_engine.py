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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vitconvert.errors import SourceError, UsageError, VitConvertError
from vitconvert.scale import require_extra
from vitconvert.scale.embedder import LoadedTask, Task
from vitconvert.scale.events import Totals
from vitconvert.scale.folders import Folder
from vitconvert.scale.plan import Plan
from vitconvert.scale.shard import OF_ONE_UNIT, ShardReport, write_shard
from vitconvert.scale.units import Unit

if TYPE_CHECKING:
    from vitconvert.scale.run import RunOptions

_TRIES = 3  # of a shard whose workers die
_PATIENCE = 30  # seconds until the first worker has its processors


def compute_with_ray(
    folder: Folder,
    plan: Plan,
    pending: Sequence[Unit],
    task: Task,
    options: "RunOptions",
    totals: Totals,
) -> None:
    """Compute units on the workers of a cluster, or of this machine.

    Raises:
        MissingPackage: ray is not installed.
        UsageError: The cluster has no worker's processors or GPUs.
        SourceError: There is no cluster at the address.
    """
    require_extra("ray", "ray")
    if not pending:
        return
    with _cluster(options.address):
        threads = task.threads or max(1, int(options.cpus_per_worker))
        work = _Work(folder, dataclasses.replace(plan, units=()), task, threads, options)
        _Pool(work, pending, totals).run()


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


class _Worker:
    """What runs in a process of Ray: a model, loaded once."""

    def __init__(self, work: "_Work") -> None:
        self._work = work
        self._loaded: LoadedTask | None = None

    def alive(self) -> bool:
        """That this process has its processors."""
        return True

    def compute(self, unit: Unit) -> ShardReport | VitConvertError:
        """Compute a unit; an error that is about it alone is a value."""
        work = self._work
        if self._loaded is None:
            self._loaded = dataclasses.replace(work.task, threads=work.threads).load()
        try:
            return write_shard(work.folder, work.plan, unit, self._loaded, store=work.options.store)
        except OF_ONE_UNIT as error:
            return error


@dataclasses.dataclass(frozen=True)
class _Work:
    """What every worker is told once."""

    folder: Folder
    plan: Plan  # without its units
    task: Task
    threads: int
    options: "RunOptions"

    def worker(self) -> Any:
        """A new worker, that waits for its processors."""
        import ray

        options = self.options
        remote: Any = ray.remote(
            num_cpus=options.cpus_per_worker, num_gpus=options.gpus_per_worker, max_restarts=0
        )
        return remote(_Worker).remote(self)


class _Pool:
    """Workers, and the units that they have, or that wait for one."""

    def __init__(self, work: _Work, pending: Sequence[Unit], totals: Totals) -> None:
        self._work = work
        self._totals = totals
        self._waiting = deque(pending)
        self._deaths: Counter[int] = Counter()
        self._busy: dict[Any, tuple[Any, Unit]] = {}  # what a worker will answer -> it, and what of
        self._starting: dict[Any, Any] = {}  # what says that a worker is there -> it

    def run(self) -> None:
        """Compute all."""
        import ray

        for _ in range(min(_workers(self._work.options), len(self._waiting))):
            self._start()
        self._require_one()
        while self._busy or self._waiting:
            answers = [*self._busy, *self._starting]
            for answer in ray.wait(answers, num_returns=1)[0]:
                if answer in self._starting:
                    self._give_unit(self._starting.pop(answer))
                else:
                    self._take(answer)

    def _start(self) -> None:
        worker = self._work.worker()
        self._starting[worker.alive.remote()] = worker

    def _require_one(self) -> None:
        import ray

        ready, _ = ray.wait(list(self._starting), num_returns=1, timeout=_PATIENCE)
        if not ready:
            raise UsageError(
                f"No worker got its processors within {_PATIENCE} seconds.",
                evidence={"a worker": _needs(self._work.options), "free": _free()},
                hint="wait for other jobs, or ask for less: --cpus-per-worker, --gpus-per-worker.",
            )

    def _give_unit(self, worker: Any) -> None:
        if self._waiting:
            unit = self._waiting.popleft()
            self._busy[worker.compute.remote(unit)] = worker, unit

    def _take(self, answer: Any) -> None:
        """What a worker answers; or it is dead, and another takes its place."""
        import ray

        worker, unit = self._busy.pop(answer)
        try:
            report = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from None
        except ray.exceptions.RayError as error:  # of the worker, its node or its memory
            self._bury(unit, str(error).strip().split("\n")[0])
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


def _workers(options: "RunOptions") -> int:
    """How many workers fit into the cluster, or are asked for.

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
    return min(options.workers or most, most)


def _needs(options: "RunOptions") -> str:
    return f"{options.cpus_per_worker:g} CPUs, {options.gpus_per_worker:g} GPUs"


def _free() -> str:
    import ray

    return _resources(ray.available_resources())


def _resources(found: Any) -> str:
    return f"{found.get('CPU', 0):g} CPUs, {found.get('GPU', 0):g} GPUs"
