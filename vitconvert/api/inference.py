"""Classes and features of images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from vitconvert.api.loading import Size, Source, at_stated_size, checkpoint_or_model, size_of
from vitconvert.arguments import checked, split
from vitconvert.checkpoint import Checkpoint
from vitconvert.inference.options import (
    AUTO,
    ComputeArguments,
    ComputeOptions,
    EmbedArguments,
    FeatureOptions,
    computed_features,
)
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic

if TYPE_CHECKING:
    from vitconvert.inference.batches import MakeEngine, Ready
    from vitconvert.inference.embed import Embedding
    from vitconvert.inference.predict import Prediction
    from vitconvert.inference.preparing import Picture
    from vitconvert.model import ViT
    from vitconvert.preprocessing.finding import ImageSource


@checked()
@plain_arithmetic()
def predict(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    image_size: Size | None = None,
    topk: int = 5,
    labels: Sequence[str] | None = None,
    recursive: bool = False,
    tell: Callable[[str], None] | None = None,
    **computing: Unpack[ComputeArguments],
) -> "Iterator[Prediction]":
    """Yield the most likely classes of each image, in the order of the images.

    If an image cannot be read or does not fit, its result has an error, and the other images are
    still computed. Threads decode and preprocess the next images while the model computes.

    Args:
        model: A reference as for `load_model`, a checkpoint, a model (used as it is), or a file
            of `export_model` (computed by its own runtime).
        images: One or several of: a file, a folder, a pattern such as "photos/**/*.jpg", an open
            Pillow image. Folders and patterns are searched as images are needed. Of a model of
            clips: videos, folders of the frames of one clip each, or folders of both.
        preprocessing: By default, the checkpoint's own; needed with a model.
        image_size: Resample the positions to this size by the library's own rule, and prepare
            images for it. A model or a file with `dynamic_size` takes any size.
        topk: The largest number of classes for an image.
        labels: Names of the classes; by default, the checkpoint's.
        recursive: Search subfolders too.
        tell: Called with a message before a runtime does something that takes seconds.
        computing: How images go through the model: `ComputeArguments` lists these options.

    Returns:
        A `Prediction` for each image, computed during the iteration.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingPackage: The runtime is not installed.
        MissingFact: No file states the preprocessing of images.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: The model has no head, or not as many classes as there are labels.

    Example:
        >>> for prediction in vitconvert.predict("my-vit", "photos/7.png", topk=1):
        ...     print(prediction.path.name, prediction.top[0].label)
        7.png 7
    """
    from vitconvert.inference.predict import predict as predict_with
    from vitconvert.inference.predict import warn_of_names
    from vitconvert.runtimes import is_exported

    options = ComputeOptions(**computing)
    stated: Sequence[str] | None
    if is_exported(model):
        from vitconvert.runtimes.exported import open_exported

        exported, size = open_exported(str(model)), size_of(image_size)
        own = exported.at_size(size) if size and preprocessing is None else None
        prepared = own or at_stated_size(preprocessing, size)
        running, stated = exported.running(prepared, options), exported.labels
    else:
        running, stated = _ready(model, preprocessing, "classes", tell, options, image_size)
    found = _find(running, images, recursive=recursive)
    predictions = predict_with(running, found, topk=topk, labels=labels or stated)
    warn_of_names(labels or stated, running.model.config.num_classes)
    return predictions


@checked()
@plain_arithmetic()
def embed(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    image_size: Size | None = None,
    tokens: bool = False,
    projected: bool = False,
    recursive: bool = False,
    tell: Callable[[str], None] | None = None,
    **how: Unpack[EmbedArguments],
) -> "Iterator[Embedding]":
    """Yield the features of each image, in the order of the images.

    Features are the input of the classification head, with the model's own pooling: (D,) for each
    image. If a model has no pooling, they are its tokens, (N, D), after patches were merged.
    With `tokens`, they are all tokens after the last block and the final norm, (N, D): class token
    and registers, then patches row by row. With `projected`, they are CLIP's projection of the
    pooled features. To compare it with a text's projection, scale both to length 1.

    Args:
        model, images, preprocessing, image_size, recursive, tell: As for `predict`.
        tokens: All tokens instead of the pooled features.
        projected: CLIP's projection of the pooled features.
        how: Which features, and how images go through the model: `FeatureArguments` and
            `ComputeArguments` list these options.

    Returns:
        An `Embedding` for each image, computed during the iteration.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingFact: No file states the preprocessing of images.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: There is no projection, or no class token.
        UsageError: Tokens are to be projected, or there is no such layer.

    Example:
        >>> [embedding] = vitconvert.embed("my-vit", "photos/7.png")
        >>> embedding.features.shape
        torch.Size([48])
        >>> [embedding] = vitconvert.embed("my-vit", "photos/7.png", layer=-2, pool="patches")
        >>> embedding.features.shape
        torch.Size([16, 48])
    """
    from vitconvert.inference.embed import Features
    from vitconvert.inference.embed import embed as embed_with

    computed = computed_features(tokens=tokens, projected=projected)
    which, others = split(how, FeatureOptions)
    computing = ComputeOptions(**others)
    which.check(computed, computing.runtime, computing.dtype)  # before anything is downloaded
    running, _ = _ready(model, preprocessing, computed, tell, computing, image_size)
    features = Features.of(running.model.config, computed, which)
    return embed_with(running, _find(running, images, recursive=recursive), features)


def _find(
    running: "Ready", images: "ImageSource | Iterable[ImageSource]", *, recursive: bool
) -> "Iterator[Picture]":
    """What goes through a model: images, or clips."""
    from vitconvert.preprocessing.clips import find_clips
    from vitconvert.preprocessing.finding import find_images

    find = find_clips if running.model.config.clips else find_images
    return find(images, recursive=recursive)


def _ready(
    model: "ViT | Source",
    preprocessing: Preprocessing | None,
    computed: str,
    tell: Callable[[str], None] | None,
    options: ComputeOptions,
    image_size: Size | None,
) -> "tuple[Ready, Sequence[str] | None]":
    """What computes, and the names of a checkpoint's classes."""
    from vitconvert.inference.batches import ready

    make_engine = engines_for(options, tell)
    opened = checkpoint_or_model(
        model,
        read_in=options.weights,
        image_size=image_size,
        dtype=options.weights,
        device=options.device,
        fast=options.fast,
    )
    stated = at_stated_size(preprocessing, size_of(image_size))
    running = ready(opened, stated, options, computed=computed, make_engine=make_engine)
    if isinstance(opened, Checkpoint):
        return running, opened.labels
    return running, getattr(opened.head, "labels", None)  # a head that was loaded has them


def engines_for(options: ComputeOptions, tell: Callable[[str], None] | None) -> "MakeEngine | None":
    """What makes an engine of a checkpoint and its model; None: torch computes."""
    if options.runtime == "torch" and options.dtype != AUTO:
        return None
    from vitconvert.runtimes.fastest import engines

    return engines(
        options.runtime,
        fast=options.fast,
        dtype=options.dtype,
        device=options.device,
        tell=tell,
    )
