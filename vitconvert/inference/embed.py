"""Photographs in, their features out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitconvert.errors import ConflictingFact, UsageError, VitConvertError
from vitconvert.inference.answers import answers, check_batches
from vitconvert.inference.images import ImageSource, find_images
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """What a model makes of one photograph, or why it could not be asked."""

    path: Path | None  # None for an image that was given open
    features: Tensor | None = None  # (D,), or (N, D) tokens; float32 on the CPU
    error: VitConvertError | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "path": None if self.path is None else str(self.path),
            "features": None if self.features is None else self.features.tolist(),
            "error": None if self.error is None else self.error.to_dict(),
        }


def embed(
    model: ViT,
    images: ImageSource | Iterable[ImageSource],
    preprocessing: Preprocessing,
    *,
    tokens: bool = False,
    projected: bool = False,
    batch_size: int = 8,
    recursive: bool = False,
    fast_preprocessing: bool = False,
) -> Iterator[Embedding]:
    """The features of each image, in the order of the images, as they come.

    They are what the classification head reads: pooled as the model pools, (D,) for each image.
    With `tokens`, all tokens after the last block and the final norm, (N, D): class token and
    registers, then patches row by row. timm calls them `forward_head(..., pre_logits=True)` and
    `forward_features`. With `projected`, what the projection of CLIP makes of the pooled ones,
    which is compared with texts once both have length 1: `image_embeds` of
    `CLIPVisionModelWithProjection` (transformers 5.23), `encode_image` (open_clip 3.3). The other
    arguments are those of `predict`.

    Raises:
        UsageError: `batch_size` is below 1, or tokens are to be projected.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: There is no projection.
    """
    check_batches(model, preprocessing, batch_size)
    if projected:
        _check_projection(model, tokens=tokens)

    def pooled(batch: Tensor) -> Tensor:
        if not model.config.num_classes:
            features: Tensor = model(batch)  # a fast model computes no other tokens
            return features
        return model.forward_head(model.forward_features(batch), pre_logits=True)

    answered = answers(
        model,
        model if projected else model.forward_features if tokens else pooled,
        find_images(images, recursive=recursive),
        preprocessing,
        batch_size=batch_size,
        fast_preprocessing=fast_preprocessing,
    )
    return (_embedding(path, answer) for path, answer in answered)


def _check_projection(model: ViT, *, tokens: bool) -> None:
    if tokens:
        raise UsageError(
            "Tokens are not projected, only the pooled features are.",
            hint="leave one of the two out.",
        )
    config = model.config
    if not config.num_classes:
        raise ConflictingFact(
            "The model has no projection.", hint="its features can be embedded as they are."
        )
    # timm has no head without a bias: it writes CLIP's projection with a bias of zeros.
    if config.head_bias and model.get_parameter("head.bias").any():
        raise ConflictingFact(
            "The model's head has a bias, so it classifies and projects nothing.",
            evidence={"classes": config.num_classes},
            hint="its features can be embedded as they are.",
        )


def _embedding(path: Path | None, answer: Tensor | VitConvertError) -> Embedding:
    if isinstance(answer, VitConvertError):
        return Embedding(path=path, error=answer)
    if not answer.isfinite().all():
        return Embedding(path=path, error=VitConvertError("The features are not finite."))
    return Embedding(path=path, features=answer)
