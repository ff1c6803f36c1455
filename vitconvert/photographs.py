"""Ask a checkpoint about photographs: what they show, and what features it finds in them."""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike

import torch

from vitconvert.checkpoint import Checkpoint, Source
from vitconvert.errors import MissingFact
from vitconvert.inference.embed import Embedding
from vitconvert.inference.embed import embed as embed_with
from vitconvert.inference.images import ImageSource
from vitconvert.inference.predict import Prediction
from vitconvert.inference.predict import predict as predict_with
from vitconvert.loading import build_model, load_checkpoint
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing


def predict(
    model: ViT | Checkpoint | Source,
    images: ImageSource | Iterable[ImageSource],
    preprocessing: Preprocessing | None = None,
    *,
    topk: int = 5,
    labels: Sequence[str] | None = None,
    batch_size: int = 8,
    recursive: bool = False,
    fast: bool = True,
    fast_preprocessing: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Prediction]:
    """The likeliest classes of each image, in the order of the images, as they come.

    An image that cannot be read, or does not fit, has an error instead, and the rest goes on.
    Threads decode and preprocess the next images while the model computes.

    Args:
        model: What `load_model` takes, a checkpoint, or a model, which is used as it is.
        images: One or several of: a file, a folder, a pattern such as "photos/**/*.jpg", an open
            Pillow image. They are looked for as they are needed.
        preprocessing: By default, the checkpoint's own; needed with a model.
        topk: How many classes, at most.
        labels: Names of the classes; by default, the checkpoint's.
        batch_size: How many images the model sees at once.
        recursive: Look into the folders of folders too.
        fast: Faster arithmetic, equal within rounding: see `load_model`.
        fast_preprocessing: Faster reading, of nearly the same pixels: see `Preprocessing`.
        dtype: Compute in it; by default, as `load_model` does. In bfloat16 a CPU that has it takes
            half the time, and logits differ by 1 to 2 % of the largest.
        device: Where the model goes.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingFact: Nothing says how images are prepared.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: The model has no head, or not as many classes as there are labels.
        UsageError: `topk` or `batch_size` is below 1.

    Example:
        >>> for prediction in predict("hf-hub:google/vit-base-patch16-224", "photos"):
        ...     print(prediction.path, prediction.top[0].label)          # doctest: +SKIP
    """
    if not isinstance(model, ViT):
        checkpoint = _checkpoint(model)
        model = build_model(checkpoint, dtype=dtype, fast=fast, device=device)
        preprocessing = preprocessing or _preprocessing_of(checkpoint)
        labels = labels or checkpoint.labels
    return predict_with(
        model,
        images,
        _given(preprocessing),
        topk=topk,
        labels=labels,
        batch_size=batch_size,
        recursive=recursive,
        fast_preprocessing=fast_preprocessing,
    )


def embed(
    model: ViT | Checkpoint | Source,
    images: ImageSource | Iterable[ImageSource],
    preprocessing: Preprocessing | None = None,
    *,
    tokens: bool = False,
    projected: bool = False,
    batch_size: int = 8,
    recursive: bool = False,
    fast: bool = True,
    fast_preprocessing: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Embedding]:
    """The features of each image, in the order of the images, as they come.

    They are what the classification head reads, pooled as the model pools: (D,) for each image.
    With `tokens`, all tokens after the last block and the final norm, (N, D): class token and
    registers, then patches row by row. With `projected`, what CLIP's projection makes of the pooled
    features, as it is compared with texts once both have length 1. The other arguments are those
    of `predict`.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingFact: Nothing says how images are prepared.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: There is no projection.
        UsageError: `batch_size` is below 1, or tokens are to be projected.
    """
    if not isinstance(model, ViT):
        checkpoint = _checkpoint(model)
        # Without its head, a fast model computes nothing but the features.
        head = None if projected else 0
        model = build_model(checkpoint, num_classes=head, dtype=dtype, fast=fast, device=device)
        preprocessing = preprocessing or _preprocessing_of(checkpoint)
    return embed_with(
        model,
        images,
        _given(preprocessing),
        tokens=tokens,
        projected=projected,
        batch_size=batch_size,
        recursive=recursive,
        fast_preprocessing=fast_preprocessing,
    )


def _checkpoint(source: Checkpoint | Source) -> Checkpoint:
    return load_checkpoint(source) if isinstance(source, str | PathLike) else source


def _preprocessing_of(checkpoint: Checkpoint) -> Preprocessing:
    if checkpoint.preprocessing is None:
        raise MissingFact(
            "Nothing says how this checkpoint's images are prepared.",
            evidence={"dialect": checkpoint.dialect},
            hint="put its preprocessor_config.json, or timm's config.json, beside the weights.",
        )
    return checkpoint.preprocessing


def _given(preprocessing: Preprocessing | None) -> Preprocessing:
    if preprocessing is None:
        raise MissingFact(
            "A model does not say how its images are prepared.",
            hint="preprocessing=load_checkpoint(...).preprocessing, or the checkpoint itself "
            "instead of the model.",
        )
    return preprocessing
