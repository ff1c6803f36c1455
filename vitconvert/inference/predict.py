"""Photographs in, the likeliest classes out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, InputMismatch, UsageError, VitConvertError
from vitconvert.inference.pixels import open_image
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.model import ViT


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
    images: Sequence[Path | Image.Image],
    preprocessing: Preprocessing,
    *,
    topk: int = 5,
    labels: Sequence[str] | None = None,
    batch_size: int = 8,
) -> list[Prediction]:
    """The `topk` likeliest classes of each image, in the order of the images.

    An image that cannot be read, or does not fit, has an error instead, and the rest goes on.
    The model runs as it is: on its device, in its dtype, in the mode it is in.

    Raises:
        UsageError: `topk` or `batch_size` is below 1.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: The model has no head, or not as many classes as there are labels.
    """
    _check(model.config, preprocessing, topk=topk, labels=labels, batch_size=batch_size)
    predictions: list[Prediction] = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        read = [_read(image, preprocessing) for image in batch]
        answers = _answers(model, [r for r in read if isinstance(r, Tensor)])
        for image, tensor in zip(batch, read, strict=True):
            path = None if isinstance(image, Image.Image) else image
            answer = next(answers) if isinstance(tensor, Tensor) else tensor
            predictions.append(_prediction(path, answer, topk=topk, labels=labels))
    return predictions


def _check(
    config: ViTConfig,
    preprocessing: Preprocessing,
    *,
    topk: int,
    labels: Sequence[str] | None,
    batch_size: int,
) -> None:
    for name, value in {"topk": topk, "batch_size": batch_size}.items():
        if value < 1:
            raise UsageError(f"{name} = {value} must be at least 1.")
    if not config.num_classes:
        raise ConflictingFact(
            "The model has no classification head.", hint="its features can still be embedded."
        )
    if labels is not None and len(labels) != config.num_classes:
        raise ConflictingFact(
            f"There are {len(labels)} labels for {config.num_classes} classes.",
        )
    made = (preprocessing.channels, *preprocessing.image_size)
    read = (config.in_channels, *config.image_size)
    if made != read:
        raise InputMismatch(
            "The preprocessing makes other images than the model reads.",
            evidence={"makes": _by(made), "reads": _by(read), "from": preprocessing.origin},
        )


def _read(image: Path | Image.Image, preprocessing: Preprocessing) -> Tensor | VitConvertError:
    try:
        return preprocessing(image if isinstance(image, Image.Image) else open_image(image))
    except VitConvertError as error:
        if not isinstance(image, Image.Image):
            error.evidence.setdefault("image", str(image))
        return error


@torch.inference_mode()
def _answers(model: ViT, images: list[Tensor]) -> Iterator[Tensor]:
    """One row of logits per image, float32 on the CPU."""
    if not images:
        return iter(())
    like = next(model.parameters())
    logits: Tensor = model(torch.stack(images).to(like))
    return iter(logits.float().cpu())


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


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
