"""Photographs in, the likeliest classes out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, UsageError, VitConvertError
from vitconvert.inference.answers import answers, check_batches
from vitconvert.inference.images import ImageSource, find_images
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One class that a photograph may show."""

    index: int
    label: str | None
    probability: float  # softmax of all logits, in float32
    logit: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model says about one photograph, or why it could not be asked."""

    path: Path | None  # None for an image that was given open
    top: tuple[Candidate, ...] = ()  # likeliest first
    error: VitConvertError | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "path": None if self.path is None else str(self.path),
            "top": [dict(vars(candidate)) for candidate in self.top],
            "error": None if self.error is None else self.error.to_dict(),
        }


def predict(
    model: ViT,
    images: ImageSource | Iterable[ImageSource],
    preprocessing: Preprocessing,
    *,
    topk: int = 5,
    labels: Sequence[str] | None = None,
    batch_size: int = 8,
    recursive: bool = False,
    fast_preprocessing: bool = False,
) -> Iterator[Prediction]:
    """The `topk` likeliest classes of each image, in the order of the images, as they come.

    An image that cannot be read, or does not fit, has an error instead, and the rest goes on.
    The model runs as it is: on its device, in its dtype, in the mode it is in. Threads decode and
    preprocess the next images while it computes. A `FastViT` on a CPU computes several batches at
    once, on threads of its own.

    Args:
        images: Files, folders, patterns and open images: see `images.find_images`.
        recursive: Look into the folders of folders too.
        fast_preprocessing: See `Preprocessing`.

    Raises:
        UsageError: `topk` or `batch_size` is below 1.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: The model has no head, or not as many classes as there are labels.
    """
    check_batches(model, preprocessing, batch_size)
    _check(model.config, topk=topk, labels=labels)
    answered = answers(
        model,
        model,
        find_images(images, recursive=recursive),
        preprocessing,
        batch_size=batch_size,
        fast_preprocessing=fast_preprocessing,
    )
    return (_prediction(path, answer, topk=topk, labels=labels) for path, answer in answered)


def _check(config: ViTConfig, *, topk: int, labels: Sequence[str] | None) -> None:
    if topk < 1:
        raise UsageError(f"topk = {topk} must be at least 1.")
    if not config.num_classes:
        raise ConflictingFact(
            "The model has no classification head.", hint="its features can still be embedded."
        )
    if config.pooling == "none":
        raise ConflictingFact(
            "The model classifies each token, not the image.",
            evidence={"pooling": f"none ({config.origins.get('pooling', 'user')})"},
            hint="its tokens can still be embedded.",
        )
    if not config.head_bias and labels is None:  # a classifier has a bias
        raise ConflictingFact(
            "The model's head projects features, as CLIP's, and names no classes.",
            hint="its features can still be embedded.",
        )
    if labels is not None and len(labels) != config.num_classes:
        raise ConflictingFact(
            f"There are {len(labels)} labels for {config.num_classes} classes.",
        )


def _prediction(
    path: Path | None,
    answer: Tensor | VitConvertError,
    *,
    topk: int,
    labels: Sequence[str] | None,
) -> Prediction:
    if isinstance(answer, VitConvertError):
        return Prediction(path=path, error=answer)
    if not answer.isfinite().all():
        return Prediction(path=path, error=VitConvertError("The logits are not finite."))
    probabilities = answer.softmax(dim=0)
    best = answer.topk(min(topk, len(answer))).indices.tolist()
    top = tuple(
        Candidate(
            index=index,
            label=None if labels is None else labels[index],
            probability=float(probabilities[index]),
            logit=float(answer[index]),
        )
        for index in best
    )
    return Prediction(path=path, top=top)
