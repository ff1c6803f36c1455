"""Images through a model, batch after batch, while threads prepare the next ones."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from vitconvert.errors import InputMismatch, SourceError, UsageError, VitConvertError
from vitconvert.inference.ahead import mapped_ahead, processors
from vitconvert.model import FastViT, ViT
from vitconvert.preprocessing import Preprocessing

# An image's path, None for one that was given open; and what was computed, or why nothing was.
Answer = tuple[Path | None, Tensor | VitConvertError]
Item = TypeVar("Item")

_MOST_AT_ONCE = 8  # batches: each has activations of its own


def answers(
    model: ViT,
    compute: Callable[[Tensor], Tensor],
    images: Iterable[Path | Image.Image],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    fast_preprocessing: bool,
) -> Iterator[Answer]:
    """For each image, in order, its part of what `compute` makes of a batch: float32, on the CPU.

    An image that cannot be read, or does not fit, has an error instead, and the rest goes on. One
    batch of prepared images is held besides those that are computed, and as many open images as
    there are processors.
    """

    def prepared(image: Path | Image.Image) -> Answer:
        return _prepared(image, preprocessing, fast=fast_preprocessing)

    def answered(batch: list[Answer]) -> list[Answer]:
        return _answered(model, compute, batch)

    images = iter(images)
    begun = list(islice(images, batch_size + 1))
    images = chain(begun, images)
    found: Iterable[list[Answer]]
    if len(begun) > batch_size and _computes_side_by_side(model):
        batches = _cut(images, batch_size)
        found = _side_by_side(lambda batch: answered([prepared(image) for image in batch]), batches)
    else:
        read = mapped_ahead(prepared, images, ahead=batch_size + processors())
        found = map(answered, _cut(read, batch_size))
    for batch in found:
        yield from batch


def _cut(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _computes_side_by_side(model: ViT) -> bool:
    """Whether several batches are computed at once, each by its own thread, as decoding is.

    That keeps all processors busy where one batch by all of torch's threads does not: they wait
    for one another after each layer, and for those that decode. Two threads of two processors
    classify photographs by a tiny ViT in 0.8 of the time, and by a base in 0.95. The last bits of
    some products depend on the number of threads, so the usual model, which promises them, keeps
    torch's; so does one that draws random numbers.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    fast = isinstance(model, FastViT) and not model.training
    return fast and on_cpu and torch.get_num_threads() > 1


def _side_by_side(
    answered: Callable[[list[Path | Image.Image]], list[Answer]],
    batches: Iterable[list[Path | Image.Image]],
) -> Iterator[list[Answer]]:
    allowed = torch.get_num_threads()
    workers = min(allowed, _MOST_AT_ONCE)
    # Of a thread that sets it, and of those that are born later.
    begin = partial(torch.set_num_threads, allowed // workers)
    try:
        yield from mapped_ahead(answered, batches, ahead=workers, threads=workers, begin=begin)
    finally:
        torch.set_num_threads(allowed)


def _answered(model: ViT, compute: Callable[[Tensor], Tensor], batch: list[Answer]) -> list[Answer]:
    computed = iter(_computed(model, compute, [x for _, x in batch if isinstance(x, Tensor)]))
    return [(path, next(computed) if isinstance(x, Tensor) else x) for path, x in batch]


def _prepared(image: Path | Image.Image, preprocessing: Preprocessing, *, fast: bool) -> Answer:
    path = None if isinstance(image, Image.Image) else image
    try:
        if path is not None and path.is_dir():
            raise SourceError(
                "There are no images in this folder.",
                evidence={"image": path},
                hint="--recursive (in Python, recursive=True) looks into its folders too.",
            )
        return path, preprocessing(image, fast=fast)
    except VitConvertError as error:
        if path is not None:
            error.evidence.setdefault("image", str(path))
        return path, error


@torch.inference_mode()
def _computed(
    model: ViT, compute: Callable[[Tensor], Tensor], images: list[Tensor]
) -> Iterable[Tensor]:
    if not images:
        return ()
    like = next(model.parameters())
    return compute(torch.stack(images).to(like)).float().cpu()


def check_batches(model: ViT, preprocessing: Preprocessing, batch_size: int) -> None:
    """That the preprocessing makes what the model reads, before any image is opened.

    Raises:
        UsageError: `batch_size` is below 1.
        InputMismatch: It makes other images.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size} must be at least 1.")
    made = (preprocessing.channels, *preprocessing.image_size)
    read = (model.config.in_channels, *model.config.image_size)
    if made != read:
        raise InputMismatch(
            "The preprocessing makes other images than the model reads.",
            evidence={"makes": _by(made), "reads": _by(read), "from": preprocessing.origin},
        )


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
