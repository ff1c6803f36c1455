"""Images through a model in batches, while threads prepare the next ones."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from vitconvert.errors import InputMismatch, SourceError, UsageError, VitConvertError
from vitconvert.model import FastViT, ViT
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.values import size_text

Item = TypeVar("Item")
Result = TypeVar("Result")

# An image's path, None for an open image; and its tensor, or the reason why there is none.
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
    images: Iterable[Path | Image.Image],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    fast_preprocessing: bool,
    engine: Engine | None = None,
) -> Iterator[Output]:
    """For each image, in order, its row of `compute(batch)`: float32, on the CPU.

    An image that cannot be read, or does not fit, gives an error instead, and the rest goes on.
    Memory holds one batch of prepared images more than those that are computed, and as many open
    images as there are processors.
    """

    def prepare(image: Path | Image.Image) -> Output:
        return _prepare(image, preprocessing, fast=fast_preprocessing)

    def compute_batch(batch: list[Output]) -> list[Output]:
        return _compute_batch(model, compute, batch)

    images = iter(images)
    first = list(islice(images, batch_size + 1))
    images = chain(first, images)
    count = None if len(first) > batch_size else len(first)
    concurrent = count is None and _may_run_concurrently(model)
    if engine:
        threads = torch.get_num_threads()
        streams = _workers() if concurrent else 1
        compute = (
            engine.ready(images=count, batch=batch_size, threads=threads, streams=streams)
            or compute
        )
    computed: Iterable[list[Output]]
    if concurrent:
        computed = _run_concurrently(
            lambda batch: compute_batch([prepare(image) for image in batch]),
            _split(images, batch_size),
        )
    else:
        prepared = map_with_prefetch(prepare, images, prefetch=batch_size + processors())
        computed = map(compute_batch, _split(prepared, batch_size))
    for batch in computed:
        yield from batch


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


def _workers() -> int:
    """How many batches are computed at once."""
    return min(torch.get_num_threads(), _MAX_CONCURRENT_BATCHES)


def _run_concurrently(
    function: Callable[[list[Path | Image.Image]], list[Output]],
    batches: Iterable[list[Path | Image.Image]],
) -> Iterator[list[Output]]:
    allowed = torch.get_num_threads()
    workers = _workers()
    # It holds for the thread that calls it, and for threads that start later.
    initializer = partial(torch.set_num_threads, allowed // workers)
    try:
        yield from map_with_prefetch(
            function, batches, prefetch=workers, threads=workers, initializer=initializer
        )
    finally:
        torch.set_num_threads(allowed)


def _prepare(image: Path | Image.Image, preprocessing: Preprocessing, *, fast: bool) -> Output:
    path = None if isinstance(image, Image.Image) else image
    try:
        if path is not None and os.path.isdir(path):  # noqa: PTH112 (never an error)
            raise SourceError(
                "There are no images in this folder.",
                evidence={"image": path},
                hint="--recursive (in Python, recursive=True) looks into subfolders too.",
            )
        return path, preprocessing(image, fast=fast)
    except VitConvertError as error:
        if path is not None:
            error.evidence.setdefault("image", str(path))
        return path, error


def _compute_batch(
    model: ViT, compute: Callable[[Tensor], Tensor], batch: list[Output]
) -> list[Output]:
    images = [image for _, image in batch if isinstance(image, Tensor)]
    rows = iter(_compute(model, compute, images))
    return [(path, next(rows) if isinstance(image, Tensor) else image) for path, image in batch]


@torch.inference_mode()
def _compute(
    model: ViT, compute: Callable[[Tensor], Tensor], images: list[Tensor]
) -> Iterable[Tensor]:
    if not images:
        return ()
    like = next(model.parameters())
    return compute(torch.stack(images).to(like)).float().cpu()
