"""A run: what an output lacks of the images of its sources is computed, shard after shard."""

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any, Self

import pyarrow as pa

from vitconvert.arguments import refuse
from vitconvert.embedding import shards
from vitconvert.embedding.embedder import Task
from vitconvert.embedding.files import Wanted, digest
from vitconvert.embedding.folders import folder_at
from vitconvert.embedding.options import STORES, Event, Notify, RunOptions, Totals
from vitconvert.embedding.outputs import Output, begin, find_output, write_records
from vitconvert.embedding.shards import Answered, Keys, read_keys, survey
from vitconvert.embedding.sources import Found, Layout, Sources
from vitconvert.errors import SourceError, some

# For an estimate: images that are tried, and bytes of a number after zstd, of float32 with split
# bytes and of float16 (a ViT-B's features, 2,599 and 1,413 for 768 numbers, pyarrow 26), of a key.
_TRIED, _PACKED, _KEY = 32, {"float32": 0.85, "float16": 0.92}, 16


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
        SourceError: There are no images.
        TooManyFailures: More images failed than are allowed; finished shards are kept.
        VitConvertError: One of the errors of `Task.load`.
    """
    by_ray = options.engine == "ray"
    if by_ray:
        from vitconvert.embedding.ray_engine import check_workers, compute_with_ray

        check_workers(task, options)
    if task.computed == "classes" and options.store != RunOptions.store:
        refuse(["store"], "this is about features, and classes are computed.")
    sources.check()
    folder = folder_at(output)
    find_output(folder)  # before the model is loaded, which may take minutes
    # Where workers have the accelerators, this process needs but the identity of the model.
    loaded = (task.with_computing(device="cpu") if by_ray else task).load()
    name = f"only{options.part}" if options.part else "all"
    with folder.held(name, alone=options.only is None) as held:
        begun = begin(
            held,
            loaded,
            sources,
            store=options.store,
            append=options.append,
            part=options.part,
        )
        found, tries = survey(begun)
        begun = dataclasses.replace(begun, tries=tries + options.retry_failed)
        known, known_failed = (sum(counts[n] for counts in found.values()) for n in (0, 1))
        begun.unfinish()
        totals = Totals(notify, options.max_errors, found)
        notify(Event(what="begun", known=known + known_failed, known_failed=known_failed))
        for doubt in loaded.doubts:
            notify(Event(what="note", message=doubt))
        wanted = _wanted(begun, found, retry=options.retry_failed)
        mine = _mine(sources, begun.layout, options)
        if by_ray:
            compute_with_ray(begun, sources, mine, wanted, task, options, totals)
        else:
            items = sources.items(mine, begun.layout, wanted, totals.abandoned)
            with UntilInterrupted(shards.answers(loaded, items)) as answered:
                while report := shards.write_shard(
                    begun,
                    begun.next_name(),
                    answered,
                    loaded,
                    most=options.shard_rows,
                    progress=totals.images,
                ):
                    totals.shard(report.name, report.rows, report.failed)
            if answered.interrupted:
                raise KeyboardInterrupt
        if not (totals.shards or totals.given_up or options.only or options.retry_failed):
            raise SourceError("There are no images.", evidence={"sources": some(sources.given)})
        if options.retry_failed:
            totals.shards, _ = survey(begun)
        write_records(begun, totals.shards)
        if begun.folder.names("remarks"):
            message = "remarks/ names every image that was not read in full, and why"
            notify(Event(what="note", message=message))
        if not totals.given_up:
            begun.finish(totals.shards)
    finished = Event(
        what="finished",
        images=totals.done,
        failed=totals.failed,
        shards=totals.computed,
        known=known + known_failed,
        known_failed=0 if options.retry_failed else known_failed,
        abandoned=totals.given_up,
        shape=loaded.shape,
        features=loaded.features.in_words(options.store) if loaded.features else None,
    )
    notify(finished)
    return finished


class UntilInterrupted:
    """Answers that end at the first Ctrl-C, so that those which are there become a shard.

    What waits for an answer ends at once; what writes goes on to the end. A second Ctrl-C ends
    everything.

    Attributes:
        interrupted: Whether it was pressed.
    """

    def __init__(self, answered: Iterator[Answered]) -> None:
        self._answered = answered
        self._waits = self.interrupted = False
        self._before: Any = None

    def __enter__(self) -> Self:
        # Python calls handlers in its main thread alone, and a program may have its own.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        again, self.interrupted = self.interrupted, True
        if self._waits or again:
            raise KeyboardInterrupt

    def __iter__(self) -> Iterator[Answered]:
        return self

    def __next__(self) -> Answered:
        if self.interrupted:
            raise StopIteration
        try:
            self._waits = True
            return next(self._answered)
        except KeyboardInterrupt:
            self.interrupted = True
            raise StopIteration from None
        finally:
            self._waits = False


def _mine(sources: Sources, layout: Layout, options: RunOptions) -> Iterator[Found]:
    """The files of which this run computes the images, and not another part."""
    if options.only is None:
        return sources.found()
    k, n = options.only
    every = sources.found()
    return (one for one in every if int.from_bytes(digest(layout.key(one.name))) % n == k - 1)


def _wanted(output: Output, found: dict[str, list[int]], *, retry: bool) -> Wanted:
    """Which images are computed: those of no shard, or those that failed."""

    def keys(folder: str) -> Iterable[pa.Array]:
        names = found if not folder else (name for name, counts in found.items() if counts[1])
        return (read_keys(output, name, folder) for name in names)

    rows, failed = (sum(counts[n] for counts in found.values()) for n in (0, 1))
    if retry:
        return Keys(keys("failed"), failed).take
    known = Keys(chain(keys(""), keys("failed")), rows + failed)
    return lambda keys: [not there for there in known.take(keys)]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run will take.

    Attributes:
        images: Of the sources.
        tried: How many images the figures are from.
        seconds: For all images, in one process like this one.
        bytes: Of all shards.
    """

    images: int
    tried: int
    seconds: float
    bytes: int


def estimate(task: Task, sources: Sources, *, store: str) -> Estimate:
    """Count the images, and compute the first twice: the second time, all is warm.

    Raises:
        SourceError: There are no images.
    """
    sources.check()
    loaded, images = task.load(), 0

    def first(keys: Sequence[str]) -> list[bool]:
        nonlocal images
        before, images = images, images + len(keys)
        return [number < _TRIED for number in range(before, images)]

    files, layout = sources.found(), Layout.of(sources)
    items = list(sources.items(files, layout, first, lambda _name, _why: None))
    if not items:
        raise SourceError("There are no images.", evidence={"sources": some(sources.given)})
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        tried = len(list(shards.answers(loaded, items)))
        seconds = time.perf_counter() - start
    row = _KEY + math.prod(loaded.shape) * STORES[store] * _PACKED[store]
    return Estimate(
        images=images,
        tried=tried,
        seconds=seconds / tried * images,
        bytes=round(row * images),
    )
