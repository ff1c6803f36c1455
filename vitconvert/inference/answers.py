"""Images through a model, batch after batch, while threads prepare the next ones."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitconvert.errors import InputMismatch, SourceError, UsageError, VitConvertError
from vitconvert.inference.ahead import mapped_ahead, processors
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.model import ViT

# An image's path, None for one that was given open; and what was computed, or why nothing was.
Answer = tuple[Path | None, Tensor | VitConvertError]


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

    An image that cannot be read, or does not fit, has an error instead, and the rest goes on. Two
    batches of prepared images are held at most, and as many open images as there are processors.
    """

    def prepared(image: Path | Image.Image) -> Answer:
        return _prepared(image, preprocessing, fast=fast_preprocessing)

    read = mapped_ahead(prepared, images, ahead=batch_size + processors())
    while batch := list(islice(read, batch_size)):
        computed = iter(_computed(model, compute, [x for _, x in batch if isinstance(x, Tensor)]))
        for path, tensor in batch:
            yield path, next(computed) if isinstance(tensor, Tensor) else tensor


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
