"""A run: what an output lacks of the images of its sources is computed, shard after shard."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vitconvert.arguments import read_fields, refuse
from vitconvert.embedding import shards
from vitconvert.embedding.embedder import LoadedTask, Task
from vitconvert.embedding.folders import folder_at
from vitconvert.embedding.shards import STORES, Keys, Output, ShardReport, digest
from vitconvert.embedding.sources import Layout, Sources, Wanted, items
from vitconvert.errors import SourceError, UsageError, VitConvertError, some

ENGINES = ("local", "ray")
OF_RAY = ("address", "workers", "cpus_per_worker", "gpus_per_worker")
# For an estimate: images that are tried, and bytes of a number after zstd, of float32 with split
# bytes and of float16 (a ViT-B's features, 2,599 and 1,413 for 768 numbers, pyarrow 26), of a key.
_TRIED, _PACKED, _KEY = 32, {"float32": 0.85, "float16": 0.92}, 16


def check_engine(name: str) -> None:
    """Refuse an engine that there is not.

    Raises:
        UsageError: Perhaps a runtime was meant, which is another option.
    """
    if name not in ENGINES:
        raise UsageError(
            f"The engine {name!r} is none of {', '.join(ENGINES)}.",
            hint="an engine is where work is done; what computes is the runtime: --runtime "
            "onnxruntime, openvino or auto (in Python, runtime=).",
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run goes, whatever it computes.

    Attributes:
        shard_rows: Images of a shard, at most; it also ends after about a minute.
        store: Numbers of features: "float32" or "float16".
        append: Whether the output may be of other sources, whose images are added.
        retry_failed: Whether only images that failed are computed, once more.
        only: (k, n): compute the k-th of n parts of the images, from 1, and no others. Images of an
            archive are of one part.
        max_errors: How many images may fail before the run ends; None: all.
        engine: "local": this process. "ray": workers of Ray.
        workers, cpus_per_worker, gpus_per_worker, address: Of Ray.
    """

    shard_rows: int = 65536
    store: str = "float32"
    append: bool = False
    retry_failed: bool = False
    only: tuple[int, int] | None = None
    max_errors: int | None = None
    engine: str = "local"
    workers: int | None = None
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    address: str | None = None

    def __post_init__(self) -> None:
        read_fields(self)
        check_engine(self.engine)
        if self.store not in STORES:
            raise UsageError(f"{self.store!r} is none of {', '.join(STORES)}.")
        if self.only and not (len(self.only) == 2 and 1 <= self.only[0] <= self.only[1]):
            raise UsageError("--only K/N (in Python, only=(K, N)) needs 1 <= K <= N.")
        if self.engine != "ray":
            of_ray = (name for name in OF_RAY if getattr(self, name) != getattr(RunOptions, name))
            refuse(of_ray, "this is for the engine ray.", hint="engine='ray', or --engine ray.")

    @property
    def part(self) -> str:
        """What the names of shards end with."""
        return f"-{self.only[0]}-of-{self.only[1]}" if self.only else ""

    def mine(self, key: str) -> bool:
        """Whether this run computes a file."""
        k, n = self.only or (1, 1)
        return n == 1 or int.from_bytes(digest(key)) % n == k - 1


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run.

    Attributes:
        what: "begun", "note", "images", "shard", "abandoned" or "finished".
        images, failed: How many: since the last event, for "images"; of the shard, for "shard"; of
            the run, for "finished".
        shards: How many were computed.
        known, known_failed: Images of shards that were there before, and those that failed.
        abandoned: Archives, or shards, that were given up.
        name: Of a shard, or of what was given up.
        message: Of a note, what should be known; why something was given up.
        shape: What an image became, for "finished".
    """

    what: str
    images: int = 0
    failed: int = 0
    shards: int = 0
    known: int = 0
    known_failed: int = 0
    abandoned: int = 0
    name: str | None = None
    message: str | None = None
    shape: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, without what says nothing."""
        return {name: value for name, value in vars(self).items() if value is not None}


Notify = Callable[[Event], None]


class TooManyFailures(VitConvertError):
    """More images failed than are allowed."""

    code = "too-many-failures"


@dataclass
class Totals:
    """What became of a run so far.

    Attributes:
        notify: Is told what happens.
        max_errors: How many images may fail; None: all.
        shards: The rows and failures of each shard that is there.
    """

    notify: Notify
    max_errors: int | None
    shards: dict[str, list[int]]
    done: int = 0
    failed: int = 0
    computed: int = 0
    given_up: int = 0

    def images(self, done: int, failed: int) -> None:
        """Images were computed.

        Raises:
            TooManyFailures: So it is.
        """
        self.done += done
        self.failed += failed
        self.notify(Event(what="images", images=done, failed=failed))
        if self.max_errors is not None and self.failed > self.max_errors:
            raise TooManyFailures(
                f"{self.failed} images failed, and {self.max_errors} may.",
                hint="finished shards are kept; failed/ says why images of theirs failed."
                if self.computed
                else "--max-errors allows more, and failed/ then says why they did.",
            )

    def shard(self, report: ShardReport) -> None:
        """A shard was written."""
        self.computed += 1
        self.shards[report.name] = [report.rows, report.failed]
        images = report.rows + report.failed
        self.notify(Event(what="shard", name=report.name, images=images, failed=report.failed))

    def abandoned(self, name: str, message: str) -> None:
        """An archive, or a shard, was given up."""
        self.given_up += 1
        self.notify(Event(what="abandoned", name=name, message=message))


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
    shards.require_ours(folder)
    # Where workers have the accelerators, this process needs but the identity of the model.
    loaded = (dataclasses.replace(task, device="cpu") if by_ray else task).load()
    name = f"only{options.part}" if options.part else "all"
    with folder.held(name, alone=options.only is None) as held:
        begun = shards.begin(
            held,
            loaded,
            sources,
            store=options.store,
            append=options.append,
            part=options.part,
        )
        found, tries = shards.survey(begun)
        begun = dataclasses.replace(begun, tries=tries + options.retry_failed)
        known, known_failed = (sum(counts[n] for counts in found.values()) for n in (0, 1))
        shards.unfinish(begun)
        totals = Totals(notify, options.max_errors, found)
        notify(Event(what="begun", known=known + known_failed, known_failed=known_failed))
        for doubt in loaded.doubts:
            notify(Event(what="note", message=doubt))
        if by_ray:
            wanted = _wanted(begun, found, retry=options.retry_failed)
            compute_with_ray(begun, sources, wanted, task, options, totals)
        else:
            _compute_here(begun, sources, loaded, options, totals)
        if not (totals.shards or totals.given_up or options.only or options.retry_failed):
            raise SourceError("There are no images.", evidence={"sources": some(sources.given)})
        if options.retry_failed:
            totals.shards, _ = shards.survey(begun)
        shards.write_records(begun, totals.shards, end=not totals.given_up)
    finished = Event(
        what="finished",
        images=totals.done,
        failed=totals.failed,
        shards=totals.computed,
        known=known + known_failed,
        known_failed=0 if options.retry_failed else known_failed,
        abandoned=totals.given_up,
        shape=loaded.shape,
    )
    notify(finished)
    return finished


def _wanted(output: Output, found: dict[str, list[int]], *, retry: bool) -> Wanted:
    """Which images are computed: those of no shard, or those that failed."""

    def keys(folder: str) -> Iterable[list[str]]:
        names = found if not folder else (name for name, counts in found.items() if counts[1])
        return (shards.read_keys(output, name, folder) for name in names)

    if retry:
        return Keys(keys("failed")).take
    known = Keys(group for folder in ("", "failed") for group in keys(folder))
    return lambda key: not known.take(key)


def _compute_here(
    output: Output, sources: Sources, loaded: LoadedTask, options: RunOptions, totals: Totals
) -> None:
    """The engine "local": shards one after the other, in this process."""
    wanted = _wanted(output, totals.shards, retry=options.retry_failed)
    wanted_items = items(sources, output.layout, wanted, options.mine, totals.abandoned)
    answered = shards.answers(loaded, wanted_items)
    number = output.next_number()
    write = partial(shards.write_shard, most=options.shard_rows, progress=totals.images)
    while report := write(output, f"part-{number:06d}{output.part}.parquet", answered, loaded):
        totals.shard(report)
        number += 1


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

    def first(_key: str) -> bool:
        nonlocal images
        images += 1
        return images <= _TRIED

    layout = Layout.of(sources)
    some_items = list(items(sources, layout, first, lambda _: True, lambda _name, _why: None))
    if not some_items:
        raise SourceError("There are no images.", evidence={"sources": some(sources.given)})
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        tried = len(list(shards.answers(loaded, some_items)))
        seconds = time.perf_counter() - start
    row = _KEY + math.prod(loaded.shape) * STORES[store].bit_width // 8 * _PACKED[store]
    return Estimate(
        images=images,
        tried=tried,
        seconds=seconds / tried * images,
        bytes=round(row * images),
    )
