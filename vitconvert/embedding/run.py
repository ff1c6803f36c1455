"""A run: the plan is made or found again, and what is missing is computed, unit after unit."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vitconvert.arguments import refuse
from vitconvert.embedding import records
from vitconvert.embedding.embedder import LoadedTask, Task
from vitconvert.embedding.events import Event, Notify, Totals
from vitconvert.embedding.folders import SCRATCH, Folder, folder_at
from vitconvert.embedding.identity import check_same
from vitconvert.embedding.options import RunOptions
from vitconvert.embedding.plan import Plan, Sources, is_of_a_plan, read_plan, what_goes_along
from vitconvert.embedding.planning import make_plan
from vitconvert.embedding.shard import OF_ONE_UNIT, data_folder, failures, write_shard
from vitconvert.embedding.units import Unit
from vitconvert.errors import MissingFact, OutputExists, some


def run(task: Task, sources: Sources, output: str, options: RunOptions, notify: Notify) -> Event:
    """Compute what is missing of an output, and return what became of it.

    Args:
        task: What is computed of each image.
        sources: Where the images are.
        output: A directory, or a URL of pyarrow's.
        options: How.
        notify: Is told what happens.

    Raises:
        OutputExists: Another run is on, or the output is none of ours.
        ConflictingFact: It holds other numbers.
        UsageError: An option is about features, and classes are computed.
        MissingFact: A part of the units is asked for, and there is no plan.
        TooManyFailures: More images failed than are allowed; finished shards are kept.
        VitConvertError: One of the errors of `Task.load` and `make_plan`.
    """
    if options.engine == "ray":
        from vitconvert.embedding.ray_engine import check_workers, compute_with_ray

        check_workers(task, options)
    if task.computed == "classes" and options.store != RunOptions.store:
        refuse(["store"], "this is about features, and classes are computed.")
    loaded = _load(task, options)
    with prepared(sources, output, options, loaded) as (folder, plan):
        pending, known, known_failed = _pending(folder, plan, options, task.computed)
        records.write_records(folder, plan)  # so that an interrupted run can be read, too
        totals = Totals(notify, options.max_errors)
        notify(
            Event(
                what="planned",
                images=sum(unit.rows for unit in pending),
                shards=len(pending),
                known=known,
                known_failed=known_failed,
            )
        )
        for doubt in loaded.doubts:
            notify(Event(what="note", message=doubt))
        if options.engine == "ray":
            compute_with_ray(folder, plan, pending, task, options, totals)
        else:
            _compute_here(folder, plan, pending, loaded, options.store, totals)
        records.write_records(folder, plan)
    finished = dataclasses.replace(totals.finished(known, known_failed), shape=loaded.shape)
    notify(finished)
    return finished


@contextmanager
def prepared(
    sources: Sources, output: str, options: RunOptions, loaded: LoadedTask
) -> Iterator[tuple[Folder, Plan]]:
    """The output, held, and its plan: the one that it has, or a new one.

    Raises:
        OutputExists, ConflictingFact, MissingFact: As for `run`.
    """
    folder = folder_at(output)
    _require_ours(folder)
    only = options.only
    if (only or options.append) and read_plan(folder) is None:
        raise _no_plan(output)
    name = f"only-{only[0]}-of-{only[1]}" if only else "all"
    with folder.held(name, alone=only is None) as held:
        plan = read_plan(held)
        identity = {
            **loaded.identity,
            "output": {"shard_rows": options.shard_rows, "store": options.store},
        }
        if plan is None:
            plan = make_plan(held, sources, identity=identity, shard_rows=options.shard_rows)
        elif options.append:
            check_same(
                {**plan.identity, "source": what_goes_along(plan.identity["source"])},
                {**identity, "source": what_goes_along(sources.description(listed=""))},
            )
            plan = make_plan(
                held, sources, identity=identity, shard_rows=options.shard_rows, before=plan
            )
        else:
            check_same(plan.identity, {**identity, "source": sources.description()})
        yield held, plan


def _compute_here(
    folder: Folder,
    plan: Plan,
    pending: Sequence[Unit],
    loaded: LoadedTask,
    store: str,
    totals: Totals,
) -> None:
    """The engine "local": units one after the other, in this process."""
    for unit in pending:
        try:
            report = write_shard(folder, plan, unit, loaded, store=store, progress=totals.images)
        except OF_ONE_UNIT as error:
            totals.abandoned(unit, error.fact)
        else:
            totals.shard(report)


def _load(task: Task, options: RunOptions) -> LoadedTask:
    """The model; where workers have the accelerators, this process needs but its identity."""
    return (dataclasses.replace(task, device="cpu") if options.engine == "ray" else task).load()


def _pending(
    folder: Folder, plan: Plan, options: RunOptions, computed: str
) -> tuple[list[Unit], int, int]:
    """The units to compute; the images of those that are there, and how many of them failed."""
    k, n = options.only or (1, 1)
    mine = [unit for unit in plan.units if unit.number % n == k - 1]
    if options.retry_failed:
        # First: a run that ends before its time then leaves no shard whose failures are forgotten.
        for part in {unit.part for unit in mine} & set(folder.names("failed")):
            folder.remove(f"{data_folder(computed)}/{part}")
    there = set(folder.names(data_folder(computed)))
    done = [unit for unit in mine if unit.part in there]
    noted = set(folder.names("failed"))
    failed = sum(failures(folder, plan, u, has_failures=u.part in noted) for u in done)
    return [unit for unit in mine if unit.part not in there], sum(u.rows for u in done), failed


def _require_ours(folder: Folder) -> None:
    entries, planned = folder.entries(), folder.names("plan")
    if "plan.json" in planned:
        return
    strange = [name for name in entries if name not in ("plan", SCRATCH)]
    strange += [f"plan/{name}" for name in planned if not is_of_a_plan(name)]
    if strange:
        raise OutputExists(
            "There are files in the output that are no features of vitconvert.",
            evidence={"output": folder, "files": some(strange)},
            hint="name another output with -o.",
        )


def _no_plan(output: str) -> MissingFact:
    return MissingFact(
        "There is no plan yet to take a part of, or to add to.",
        evidence={"output": output},
        hint="the same command with --plan, and without --only or --append, makes it first.",
    )
