"""Images through a model in batches, while threads or processes prepare the next ones."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from vitconvert.arguments import refuse
from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.images import needed_preprocessing, warn_of_assumed
from vitconvert.config import ViTConfig
from vitconvert.errors import (
    InputMismatch,
    MissingFact,
    UsageError,
    VitConvertError,
    size_text,
    warn,
)
from vitconvert.inference.decoding import JpegDecoder
from vitconvert.inference.options import ComputeOptions
from vitconvert.inference.preparing import (
    Batch,
    LeftOut,
    Output,
    Picture,
    Prepare,
    prepare_image,
    processors,
)
from vitconvert.inference.processes import obstacle, prepared_by_processes
from vitconvert.model import FastViT, ViT
from vitconvert.model.resizing import require_whole_patches
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic, take_threads, torch_threads

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_CONCURRENT_BATCHES = 8  # each has activations of its own
_FEW = 256  # images that threads have prepared for a GPU before processes would have started

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


class MakeEngine(Protocol):
    """Makes what computes in the place of a model of torch's; it can be sent to processes."""

    def __call__(self, checkpoint: Checkpoint, model: ViT, *, kind: str) -> Engine:
        """An engine for a `kind` of answers: "features", "tokens" or "logits"."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A model that is ready to compute, and how images go through it.

    Attributes:
        model: Which is used as it is.
        preprocessing: What makes its input.
        options: How it computes.
        engine: What may compute in its place.
        threads: How many torch computes with; None: as many as elsewhere in this thread.
        decoder: What prepares JPEG files on the device of the model.
    """

    model: ViT
    preprocessing: Preprocessing
    options: ComputeOptions = field(default_factory=ComputeOptions)
    engine: Engine | None = None
    threads: int | None = None
    decoder: JpegDecoder | None = None


def ready(
    model: ViT | Checkpoint,
    preprocessing: Preprocessing | None,
    options: ComputeOptions,
    *,
    computed: str = "classes",
    make_engine: MakeEngine | None = None,
) -> Ready:
    """Make a model ready to compute.

    Args:
        model: A model is used as it is; a checkpoint is built as the options say.
        preprocessing: By default, the checkpoint's own; needed with a model.
        options: How it computes.
        computed: "features", "tokens", "projected" or "classes".
        make_engine: What makes an engine of a checkpoint.

    Raises:
        MissingFact: No file states the preprocessing of images.
        ConflictingFact: They have other channels than images.
        UsageError: An engine is to be made of a model.
    """
    if isinstance(model, ViT):
        if make_engine:
            raise UsageError("A runtime needs a checkpoint, and not a model.")
        if preprocessing is None:
            raise MissingFact(
                "A model does not say how its images are prepared.",
                hint="preprocessing=load_checkpoint(...).preprocessing, or the checkpoint itself "
                "instead of the model.",
            )
        warn_of_assumed(preprocessing)
        decoder = _decoder(model, preprocessing, options)
        return Ready(model=model, preprocessing=preprocessing, options=options, decoder=decoder)
    headless = computed in ("features", "tokens")
    built = build_model(
        model,
        # Without its head, a fast model computes nothing but the features.
        num_classes=0 if headless else None,
        dtype=options.weights,
        fast=options.fast,
        device=options.device,
    )
    preprocessing = preprocessing or needed_preprocessing(model)
    warn_of_assumed(preprocessing)
    kind = computed if headless else "logits"
    engine = make_engine(model, built, kind=kind) if make_engine else None
    return Ready(
        model=built,
        preprocessing=preprocessing,
        options=options,
        engine=engine,
        decoder=_decoder(built, preprocessing, options),
    )


def _decoder(
    model: ViT, preprocessing: Preprocessing, options: ComputeOptions
) -> JpegDecoder | None:
    """What prepares JPEG files on the GPU, if that is asked for.

    Raises:
        UsageError: No GPU computes, or what is asked for besides does not go with it.
        MissingPackage: Neither torchcodec nor torchvision is installed.
    """
    if options.decode != "gpu":
        return None
    device = next(model.parameters()).device
    if not _on_gpu(model):
        raise UsageError(
            "Images are decoded on the GPU that computes, and here none does.",
            evidence={"device": device},
            hint="--device cuda (in Python, device='cuda'), or leave out --decode (decode=).",
        )
    model.config.require_images("Decoding on a GPU")
    if options.workers:
        refuse(["workers"], "threads prepare images where a GPU decodes them.")
    return JpegDecoder(preprocessing, device)


def check_fit(model: ViT, preprocessing: Preprocessing) -> ViTConfig:
    """Check, before any image is opened, that the preprocessing makes what the model reads.

    Returns:
        The model's configuration, for images of this size if their size is free.

    Raises:
        InputMismatch: The images have another size or other channels.
        ConflictingFact, UsageError: The size of images is free, but not this small, or they are no
            whole number of patches.
    """
    made, config = _shape(preprocessing), model.config
    if model.dynamic_img_size:
        config = config.replace(image_size=preprocessing.image_size)
        if not model.patch_embed.cuts_off:
            require_whole_patches(config)
    read = (config.in_channels, *config.image_size)
    if made != read:
        raise InputMismatch(
            "The preprocessing does not make the images that the model reads.",
            evidence={
                "makes": size_text(made),
                "reads": size_text(read),
                "from": preprocessing.origin,
            },
        )
    return config


def run_in_batches(running: Ready, compute: Compute, images: Iterable[Picture]) -> Iterator[Output]:
    """For each image, in order, its row of `compute(batch)`: float32, on the CPU.

    An image that cannot be read, or does not fit, gives an error instead, and the rest goes on.
    Memory holds one batch of prepared images more than those that are computed, and as many open
    images as there are threads or workers. A GPU computes a batch while the next is gathered and
    sent to it.

    Raises:
        UsageError: Workers are asked for, and there can be none.
        VitConvertError: A worker ended.
    """
    model, options = running.model, running.options
    size, allowed = options.batch_size, running.threads or torch.get_num_threads()
    images = iter(images)
    first = list(islice(images, size + 1))
    images = chain(first, images)
    count = None if len(first) > size else len(first)
    concurrent = count is None and _may_run_concurrently(model, allowed)
    streams = min(allowed, options.threads or allowed, _MAX_CONCURRENT_BATCHES) if concurrent else 1
    if running.engine is not None:
        how = {"threads": allowed, "streams": streams}
        with plain_arithmetic():
            compute = running.engine.ready(images=count, batch=size, **how) or compute

    threads = options.threads or processors()
    left_out = LeftOut("clip" if model.config.clips else "image")
    prepare = partial(
        prepare_image,
        preprocessing=running.preprocessing,
        frames=model.config.frames,
        fast=options.fast_preprocessing,
        max_pixels=options.max_image_pixels,
        decoder=running.decoder,
    )
    held = streams if concurrent else 0
    few = count is not None
    workers = _workers(running, prepare, threads, few=few, held=held) if first else 0

    def prepare_here(image: Picture) -> Output:
        prepared = prepare(image)
        left_out.add(image, prepared.remarks)
        return prepared

    batches = _prepared(
        running,
        images,
        prepare,
        prepare_here,
        left_out,
        threads=threads,
        workers=workers,
        held=held,
    )

    def compute_batch(batch: Batch) -> list[Output]:
        return _start_batch(model, compute, batch)()

    def prepare_and_compute(pictures: list[Picture]) -> list[Output]:
        return compute_batch(Batch(outputs=[*map(prepare_here, pictures)]))

    def start(batch: Batch) -> Callable[[], list[Output]]:
        with torch_threads(running.threads):
            return _start_batch(model, compute, batch)

    if concurrent:
        each_stream = partial(
            map_with_prefetch,
            prefetch=streams,
            threads=streams,
            initializer=partial(take_threads, allowed // streams),
        )
        computed = (
            each_stream(compute_batch, batches)
            if workers
            else each_stream(prepare_and_compute, _split(images, size))
        )
    else:
        computed = _in_turns(start, batches, ahead=int(_on_gpu(model)))
    try:
        for batch in computed:
            yield from batch
    finally:
        computed.close()
        left_out.warn()
        if running.decoder:
            running.decoder.warn()


def _prepared(
    running: Ready,
    images: Iterator[Picture],
    prepare: Prepare,
    prepare_here: Prepare,
    left_out: LeftOut,
    *,
    threads: int,
    workers: int,
    held: int,
) -> Iterator[Batch]:
    """Batches of prepared images, by threads, or by workers if there are any."""
    size, asked = running.options.batch_size, running.options.workers is not None
    few = 0 if asked else -(-_FEW // size) * size
    outputs = map_with_prefetch(
        prepare_here,
        islice(images, few) if workers else images,
        prefetch=size + threads,
        threads=threads,
        initializer=partial(take_threads, 1),
    )
    yield from (Batch(outputs=together) for together in _split(outputs, size))
    if workers:
        yield from prepared_by_processes(
            images,
            prepare,
            shape=running.model.config.input_shape,
            left_out=left_out,
            batch=size,
            workers=workers,
            threads=threads,
            held=held,
        )


def _workers(running: Ready, prepare: Prepare, threads: int, *, few: bool, held: int) -> int:
    """How many processes prepare images: as many as are asked for, or for a GPU if it has many.

    Raises:
        UsageError: Some are asked for, and there can be none.
    """
    options = running.options
    asked = options.workers
    no_need = few or running.decoder or not _on_gpu(running.model)
    if asked == 0 or (asked is None and no_need):
        return 0
    count = asked or threads
    shape, size = running.model.config.input_shape, options.batch_size
    why = obstacle(prepare, shape, batch=size, workers=count, held=held)
    if why is None:
        return count
    if asked:
        raise UsageError(
            "No processes can prepare images here.",
            evidence={"workers": asked, "why": why},
            hint="--workers 0 has threads prepare them (in Python, workers=0).",
        )
    warn(f"threads prepare the images, which is slower than processes: {why}")
    return 0


def _shape(preprocessing: Preprocessing) -> tuple[int, int, int]:
    return (preprocessing.channels, *preprocessing.image_size)


def map_with_prefetch(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    prefetch: int,
    threads: int | None = None,
    initializer: Callable[[], None] | None = None,
) -> Generator[Result, None, None]:
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
    start: Callable[[Item], Callable[[], Result]], items: Iterable[Item], *, ahead: int
) -> Generator[Result, None, None]:
    """`start(item)()` of each item, in order; `ahead` more are started before one is waited for."""
    started: deque[Callable[[], Result]] = deque()
    for item in items:
        started.append(start(item))
        if len(started) > ahead:
            yield started.popleft()()
    while started:
        yield started.popleft()()


def _split(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _may_run_concurrently(model: ViT, threads: int) -> bool:
    """Whether several batches are computed at once, each by a thread that also decodes its images.

    One batch computed by all of torch's threads leaves processors idle: threads wait for one
    another after each layer, and for those that decode. On two processors, two threads classify
    photographs by a tiny ViT in 0.8 of the time, by a base in 0.95. The last bits of some products
    depend on the number of threads. The usual model promises these bits, so it keeps all of
    torch's threads; so does a model in training mode, which draws random numbers.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    fast = isinstance(model, FastViT) and not model.training
    return fast and on_cpu and threads > 1


def _on_gpu(model: ViT) -> bool:
    """Whether an NVIDIA or AMD GPU computes it, which torch both calls "cuda"."""
    return next(model.parameters()).device.type == "cuda"


def not_finite(what: str, model: ViT) -> VitConvertError:
    """The error of an output that has infinite numbers or none, with the likeliest cause."""
    dtype = next(model.parameters()).dtype
    if dtype != torch.float16:
        return VitConvertError(f"The {what} are not finite.")
    return VitConvertError(
        f"The {what} are not finite.",
        evidence={"computed in": "float16, which holds no number beyond 65504"},
        meaning="Within this model, this image makes larger ones.",
        hint="compute in float32 or bfloat16 (--dtype; in Python, dtype=).",
    )


def _start_batch(model: ViT, compute: Compute, batch: Batch) -> Callable[[], list[Output]]:
    """Have a batch computed; what is returned gives its rows, and leaves errors where they are.

    A GPU works on while this returns at once: images lie in page-locked memory, which it reads by
    itself, and it writes the rows to such memory. torch keeps that for the next batch, and gives
    none of it away that is still being copied.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html.
    """
    images = [one.result for one in batch.outputs if isinstance(one.result, Tensor)]
    if not images:
        batch.release()
        return lambda: batch.outputs
    like = next(model.parameters())
    on_gpu = _on_gpu(model)
    with plain_arithmetic(), torch.inference_mode():
        if on_gpu:
            rows = compute(_sent(batch, images, like)).float()
            rows = rows.to("cpu", non_blocking=True)
            # Blocking: a thread that waits leaves its processor.
            written = torch.Event(like.device, blocking=True)
            written.record()
        else:
            together = batch.images
            if together is None:
                together = _gather(
                    batch, images, torch.empty(len(images), *images[0].shape, dtype=images[0].dtype)
                )
            rows = compute(together.to(like)).float().cpu()
            if batch.images is not None:  # rows may be a part of them
                rows = rows.clone()
    batch.release()

    def finish() -> list[Output]:
        if on_gpu:
            written.synchronize()
        # Who keeps rows keeps no page-locked memory.
        rest = iter(rows.clone() if on_gpu else rows)
        return [
            one._replace(result=next(rest)) if isinstance(one.result, Tensor) else one
            for one in batch.outputs
        ]

    return finish


def _sent(batch: Batch, images: list[Tensor], like: Tensor) -> Tensor:
    """The images of a batch on the GPU, where some may be already."""
    if any(image.is_cuda for image in images):
        return torch.stack([image.to(like.device) for image in images]).to(like.dtype)
    shape = (len(images), *images[0].shape)
    gathered = torch.empty(shape, dtype=images[0].dtype, pin_memory=True)
    _gather(batch, images, gathered)
    return gathered.to(like.device, like.dtype, non_blocking=True)


def _gather(batch: Batch, images: list[Tensor], together: Tensor) -> Tensor:
    """Write the images of a batch into one tensor, by one thread.

    All of torch's would share each image, and the last of them waits for a processor that decodes
    the next: on two busy ones, 0.7 to 22 ms for an image instead of 0.09.
    """
    with torch_threads(1):
        if batch.images is None:
            return torch.stack(images, out=together)
        return together.copy_(batch.images)
