"""The features of images."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, VitConvertError
from vitconvert.inference.batches import Compute, Picture, Ready, check_fit, run_in_batches
from vitconvert.model import ViT


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The features of one image, or the error that it gave."""

    path: Path | None  # None for an open image
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
    running: Ready, pictures: Iterable[Picture], *, computed: str = "features"
) -> Iterator[Embedding]:
    """The features of each image, in the order of the images, one at a time.

    Args:
        running: What computes.
        pictures: The images.
        computed: "features": what the classification head reads, (D,) for each image; timm's
            `forward_head(..., pre_logits=True)`. Of a model that pools nothing they are its
            tokens, (N, D), after patches were merged. "tokens": all tokens after the last block
            and the final norm, (N, D): class token and registers, then patches row by row; timm's
            `forward_features`. "projected": CLIP's projection of the pooled features. Divide it by
            its length to compare it with texts. It is `image_embeds` of
            `CLIPVisionModelWithProjection` (transformers 5.23) and `encode_image` (open_clip 3.3).

    Raises:
        InputMismatch: The preprocessing does not make the images that the model reads.
        ConflictingFact: The model has no projection.
    """
    model = running.model
    check_fit(model, running.preprocessing)
    if computed == "projected":
        _check_projection(model)

    def pooled(batch: Tensor) -> Tensor:
        if not model.config.num_classes:
            features: Tensor = model(batch)  # here a fast model does not compute unused tokens
            return features
        return model.forward_head(model.forward_features(batch), pre_logits=True)

    compute: Mapping[str, Compute]
    compute = {"features": pooled, "tokens": model.forward_features, "projected": model}
    outputs = run_in_batches(running, compute[computed], pictures)
    return (_embedding(path, features) for path, features in outputs)


def shape_of(config: ViTConfig, computed: str) -> tuple[int, ...]:
    """What an image becomes: (D,), or (N, D) of tokens and of a model that pools nothing."""
    if computed == "tokens":
        tokens = config.num_prefix_tokens + config.num_patches
        return (tokens, config.neck_dim or config.embed_dim)
    width = config.num_classes if computed == "projected" else config.feature_dim
    if config.pooling != "none":
        return (width,)
    down, across = (-(-side // (config.merge_size or 1)) for side in config.grid_size)
    return (config.num_prefix_tokens + down * across, width)


def in_words(shape: tuple[int, ...]) -> str:
    """What is to be said of a shape besides the number of images; "" of one vector for each."""
    return f"; each {shape[0]} tokens of {shape[1]} numbers" if len(shape) > 1 else ""


def _check_projection(model: ViT) -> None:
    config = model.config
    if not config.num_classes:
        raise ConflictingFact(
            "The model has no projection.",
            hint="leave out --projected (in Python, projected=True).",
        )
    # timm has no head without a bias: it writes CLIP's projection with a bias of zeros.
    if config.head_bias and model.get_parameter("head.bias").any():
        raise ConflictingFact(
            "The model's head has a bias, so it is a classifier and not a projection.",
            evidence={"classes": config.num_classes},
            hint="leave out --projected (in Python, projected=True).",
        )


def _embedding(path: Path | None, features: Tensor | VitConvertError) -> Embedding:
    if isinstance(features, VitConvertError):
        return Embedding(path=path, error=features)
    if not features.isfinite().all():
        return Embedding(path=path, error=VitConvertError("The features are not finite."))
    return Embedding(path=path, features=features)
