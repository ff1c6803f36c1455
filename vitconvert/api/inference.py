"""Classes and features of images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vitconvert.api.loading import Source, checkpoint_or_model
from vitconvert.arguments import checked
from vitconvert.checkpoint import Checkpoint
from vitconvert.errors import UsageError
from vitconvert.preprocessing import Preprocessing

if TYPE_CHECKING:
    import torch

    from vitconvert.inference.batches import Engine
    from vitconvert.inference.embed import Embedding
    from vitconvert.inference.predict import Prediction
    from vitconvert.model import ViT
    from vitconvert.preprocessing.finding import ImageSource


@checked()
def predict(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    topk: int = 5,
    labels: Sequence[str] | None = None,
    batch_size: int = 8,
    recursive: bool = False,
    fast: bool = True,
    fast_preprocessing: bool = False,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    threads: int | None = None,
    runtime: str = "torch",
    tell: Callable[[str], None] | None = None,
) -> "Iterator[Prediction]":
    """The most likely classes of each image, in the order of the images, as they come.

    An image that cannot be read, or does not fit, gives an error instead and does not stop the
    others. Threads decode and preprocess the next images while the model computes.

    Args:
        model: What `load_model` takes, a checkpoint, or a model, which is used as it is.
        images: One or several of: a file, a folder, a pattern such as "photos/**/*.jpg", an open
            Pillow image. Folders and patterns are searched as images are needed.
        preprocessing: By default, the checkpoint's own; needed with a model.
        topk: How many classes, at most.
        labels: Names of the classes; by default, the checkpoint's.
        batch_size: How many images the model sees at once.
        recursive: Search subfolders too.
        fast: Faster arithmetic, equal within rounding: see `load_model`.
        fast_preprocessing: Faster reading, of nearly the same pixels: see `Preprocessing`.
        dtype: Compute in it; by default, as `load_model` does. bfloat16 takes half the time on a
            CPU that has it, and logits differ by 1 to 2 % of the largest.
        device: Where the model goes.
        threads: How many decode images; by default, one for each processor.
        runtime: "torch", "onnxruntime" or "openvino", which compute a file that is exported once,
            checked, and kept in the cache; or "auto": what is installed and was measured to be the
            fastest here. It needs a checkpoint, `fast`, float32 and the CPU.
        tell: Called with a sentence before a runtime does what takes seconds.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingPackage: The runtime is not installed.
        MissingFact: Nothing says how images are prepared.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: The model has no head, or not as many classes as there are labels.
        UsageError: `topk` or `batch_size` is below 1.

    Example:
        >>> for prediction in predict("hf-hub:google/vit-base-patch16-224", "photos"):
        ...     print(prediction.path, prediction.top[0].label)          # doctest: +SKIP
    """
    from vitconvert.inference.batches import BatchOptions, ready
    from vitconvert.inference.predict import predict as predict_with
    from vitconvert.preprocessing.finding import find_images

    make_engine = engines_for(runtime, tell, fast=fast, dtype=dtype, device=device)
    opened = checkpoint_or_model(model, read_in=dtype, dtype=dtype, device=device, fast=fast)
    if isinstance(opened, Checkpoint):
        labels = labels or opened.labels
    built, prepared = ready(opened, preprocessing, fast=fast, dtype=dtype, device=device)
    options = BatchOptions(
        batch_size=batch_size,
        fast_preprocessing=fast_preprocessing,
        threads=threads,
        engine=_engine(make_engine, opened, built, kind="logits"),
    )
    found = find_images(images, recursive=recursive)
    return predict_with(built, found, prepared, topk=topk, labels=labels, options=options)


@checked()
def embed(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    tokens: bool = False,
    projected: bool = False,
    batch_size: int = 8,
    recursive: bool = False,
    fast: bool = True,
    fast_preprocessing: bool = False,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    threads: int | None = None,
    runtime: str = "torch",
    tell: Callable[[str], None] | None = None,
) -> "Iterator[Embedding]":
    """The features of each image, in the order of the images, as they come.

    They are what the classification head reads, pooled as the model pools: (D,) for each image. Of
    a model that pools nothing they are its tokens, (N, D), after patches were merged.
    With `tokens`, all tokens after the last block and the final norm, (N, D): class token and
    registers, then patches row by row. With `projected`, CLIP's projection of the pooled features,
    which is compared with that of texts after both are scaled to length 1. The other arguments are
    those of `predict`.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingFact: Nothing says how images are prepared.
        InputMismatch: The preprocessing makes other images than the model reads.
        ConflictingFact: There is no projection.
        UsageError: `batch_size` is below 1, or tokens are to be projected.
    """
    from vitconvert.inference.batches import BatchOptions, ready
    from vitconvert.inference.embed import embed as embed_with
    from vitconvert.preprocessing.finding import find_images

    if tokens and projected:
        raise UsageError(
            "Only pooled features can be projected, not tokens.",
            hint="ask for tokens or for projected features, not for both.",
        )
    computed = "projected" if projected else "tokens" if tokens else "features"
    make_engine = engines_for(runtime, tell, fast=fast, dtype=dtype, device=device)
    opened = checkpoint_or_model(model, read_in=dtype, dtype=dtype, device=device, fast=fast)
    built, prepared = ready(
        opened,
        preprocessing,
        # Without its head, a fast model computes nothing but the features.
        num_classes=None if projected else 0,
        fast=fast,
        dtype=dtype,
        device=device,
    )
    kind = "logits" if projected else computed
    options = BatchOptions(
        batch_size=batch_size,
        fast_preprocessing=fast_preprocessing,
        threads=threads,
        engine=_engine(make_engine, opened, built, kind=kind),
    )
    found = find_images(images, recursive=recursive)
    return embed_with(built, found, prepared, computed=computed, options=options)


def engines_for(
    runtime: str, tell: Callable[[str], None] | None, **asked: Any
) -> "Callable[..., Engine] | None":
    """What makes an engine of a checkpoint and its model; None: torch computes."""
    if runtime == "torch":
        return None
    from vitconvert.runtimes.engines import engines

    return engines(runtime, tell=tell, **asked)


def _engine(
    make: "Callable[..., Engine] | None", source: "ViT | Checkpoint", model: "ViT", *, kind: str
) -> "Engine | None":
    """What computes in the place of a model that was built of a checkpoint; None: nothing."""
    if make is None:
        return None
    if not isinstance(source, Checkpoint):
        raise UsageError("A runtime needs a checkpoint, and not a model.")
    return make(source, model, kind=kind)
