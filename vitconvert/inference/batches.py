"""Images through a model in batches, while threads prepare the next ones."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.images import needed_preprocessing
from vitconvert.errors import (
    InputMismatch,
    MissingFact,
    SourceError,
    UsageError,
    VitConvertError,
    size_text,
)
from vitconvert.model import FastViT, ViT
from vitconvert.preprocessing import Preprocessing

Item = TypeVar("Item")
Result = TypeVar("Result")

# A file, an open image, the content of a file, what reads that, or the reason why there is none.
Picture = Path | Image.Image | bytes | Callable[[], bytes] | VitConvertError

# The path of a file, None for other images; and its tensor, or the reason why there is none.
Output = tuple[Path | None, Tensor | VitConvertError]

_MAX_CONCURRENT_BATCHES = 8  # each has activations of its own

Compute = Callable[[Tensor], Tensor]


class Engine(Protocol):
    """What may compute in the place of a model of torch's."""

    def ready(
        self, *, images: int | None, batch: int, threads: int, streams: int
    ) -> Compute | None:
        """A function of float32 images on the CPU; None where the model is better.

        Args:
            images: How many there are; None: more than `batch`.
            batch: How many it gets at once, at most.
            threads: How many it may use.
            streams: How many threads call it at once.
        """


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How images go through a model.

    Attributes:
        batch_size: How many the model reads at once.
        fast_preprocessing: See `Preprocessing`.
        threads: How many decode; by default, one for each processor.
        engine: What computes in the place of the model.
    """

    batch_size: int = 8
    fast_preprocessing: bool = False
    threads: int | None = None
    engine: Engine | None = None


def ready(
    model: ViT | Checkpoint,
    preprocessing: Preprocessing | None,
    *,
    num_classes: int | None = None,
    fast: bool,
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> tuple[ViT, Preprocessing]:
    """The model to run, and what makes its input.

    Args:
        model: A model is used as it is; a checkpoint is built with the arguments that follow.
        preprocessing: By default, the checkpoint's own; needed with a model.
        num_classes, fast, dtype, device: As for `build_model`.

    Raises:
        MissingFact: Nothing says how images are prepared.
        ConflictingFact: They have other channels than images.
    """
    if isinstance(model, ViT):
        if preprocessing is None:
            raise MissingFact(
                "A model does not say how its images are prepared.",
                hint="preprocessing=load_checkpoint(...).preprocessing, or the checkpoint itself "
                "instead of the model.",
            )
        return model, preprocessing
    built = build_model(model, num_classes=num_classes, dtype=dtype, fast=fast, device=device)
    return built, preprocessing or needed_preprocessing(model)


def check_batches(model: ViT, preprocessing: Preprocessing, batch_size: int) -> None:
    """Check, before any image is opened, that the preprocessing makes what the model reads.

    Raises:
        UsageError: `batch_size` is below 1.
        InputMismatch: The images have another size or other channels.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size} must be at least 1.")
    made = (preprocessing.channels, *preprocessing.image_size)
    read = (model.config.in_channels, *model.config.image_size)
    if made != read:
        raise InputMismatch(
            "The preprocessing does not make the images that the model reads.",
            evidence={
                "makes": size_text(made),
                "reads": size_text(read),
                "from": preprocessing.origin,
            },
        )


def run_in_batches(
    model: ViT,
    compute: Compute,
    images: Iterable[Picture],
    preprocessing: Preprocessing,
    options: BatchOptions,
) -> Iterator[Output]:
    """For each image, in order, its row of `compute(batch)`: float32, on the CPU.

    An image that cannot be read, or does not fit, gives an error instead, and the rest goes on.
    Memory holds one batch of prepared images more than those that are computed, and as many open
    images as there are threads. A GPU computes a batch while the next is gathered and sent to it.
    """
    size = options.batch_size
    images = iter(images)
    first = list(islice(images, size + 1))
    images = chain(first, images)
    count = None if len(first) > size else len(first)
    workers = _workers(options.threads) if count is None and _may_run_concurrently(model) else 1
    concurrent = workers > 1
    compute = _chosen(compute, options, images=count, streams=workers)

    def prepare(image: Picture) -> Output:
        return prepare_image(image, preprocessing, fast=options.fast_preprocessing)

    def compute_batch(batch: list[Output]) -> list[Output]:
        return _compute_batch(model, compute, batch)

    computed: Iterable[list[Output]]
    if concurrent:
        computed = _run_concurrently(
            lambda batch: compute_batch([prepare(image) for image in batch]),
            _split(images, size),
            workers,
        )
    else:
        threads = options.threads or processors()
        prepared = map_with_prefetch(prepare, images, prefetch=size + threads, threads=threads)
        batches = _split(prepared, size)
        if _on_gpu(model):
            computed = _in_turns(partial(_start_batch, model, compute), batches)
        else:
            computed = map(compute_batch, batches)
    for batch in computed:
        yield from batch


def _chosen(
    compute: Compute, options: BatchOptions, *, images: int | None, streams: int
) -> Compute:
    """What the engine makes ready, where it is the better one; the model otherwise."""
    if options.engine is None:
        return compute
    ready = options.engine.ready(
        images=images, batch=options.batch_size, threads=torch.get_num_threads(), streams=streams
    )
    return ready or compute


def map_with_prefetch(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    prefetch: int,
    threads: int | None = None,
    initializer: Callable[[], None] | None = None,
) -> Iterator[Result]:
    """`map(function, items)` by threads, in order.

    While the caller is busy with one result, threads compute the next `prefetch`, and no more, so
    that memory does not grow with the number of items. Threads are enough because Pillow, numpy
    and torch release the interpreter's lock while they decode, resize and compute.

    Args:
        threads: How many; by default one per processor.
        initializer: What each thread calls first.
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(
        threads or processors(), thread_name_prefix="vitconvert", initializer=initializer
    )
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > prefetch:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _in_turns(
    start: Callable[[Item], Callable[[], Result]], items: Iterable[Item]
) -> Iterator[Result]:
    """`start(item)()` of each item, in order; before one is waited for, the next is started."""
    started: deque[Callable[[], Result]] = deque()
    for item in items:
        started.append(start(item))
        if len(started) > 1:
            yield started.popleft()()
    while started:
        yield started.popleft()()


def processors() -> int:
    """How many processors this process may use, as far as the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _split(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _may_run_concurrently(model: ViT) -> bool:
    """Whether several batches are computed at once, each by a thread that also decodes its images.

    One batch computed by all of torch's threads leaves processors idle: threads wait for one
    another after each layer, and for those that decode. On two processors, two threads classify
    photographs by a tiny ViT in 0.8 of the time, by a base in 0.95. The last bits of some products
    depend on the number of threads. The usual model promises these bits, so it keeps all of
    torch's threads; so does a model in training mode, which draws random numbers.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    fast = isinstance(model, FastViT) and not model.training
    return fast and on_cpu and torch.get_num_threads() > 1


def _on_gpu(model: ViT) -> bool:
    """Whether an NVIDIA or AMD GPU computes it, which torch both calls "cuda"."""
    return next(model.parameters()).device.type == "cuda"


def _workers(threads: int | None) -> int:
    """How many batches are computed at once, where so many threads may decode."""
    allowed = torch.get_num_threads()
    return min(allowed, threads or allowed, _MAX_CONCURRENT_BATCHES)


def _run_concurrently(
    function: Callable[[list[Picture]], list[Output]],
    batches: Iterable[list[Picture]],
    workers: int,
) -> Iterator[list[Output]]:
    allowed = torch.get_num_threads()
    # It holds for the thread that calls it, and for threads that start later.
    initializer = partial(torch.set_num_threads, allowed // workers)
    try:
        yield from map_with_prefetch(
            function, batches, prefetch=workers, threads=workers, initializer=initializer
        )
    finally:
        torch.set_num_threads(allowed)


def prepare_image(image: Picture, preprocessing: Preprocessing, *, fast: bool = False) -> Output:
    """An image's path, None for an open image; and what the model reads of it, or the reason."""
    path = image if isinstance(image, Path) else None
    if isinstance(image, VitConvertError):
        return None, image
    try:
        if path is not None and os.path.isdir(path):  # noqa: PTH112 (never an error)
            raise SourceError(
                "There are no images in this folder.",
                evidence={"image": path},
                hint="--recursive (in Python, recursive=True) looks into subfolders too.",
            )
        if callable(image) and not isinstance(image, Image.Image):
            image = image()
        return path, preprocessing(image, fast=fast)
    except VitConvertError as error:
        if path is not None:
            error.evidence.setdefault("image", str(path))
        return path, error


def _compute_batch(
    model: ViT, compute: Callable[[Tensor], Tensor], batch: list[Output]
) -> list[Output]:
    return _filled(batch, _compute(model, compute, _tensors(batch)))


@torch.inference_mode()
def _compute(
    model: ViT, compute: Callable[[Tensor], Tensor], images: list[Tensor]
) -> Iterable[Tensor]:
    if not images:
        return ()
    like = next(model.parameters())
    return compute(torch.stack(images).to(like)).float().cpu()


def _start_batch(
    model: ViT, compute: Callable[[Tensor], Tensor], batch: list[Output]
) -> Callable[[], list[Output]]:
    """Have a GPU compute a batch, and return at once with what waits for it.

    The images lie in page-locked memory, which the GPU reads by itself, and it writes the rows to
    such memory. torch keeps that for the next batch, and gives none of it away that is still being
    copied. Not tried on a GPU yet.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html.
    """
    images = _tensors(batch)
    if not images:
        return lambda: batch
    like = next(model.parameters())
    with torch.inference_mode():
        gathered = torch.empty((len(images), *images[0].shape), pin_memory=True)
        torch.stack(images, out=gathered)
        rows = compute(gathered.to(like.device, like.dtype, non_blocking=True)).float()
        copied = rows.to("cpu", non_blocking=True)
        # Blocking: a thread that waits leaves its processor.
        written = torch.Event(like.device, blocking=True)
        written.record()

    def finish() -> list[Output]:
        written.synchronize()
        return _filled(batch, copied.clone())  # who keeps rows keeps no such memory

    return finish


def _tensors(batch: list[Output]) -> list[Tensor]:
    return [image for _, image in batch if isinstance(image, Tensor)]


def _filled(batch: list[Output], rows: Iterable[Tensor]) -> list[Output]:
    """A batch with its images replaced by rows; errors stay where they are."""
    rest = iter(rows)
    return [(path, next(rest) if isinstance(image, Tensor) else image) for path, image in batch]
