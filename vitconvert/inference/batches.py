"""Images through a model in batches, while threads prepare the next ones."""

import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.images import needed_preprocessing, warn_of_assumed
from vitconvert.errors import (
    InputMismatch,
    MissingFact,
    SourceError,
    UsageError,
    VitConvertError,
    size_text,
    warn,
)
from vitconvert.inference.options import ComputeOptions
from vitconvert.model import FastViT, ViT
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.finding import not_images
from vitconvert.preprocessing.transform import transformed
from vitconvert.settings import plain_arithmetic, take_threads, torch_threads

Item = TypeVar("Item")
Result = TypeVar("Result")

# A file, an open image, the content of a file, what reads that, or the reason why there is none.
Picture = Path | Image.Image | bytes | Callable[[], bytes] | VitConvertError


class Output(NamedTuple):
    """What becomes of an image."""

    path: Path | None  # None for other images than files
    result: Tensor | VitConvertError  # or the reason why there is none
    remarks: tuple[str, ...] = ()  # what of the file was left out


_NAMED = 3  # files, of which something is left out
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
    """

    model: ViT
    preprocessing: Preprocessing
    options: ComputeOptions = field(default_factory=ComputeOptions)
    engine: Engine | None = None
    threads: int | None = None


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
        return Ready(model=model, preprocessing=preprocessing, options=options)
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
    return Ready(model=built, preprocessing=preprocessing, options=options, engine=engine)


def check_fit(model: ViT, preprocessing: Preprocessing) -> None:
    """Check, before any image is opened, that the preprocessing makes what the model reads.

    Raises:
        InputMismatch: The images have another size or other channels.
    """
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


class LeftOut:
    """What is left out of the images of a run, and of which files: told once, at the end."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._names = defaultdict[str, list[str]](list)
        self._lock = Lock()

    def add(self, image: Picture, remarks: Iterable[str]) -> None:
        """Count the remarks on an image, which may have a name."""
        name = image if isinstance(image, Path) else getattr(image, "filename", "")
        for fact in remarks:
            with self._lock:
                self._counts[fact] += 1
                if name:  # the same names, whichever thread is first
                    self._names[fact] = sorted([*self._names[fact], Path(name).name])[:_NAMED]

    def warn(self) -> None:
        """Tell the user, a warning for each fact."""
        for fact, count in self._counts.items():
            names = self._names[fact]
            more = f" and {count - len(names)} more, see remarks" if count > len(names) else ""
            named = f" ({', '.join(names)}{more})" if names else ""
            warn(f"{count} image{'s' * (count != 1)}{named}: {fact}")


def run_in_batches(running: Ready, compute: Compute, images: Iterable[Picture]) -> Iterator[Output]:
    """For each image, in order, its row of `compute(batch)`: float32, on the CPU.

    An image that cannot be read, or does not fit, gives an error instead, and the rest goes on.
    Memory holds one batch of prepared images more than those that are computed, and as many open
    images as there are threads. A GPU computes a batch while the next is gathered and sent to it.
    """
    model, options = running.model, running.options
    size, allowed = options.batch_size, running.threads or torch.get_num_threads()
    images = iter(images)
    first = list(islice(images, size + 1))
    images = chain(first, images)
    count = None if len(first) > size else len(first)
    concurrent = count is None and _may_run_concurrently(model, allowed)
    workers = min(allowed, options.threads or allowed, _MAX_CONCURRENT_BATCHES) if concurrent else 1
    if running.engine is not None:
        streams = {"threads": allowed, "streams": workers}
        with plain_arithmetic():
            compute = running.engine.ready(images=count, batch=size, **streams) or compute

    left_out = LeftOut()

    def prepare(image: Picture) -> Output:
        prepared = prepare_image(
            image,
            running.preprocessing,
            fast=options.fast_preprocessing,
            max_pixels=options.max_image_pixels,
        )
        left_out.add(image, prepared.remarks)
        return prepared

    def compute_batch(batch: list[Output]) -> list[Output]:
        return _start_batch(model, compute, batch)()

    if workers > 1:
        computed = map_with_prefetch(
            lambda batch: compute_batch(list(map(prepare, batch))),
            _split(images, size),
            prefetch=workers,
            threads=workers,
            initializer=partial(take_threads, allowed // workers),
        )
    else:
        threads = options.threads or processors()
        prepared = map_with_prefetch(prepare, images, prefetch=size + threads, threads=threads)

        def start(batch: list[Output]) -> Callable[[], list[Output]]:
            with torch_threads(running.threads):
                return _start_batch(model, compute, batch)

        computed = _in_turns(start, _split(prepared, size), ahead=int(_on_gpu(model)))
    try:
        for batch in computed:
            yield from batch
    finally:
        computed.close()
        left_out.warn()


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


def processors() -> int:
    """How many processors this process may use, as far as the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def prepare_image(
    image: Picture,
    preprocessing: Preprocessing,
    *,
    fast: bool = False,
    max_pixels: int | None = None,
) -> Output:
    """What the model reads of an image, or the reason why it reads nothing."""
    path: Path | None = image if isinstance(image, Path) else None
    if isinstance(image, VitConvertError):
        return Output(None, image)
    remarks: list[str] = []
    try:
        if path is not None and os.path.isdir(path):  # noqa: PTH112 (never an error)
            others = not_images(path)
            raise SourceError(
                "There are no images in this folder.",
                evidence={"image": path, **({"there": others} if others else {})},
                hint="--recursive (in Python, recursive=True) looks into subfolders too.",
            )
        if callable(image) and not isinstance(image, Image.Image):
            image = image()
        prepared = transformed(
            image, preprocessing, fast=fast, max_pixels=max_pixels, tell=remarks.append
        )
        return Output(path, torch.from_numpy(prepared), tuple(remarks))
    except VitConvertError as error:
        if path is not None:
            error.evidence.setdefault("image", str(path))
        return Output(path, error, tuple(remarks))


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


def _start_batch(model: ViT, compute: Compute, batch: list[Output]) -> Callable[[], list[Output]]:
    """Have a batch computed; what is returned gives its rows, and leaves errors where they are.

    A GPU works on while this returns at once: images lie in page-locked memory, which it reads by
    itself, and it writes the rows to such memory. torch keeps that for the next batch, and gives
    none of it away that is still being copied.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html.
    """
    images = [one.result for one in batch if isinstance(one.result, Tensor)]
    if not images:
        return lambda: batch
    like = next(model.parameters())
    on_gpu = _on_gpu(model)
    with plain_arithmetic(), torch.inference_mode():
        if on_gpu:
            gathered = torch.empty(
                (len(images), *images[0].shape), dtype=images[0].dtype, pin_memory=True
            )
            torch.stack(images, out=gathered)
            rows = compute(gathered.to(like.device, like.dtype, non_blocking=True)).float()
            rows = rows.to("cpu", non_blocking=True)
            # Blocking: a thread that waits leaves its processor.
            written = torch.Event(like.device, blocking=True)
            written.record()
        else:
            rows = compute(torch.stack(images).to(like)).float().cpu()

    def finish() -> list[Output]:
        if on_gpu:
            written.synchronize()
        # Who keeps rows keeps no page-locked memory.
        rest = iter(rows.clone() if on_gpu else rows)
        return [
            one._replace(result=next(rest)) if isinstance(one.result, Tensor) else one
            for one in batch
        ]

    return finish
