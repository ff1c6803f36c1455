"""The front door: every public name, in the order of the story.

A checkpoint is located and read (`load_checkpoint`), becomes a model (`load_model`) that answers
for photographs (`predict`, `embed`), or another checkpoint (`convert`) that provably computes the
same function (`verify`). Each function opens the checkpoint and passes it to the package that does
the work; torch is imported by the first function that needs it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitconvert.checkpoint import (
    Checkpoint,
    ReadArguments,
    ReadOptions,
    build_model,
    read_checkpoint,
)
from vitconvert.config import ViTConfig
from vitconvert.conversion.accounts import Ledger
from vitconvert.errors import UsageError, VitConvertError
from vitconvert.preprocessing import Preprocessing
from vitconvert.scale import require_extra
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import nn

    from vitconvert.difference import Difference
    from vitconvert.drafting.draft import Draft
    from vitconvert.export.conversion_plan import ConversionPlan
    from vitconvert.export.convert import Conversion
    from vitconvert.export.runtime_file import Exported
    from vitconvert.inference.batches import Engine
    from vitconvert.inference.embed import Embedding
    from vitconvert.inference.images import ImageSource
    from vitconvert.inference.predict import Prediction
    from vitconvert.inspection import Inspection
    from vitconvert.model import ViT
    from vitconvert.parity.audit_report import AuditReport
    from vitconvert.parity.golden import Golden
    from vitconvert.parity.photographs import Photographs
    from vitconvert.parity.report import ParityReport
    from vitconvert.pictures.features import FeatureMaps
    from vitconvert.pictures.maps import AttentionMaps
    from vitconvert.pictures.photograph import Unseen
    from vitconvert.scale.embedder import Embedder
    from vitconvert.scale.events import Event
    from vitconvert.tables.table import Table

__all__ = [
    "AttentionMaps",
    "AuditReport",
    "Checkpoint",
    "Conversion",
    "ConversionPlan",
    "Difference",
    "Draft",
    "Embedder",
    "Exported",
    "FeatureMaps",
    "Golden",
    "Inspection",
    "Ledger",
    "ParityReport",
    "Preprocessing",
    "ViT",
    "ViTConfig",
    "VitConvertError",
    "attention_maps",
    "audit",
    "build_lucidrains",
    "convert",
    "convert_state_dict",
    "diff",
    "draft_table",
    "embed",
    "embed_dataset",
    "export_model",
    "feature_maps",
    "inspect",
    "load_checkpoint",
    "load_model",
    "plan_conversion",
    "predict",
    "record_golden",
    "verify",
]

Source = str | PathLike[str] | Located | Checkpoint
"""A path, `timm:NAME`, `hf-hub:ORG/REPO` or another reference that `vitconvert.sources.locate`
takes; or what `locate` or `load_checkpoint` returned."""

_Size = int | tuple[int, int]  # pixels of a side, or height and width


def inspect(
    source: str | PathLike[str] | Located, **reading: Unpack[ReadArguments]
) -> "Inspection":
    """Say what a checkpoint is, reading no weights.

    If a checkpoint cannot be loaded (an unknown dialect, a missing fact, tensors that do not add
    up), the reason is not raised but returned, as `problem`.

    Args:
        source: A path or a reference, as for `load_model`.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower,
            ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The header cannot be read, or not safely.
    """
    from vitconvert.inspection import inspect_located

    located = locate(source, tower=reading.get("tower"), headers_only=True)
    return inspect_located(located, ReadOptions(**reading))


def load_checkpoint(source: Source, **reading: Unpack[ReadArguments]) -> Checkpoint:
    """Read a pretrained ViT checkpoint, and return its tensors under canonical names.

    Nothing in the file is executed, and nothing is dropped in silence: each tensor of the file is
    used exactly once, or ignored for a reason that the dialect's table states. That is proved from
    the header; the tensors are read when they are first asked for.

    Args:
        source: A path, `timm:NAME`, `hf-hub:ORG/REPO` or what else `sources.locate` takes.
        dialect: Name of a table of `weights_map/` or of an ecosystem; by default the one table
            that explains every key.
        overrides: Fields of ViTConfig that the tensors do not show, such as `{"num_heads": 3}`.
        architecture: Name of the architecture, for files that do not show it.
        table: A TOML file with one more dialect.
        prefer: Which weights to read from a torch checkpoint that has several, such as "model"
            if it has averaged ones too; by default the averaged ones.
        tower: What stands before the names of the tensors to take, in a file of a larger model,
            such as "vision_tower"; by default, the one image tower that is found.
        ignore: Patterns of names of tensors that play no part, such as ["aux_head.*"].
        adapter: A LoRA or DoRA adapter of PEFT, a path or a reference, to merge into the model.
        lora_scale: What the product of an adapter's two matrices is multiplied with, where no
            adapter_config.json says it: lora_alpha / r.
        rescue: Of a whole model, as torch.save(model, path) writes it, read the tensors as data.
            Nothing is run, and whether the model computes what their names say is not known.
        dequantise: Compute the weights of a quantised file (bitsandbytes, torchao, GGUF) in this:
            "float32" or "bfloat16".

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The file cannot be read, or not safely. Damaged bytes of a tensor
            raise it when the tensors are read.
        UnknownDialect, AmbiguousDialect: No table explains every key, or several do.
        TensorMismatch, ShapeMismatch: Tensors are missing, left over, doubled or misshapen.
        MissingFact, ConflictingFact: A fact that decides the function is unknown, or contradicts
            the tensors.
        NotRepresentable: The checkpoint's own configuration asks for something unknown.
    """
    if isinstance(source, Checkpoint):
        return source
    located = locate(source, tower=reading.get("tower"))
    return read_checkpoint(located, ReadOptions(**reading))


def load_model(
    source: Source,
    *,
    image_size: _Size | None = None,
    patch_size: _Size | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    fast: bool = False,
    **reading: Unpack[ReadArguments],
) -> "ViT":
    """Load a pretrained ViT of any dialect as vitconvert's own, in eval mode.

    Args:
        source: A path, `timm:NAME`, `hf-hub:ORG/REPO` or what else `sources.locate` takes.
        image_size: Resample the positions to this size, by the project's own rule.
        patch_size: Resize the kernel of the patches as FlexiViT does, and resample the positions.
        in_channels: Adapt to images of this many channels, as timm adapts a first convolution.
        num_classes: Replace the head by a new one of this size (0: none).
        dtype: Cast the weights; by default, half-precision weights become float32, which is exact
            and what their projects compute in on a CPU, and others are not cast. Those of a
            quantised file are computed in it.
        device: Where the model goes.
        fast: Build a `model.fast.FastViT`, for inference only: faster, and equal within rounding
            where the usual one is equal to the last bit.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower,
            ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        UsageError: There is no such device, or a change makes no sense for this model.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> model = load_model("ViT-B_16.npz")            # doctest: +SKIP
        >>> logits = model(images)                        # doctest: +SKIP
    """
    return build_model(
        load_checkpoint(source, **_computed_in(dtype, reading)),
        image_size=image_size,
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=num_classes,
        dtype=dtype,
        device=device,
        fast=fast,
    )


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
    from vitconvert.inference.photographs import ready
    from vitconvert.inference.predict import predict as predict_with

    make_engine = _engines(runtime, tell, fast=fast, dtype=dtype, device=device)
    opened = _checkpoint_or_model(model, dtype)
    if isinstance(opened, Checkpoint):
        labels = labels or opened.labels
    built, prepared = ready(opened, preprocessing, fast=fast, dtype=dtype, device=device)
    engine = _engine(make_engine, opened, built, kind="logits")
    return predict_with(
        built,
        images,
        prepared,
        topk=topk,
        labels=labels,
        batch_size=batch_size,
        recursive=recursive,
        fast_preprocessing=fast_preprocessing,
        threads=threads,
        engine=engine,
    )


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

    They are what the classification head reads, pooled as the model pools: (D,) for each image.
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
    from vitconvert.inference.embed import embed as embed_with
    from vitconvert.inference.photographs import ready

    make_engine = _engines(runtime, tell, fast=fast, dtype=dtype, device=device)
    opened = _checkpoint_or_model(model, dtype)
    built, prepared = ready(
        opened,
        preprocessing,
        # Without its head, a fast model computes nothing but the features.
        num_classes=None if projected else 0,
        fast=fast,
        dtype=dtype,
        device=device,
    )
    kind = "logits" if projected else "tokens" if tokens else "features"
    engine = _engine(make_engine, opened, built, kind=kind)
    return embed_with(
        built,
        images,
        prepared,
        tokens=tokens,
        projected=projected,
        batch_size=batch_size,
        recursive=recursive,
        fast_preprocessing=fast_preprocessing,
        threads=threads,
        engine=engine,
    )


def attention_maps(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    layers: int | Sequence[int] | None = None,
    recursive: bool = False,
    device: "torch.device | str" = "cpu",
) -> "Iterator[AttentionMaps | Unseen]":
    """What each token of a model attends to, in each image, as they come.

    `maps.map()` is a map of patches, `maps.rollout()` one through all blocks, `maps.picture()`
    lays one over the photograph, at its own size and with the crop undone, and `maps.to_html()` is
    a page to explore all of them. An image that cannot be read has an `error` instead.

    Args:
        model: What `load_model` takes, a checkpoint, which is computed in float32, or a model,
            which is used as it is.
        images: As for `predict`.
        preprocessing: By default, the checkpoint's own; needed with a model.
        layers: The blocks whose maps are kept: how many of the last, or which (negative: from the
            end); by default all, which for 224 pixels is 22 MB for each image (ViT-B/16).
        recursive: Search subfolders too.
        device: Where the model goes.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingFact: Nothing says how images are prepared.
        InputMismatch: The preprocessing makes other images than the model reads.
        UsageError: There are no such blocks, or their maps would take more than 2 GiB.

    Example:
        >>> for maps in attention_maps("ViT-B_16.npz", "photos"):        # doctest: +SKIP
        ...     maps.picture(layer=-1, query="class").save("attention.png")
    """
    from vitconvert.pictures.maps import attention_maps as attention_maps_with

    built, prepared = _in_float32(model, preprocessing, device)
    return attention_maps_with(built, images, prepared, layers=layers, recursive=recursive)


def feature_maps(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    foreground: float | None = None,
    background: bool = True,
    recursive: bool = False,
    device: "torch.device | str" = "cpu",
) -> "list[FeatureMaps | Unseen]":
    """The features of patches: principal components as colours, similarity and norms.

    The components have one basis for all images, so that a colour means the same in each. The
    first one over all patches tells foreground from background, as in DINOv2's figures.

    Args:
        model, images, preprocessing, recursive, device: As for `attention_maps`.
        foreground: The threshold of the first component, from 0 to 1; by default found by itself.
        background: Whether there is any; else all patches are coloured.

    Raises:
        VitConvertError: As for `attention_maps`.
    """
    from vitconvert.pictures.features import feature_maps as feature_maps_with

    built, prepared = _in_float32(model, preprocessing, device)
    return feature_maps_with(
        built,
        images,
        prepared,
        foreground=foreground,
        background=background,
        recursive=recursive,
    )


def embed_dataset(
    model: str | PathLike[str] | Located,
    source: "str | PathLike[str] | Iterable[str | PathLike[str]]",
    output: str | PathLike[str],
    preprocessing: Preprocessing | None = None,
    *,
    computed: str = "features",
    recursive: bool = False,
    keep: Sequence[str] = (),
    image_column: str | None = None,
    labels: Sequence[str] | None = None,
    topk: int = 5,
    batch_size: int = 8,
    threads: int | None = None,
    fast: bool = True,
    fast_preprocessing: bool = False,
    dtype: "torch.dtype | None" = None,
    device: str = "cpu",
    runtime: str = "torch",
    notify: "Callable[[Event], None]" = lambda _event: None,
    reading: ReadArguments | None = None,
    **how: Any,
) -> "Event":
    """Compute the features, or the classes, of any number of images, as Parquet in a directory.

    A run that was interrupted goes on: what `output` has is kept, and what it lacks is computed.
    Each file of it, a shard, appears whole or not at all. Memory does not grow with the number of
    images. Needs the extra `scale` (pyarrow); the engine "ray" the extra `ray`.

    Args:
        model: A path or a reference, as for `load_model`.
        source: One or several of: a folder, a file, a pattern, a tar of WebDataset, a Parquet file
            with images (of Hugging Face datasets), a URL of pyarrow such as s3://bucket/photos.
        output: A directory, or a URL of an object store.
        preprocessing: By default, the checkpoint's own.
        computed: "features", "tokens" or "projected", as for `embed`, or "classes".
        recursive: Search subfolders too; the first of them becomes the column "class".
        keep: Columns of Parquet sources, or files of WebDataset samples, that go along.
        image_column: Of Parquet sources, if it is not clear.
        labels, topk: Of classes, as for `predict`.
        batch_size, fast, fast_preprocessing, dtype, device, runtime: As for `embed`.
        threads: How many decode, and how many torch takes; by default, all processors.
        notify: Is told what happens; see `scale.events.Event`.
        reading: As for `load_checkpoint`.
        how: `shard_rows`, `store`, `append`, `retry_failed`, `only`, `max_errors`, `engine`,
            `workers`, `cpus_per_worker`, `gpus_per_worker` and `address`: see
            `scale.options.RunOptions`.

    Returns:
        How many images were computed, and how many failed.

    Raises:
        MissingPackage: pyarrow, or ray, is not installed.
        ConflictingFact: `output` has features of another model, preprocessing or source.
        OutputExists: Another run writes there, or it is no output of this function.
        VitConvertError: One of the errors of `embed`.
    """
    require_extra("pyarrow", "scale")
    from vitconvert.scale.embedder import Task
    from vitconvert.scale.options import RunOptions
    from vitconvert.scale.plan import Sources
    from vitconvert.scale.run import run

    task = Task(
        model=model,
        computed=computed,
        reading=ReadOptions(**(reading or {})),
        preprocessing=preprocessing,
        topk=topk,
        labels=labels,
        dtype=dtype,
        fast=fast,
        fast_preprocessing=fast_preprocessing,
        device=device,
        batch_size=batch_size,
        threads=threads,
        engine=_engines(runtime, None, fast=fast, dtype=dtype, device=device),
    )
    given = [source] if isinstance(source, str | PathLike) else source
    sources = Sources(
        given=[fspath(place) for place in given],
        recursive=recursive,
        keep=keep,
        image_column=image_column,
    )
    return run(task, sources, fspath(output), RunOptions(**how), notify)


def plan_conversion(
    source: Source,
    *,
    to: str = "vit",
    dtype: "torch.dtype | None" = None,
    image_size: _Size | None = None,
    patch_size: _Size | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    classes: Sequence[int | str] | None = None,
    allow: Sequence[str] = (),
    image_only: bool = False,
    max_shard_size: int | str | None = None,
    output: str | PathLike[str] | None = None,
    **reading: Unpack[ReadArguments],
) -> "ConversionPlan":
    """Say what `convert` would do, reading no weights and writing nothing.

    The plan proves that each tensor of the source would be used or ignored once, that each of the
    target would be written once, and that all shapes fit. What only the weights can show is in
    `guards`.

    Args:
        source: A path or a reference, as for `load_model`.
        to: As for `convert`, like all arguments below.
        output: If it is given, and would replace the source, it is refused as by `convert`.

    Raises:
        NotRepresentable: The target cannot compute this function.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.export.changes import Changes
    from vitconvert.export.conversion_plan import plan_checkpoint

    changes = Changes(
        image_size=image_size,
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=num_classes,
        classes=classes,
        dtype=dtype,
    )
    target, reading = _target(to, _computed_in(dtype, reading))
    return plan_checkpoint(
        load_checkpoint(source, **reading),
        to=target,
        changes=changes,
        allow=allow,
        image_only=image_only,
        max_shard_size=max_shard_size,
        output=Path(output) if output is not None else None,
    )


def convert(
    source: Source,
    *,
    to: str = "vit",
    output: str | PathLike[str],
    dtype: "torch.dtype | None" = None,
    image_size: _Size | None = None,
    patch_size: _Size | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    classes: Sequence[int | str] | None = None,
    allow: Sequence[str] = (),
    image_only: bool = False,
    max_shard_size: int | str | None = None,
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
    **reading: Unpack[ReadArguments],
) -> "Conversion":
    """Convert a checkpoint to another ecosystem, and prove that the function is the same.

    Args:
        source: A path or a reference, as for `load_model`.
        to: An ecosystem, a dialect, or `vit`: a directory that vitconvert loads, and timm or
            transformers too if they can compute the function. The name of `table` ("team" of
            team.toml) makes that table the target, and the source is read without it.
        output: The directory to write. It appears complete or not at all.
        dtype: Cast the weights.
        image_size: Resample the positions to this size.
        patch_size: Resize the kernel of the patches as FlexiViT does, and resample the positions.
        in_channels: Adapt to images of this many channels, as timm adapts a first convolution.
        num_classes: A new head of zeros for this many classes; 0 removes the head.
        classes: Keep these classes of the head, by index or name, in this order.
        allow: Names of steps that the target may need: they keep the function but change the
            bytes, or are lossy and measured ("norm-eps"). The error of a refusal names those that
            would help.
        image_only: Leave a text tower behind. Without it, a CLIP or SigLIP keeps both towers where
            the target has a place for them; vitconvert computes the image side only.
        max_shard_size: Split safetensors into files of at most this size ("5GB"), with an index.
        verify: Compare with the source's own implementation, in float64 too if any bit differs in
            float32, and with the programs that the output is for.
        overwrite: Replace an earlier output. What vitconvert did not write is never replaced.
        command: The command that the record of the output names.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower,
            ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        NotRepresentable: The target cannot compute this function.
        ParityFailed: The numbers disagree; nothing is written.
        OutputExists: The output is there, and `overwrite` is false, or holds other files.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.export.changes import Changes
    from vitconvert.export.convert import convert_checkpoint
    from vitconvert.export.whole_directory import check_output

    check_output(Path(output), overwrite=overwrite)  # before anything is downloaded
    changes = Changes(
        image_size=image_size,
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=num_classes,
        classes=classes,
        dtype=dtype,
    )
    target, reading = _target(to, _computed_in(dtype, reading))
    return convert_checkpoint(
        load_checkpoint(source, **reading),
        to=target,
        output=Path(output),
        changes=changes,
        allow=allow,
        image_only=image_only,
        max_shard_size=max_shard_size,
        verify=verify,
        overwrite=overwrite,
        command=command,
    )


def export_model(
    source: Source,
    output: str | PathLike[str],
    *,
    to: str,
    kind: str | None = None,
    softmax: bool = False,
    with_preprocessing: bool = False,
    batch_size: int | None = None,
    dtype: str = "float32",
    int8: bool = False,
    opset: int | None = None,
    images: "ImageSource | Iterable[ImageSource] | None" = None,
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
    **reading: Unpack[ReadArguments],
) -> "Exported":
    """Write a checkpoint as a file that other programs run, checked in the real runtime.

    The file's metadata have the names of the classes, the preprocessing, hashes of the source and
    where it came from, as vitconvert.json has them.

    Args:
        source: A path or a reference, as for `load_model`.
        output: The file, NAME.onnx, NAME.pt2 or NAME.xml (OpenVINO, with NAME.bin beside it). ONNX
            with more than 1.9 GB of weights has them beside it too, in NAME.onnx.data.
        to: "onnx", "pt2" (torch.export) or "openvino".
        kind: What it computes: "logits" (features, if there is no head), "features" (what the head
            reads) or "tokens" (all of them, after the last norm).
        softmax: Give probabilities instead of logits.
        with_preprocessing: Take uint8 images (B, height, width, C), already resized and cropped,
            and normalise them within; otherwise, float32 images (B, C, height, width).
        batch_size: The one size of batches; by default, any.
        dtype: Of the weights and the arithmetic, "float32" or "float16"; images and output stay
            float32. What float16 is too small for is in the notes of the result.
        int8: Round the weights of an ONNX file to 8 bits, and activations as it runs.
        opset: Version of ONNX's operators; by default, torch's choice.
        images: Photographs on which the file is compared too, such as for `predict`.
        verify: Compare with vitconvert's own model in float32, on noise and a photograph, for one
            image and for three at once, within rounding (1 % of the largest output in float16; in
            int8, the difference is told, and only nonsense refused).
        overwrite: Replace an earlier export. What vitconvert did not write is never replaced.
        command: The command that the metadata name.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower,
            ignore, adapter, lora_scale.

    Raises:
        MissingPackage: The runtime is not installed.
        NotRepresentable: torch, or the runtime, cannot export this model.
        ParityFailed: The runtime computes something else; nothing is written.
        OutputExists: The output is there, and `overwrite` is false, or it is somebody else's.
        UsageError, ConflictingFact, MissingFact: The model has no such output.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.export.runtime_choice import Wanted, check_export
    from vitconvert.inference.images import find_images

    wanted = Wanted(
        to=to,
        output=kind,
        softmax=softmax,
        with_preprocessing=with_preprocessing,
        batch_size=batch_size,
        dtype=dtype,
        int8=int8,
        opset=opset,
    )
    check_export(Path(output), wanted, overwrite=overwrite)  # before anything is downloaded
    from vitconvert.export.runtime_file import export_checkpoint

    return export_checkpoint(
        load_checkpoint(source, **reading),
        Path(output),
        wanted,
        photographs=None if images is None else find_images(images),
        verify=verify,
        command=command,
    )


def convert_state_dict(
    state_dict: "Mapping[str, torch.Tensor]",
    *,
    to: str,
    **reading: Unpack[ReadArguments],
) -> "dict[str, torch.Tensor]":
    """Convert a state dict in memory to the names and layouts of another dialect.

    Args:
        state_dict: Tensors by name. They are not changed; the result may share their memory.
        to: An ecosystem or dialect; `vit` gives vitconvert's own names. The name of `table`
            ("team" of team.toml) makes that table the target.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, tower, ignore,
            adapter, lora_scale, dequantise. An adapter is merged on the CPU.

    Raises:
        NotRepresentable: The target cannot compute this function.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.checkpoint.state_dict import read_state_dict
    from vitconvert.export.convert import respell

    target, reading = _target(to, reading)
    return respell(*read_state_dict(state_dict, ReadOptions(**reading)), target)


def _target(to: str, reading: ReadArguments) -> "tuple[str | Table, ReadArguments]":
    """A table of the user's as the target, if `to` is its name, and how to read the source then."""
    from vitconvert.tables.dialects import is_of, read_table

    file = reading.get("table")
    if file is None or not is_of(to, file):
        return to, reading
    return read_table(Path(file)), {**reading, "table": None}


def verify(
    source: "Source | Callable[..., Any]",
    *,
    against: "Source | Callable[..., Any] | None" = None,
    tolerance: float = 2e-5,
    seed: int = 0,
    batch: int = 2,
    dtypes: Sequence[str] = ("float32", "float64"),
    layers: Mapping[str, str] | None = None,
    gradients: bool = False,
    image_size: _Size | None = None,
    in_channels: int | None = None,
    images: "ImageSource | Iterable[ImageSource] | None" = None,
    preprocess: "Callable[[Image.Image], Any] | None" = None,
    **reading: Unpack[ReadArguments],
) -> "ParityReport":
    """Compare a checkpoint, or a model of your own, with another implementation.

    A checkpoint is compared with the implementation of its own ecosystem, which loads the same file
    by itself. If there is none, the report says so (`verified` is False) and claims nothing.

    A module or a function of your own is compared with `against`: with a checkpoint (through
    vitconvert's ViT, once that is proved equal to the checkpoint's own project) or with another
    module or function. It runs as it is, on noise, on a photograph, and on images that are
    constant, large, of one channel, one and three in a batch. If it differs, the report names the
    first layer that does and the likely cause, as far as modules are matched: by the names of their
    tensors (`table`, `dialect`, or a dialect that is known), or by `layers`.

    Args:
        source: A path or a reference, as for `load_model`; or an `nn.Module`, or a function of
            images (B, C, H, W) to logits, of torch tensors or NumPy arrays. It may return several
            outputs by name ("logits", "last_hidden_state", "pooler_output"; in a dict, or as
            attributes).
        against: Another checkpoint that should compute the same function, which the implementation
            of *its* ecosystem loads; a module or function; or a golden file (NAME.golden, of
            `record_golden`), which says itself which images are compared.
        tolerance: Largest relative difference in float32; in float64 a ten-millionth of it.
        seed, batch: Which images, and how many of each kind.
        dtypes: "float32", "float64" or both, where both sides compute in them.
        layers: Name of a module of your own -> name of a module of vitconvert's ViT, or of the
            module that it is compared with, such as `{"encoder.3.attention": "blocks.3.attn"}`:
            their outputs are compared.
        gradients: Whether to compare gradients by the images and by every weight as well, between a
            module and a checkpoint: a wrong backward pass is what training finds.
        image_size, in_channels: Of the images, where neither side is a checkpoint.
        images: Photographs, as for `predict`: the first 32 are compared as well. Each side takes
            its own preprocessing: vitconvert's for a checkpoint that is verified, that of its own
            program for what it is measured by (timm's transforms, transformers' processor), as far
            as these are known.
        preprocess: With `images`, what a model of your own does with an image that Pillow opened,
            to a tensor (C, H, W); by default, it takes the preprocessing of the checkpoint.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower,
            ignore, adapter, lora_scale, rescue, dequantise. With a model of your own, `dialect` and
            `table` are about the names of its tensors, and the others about `against`.

    Raises:
        VitConvertError: A checkpoint cannot be loaded, as for `load_model`.
        UsageError: The two take other images or give other outputs, a model of your own raises an
            error on such images, none of `images` can be read, a golden file was recorded of other
            weights, or an argument is wrong.
        MissingFact: Nothing says how `images` are prepared.
        ParityFailed: vitconvert's ViT does not compute what the project of `against` computes.
    """
    from vitconvert.parity.golden_file import is_golden

    if isinstance(against, str | PathLike) and is_golden(against):
        if (seed, batch, image_size, in_channels, images) != (0, 2, None, None, None):
            raise UsageError("A golden file says itself which images are compared.")
        if gradients:
            raise UsageError("A golden file has no gradients to compare with.")
        return _verify_golden(source, Path(against), layers, tolerance, dtypes, reading)
    photographs = _photographs(images, preprocess)
    if callable(source) or callable(against):
        from vitconvert.parity.own_models import Inputs, verify_model

        if against is None:
            raise UsageError("`against` is missing: what should the model compute the same as?")
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        return verify_model(
            *_models(source, against, reading),
            inputs=Inputs(
                image_size=size,
                in_channels=in_channels,
                seed=seed,
                batch=batch,
                photographs=photographs,
            ),
            options=ReadOptions(**reading),
            layers=layers,
            gradients=gradients,
            tolerance=tolerance,
            dtypes=dtypes,
        )
    from vitconvert.parity.verification import verify_checkpoint

    if preprocess:
        raise UsageError("`preprocess` is for a model of your own, and both are checkpoints.")
    return verify_checkpoint(
        load_checkpoint(source, **reading),
        against=None if against is None else load_checkpoint(against),
        tolerance=tolerance,
        seed=seed,
        batch=batch,
        dtypes=dtypes,
        photographs=photographs,
    )


def record_golden(
    source: Source,
    output: str | PathLike[str],
    *,
    seed: int = 0,
    batch: int = 2,
    tolerance: float = 2e-5,
    overwrite: bool = False,
    **reading: Unpack[ReadArguments],
) -> "Golden":
    """Record what a checkpoint gives for images, so that others can be compared with it anywhere.

    The checkpoint is first proved equal to its own project's implementation. Where there is none,
    the golden file says "not verified", and so does each report of a comparison with it. The file
    (safetensors, a few hundred KB) has outputs in float64, digests of all layers, the sha256 of the
    weights and of the images, and versions; `verify(model, against=output)` compares with it.

    Args:
        source: A path or a reference, as for `load_model`.
        output: The file, NAME.golden. It appears whole or not at all.
        seed, batch: Which images, and how many of each kind.
        tolerance: Of the proof, as for `verify`.
        overwrite: Replace an earlier golden file, and nothing else.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower.

    Raises:
        ParityFailed: vitconvert's ViT does not compute what the checkpoint's project computes;
            nothing is written.
        OutputExists: The output is there, and `overwrite` is false or it is no golden file.
        UsageError: The output's name is no golden file's, or the images would be too large.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.parity.golden import record
    from vitconvert.parity.golden_file import check_golden_output, write_golden

    check_golden_output(Path(output), overwrite=overwrite)  # before anything is downloaded
    checkpoint = load_checkpoint(source, **reading)
    golden = record(checkpoint, seed=seed, batch=batch, tolerance=tolerance)
    write_golden(golden, Path(output))
    return golden


def _verify_golden(
    source: Any,
    golden: Path,
    layers: Mapping[str, str] | None,
    tolerance: float,
    dtypes: Sequence[str],
    reading: ReadArguments,
) -> "ParityReport":
    from vitconvert.parity.golden_file import read_golden
    from vitconvert.parity.replay import verify_golden

    read = read_golden(golden)  # before anything is downloaded
    return verify_golden(
        source if callable(source) else load_checkpoint(source, **reading),
        read,
        options=ReadOptions(**reading),
        layers=layers,
        tolerance=tolerance,
        dtypes=dtypes,
    )


def _photographs(images: Any, preprocess: Any) -> "Photographs | None":
    if images is None:
        if preprocess:
            raise UsageError("`preprocess` prepares `images`, and there are none.")
        return None
    from vitconvert.inference.images import find_images
    from vitconvert.parity.photographs import Photographs

    return Photographs(files=find_images(images), preprocess=preprocess)


def _models(source: Any, against: Any, reading: ReadArguments) -> Iterator[Any]:
    """What is compared; the options that are not about the names of a module read a checkpoint."""
    others = reading.copy()
    others.pop("dialect", None)
    others.pop("table", None)
    for model in (source, against):
        yield model if callable(model) else load_checkpoint(model, **others)


def audit(
    source: Source,
    *,
    seed: int = 0,
    batch: int = 8,
    without: Sequence[str] = (),
    **reading: Unpack[ReadArguments],
) -> "AuditReport":
    """Measure how far lower precision and faster arithmetic take a model from float64.

    float32, bfloat16, float16, `fast` (as for `load_model`), torch's compiler and ONNX Runtime
    compute the same images on the CPU. The report says how far each is from float64, at each layer
    of vitconvert's own model, where numbers become infinite or NaN, and how often the class
    changes. What cannot be measured here is named with the reason. The model is not judged.

    Args:
        source: A path or a reference, as for `load_model`.
        seed, batch: Which images of noise and photographs, and how many of each.
        without: What to leave out: "bfloat16", "float16", "fast", "compiled" (which takes most of
            the time) or "onnxruntime".
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower.

    Raises:
        VitConvertError: The checkpoint cannot be loaded, as for `load_model`.
        UsageError: `batch` is below 1, or there is no such arithmetic.
    """
    from vitconvert.parity.audit import audit_checkpoint

    checkpoint = load_checkpoint(source, **reading)
    return audit_checkpoint(checkpoint, seed=seed, batch=batch, without=without)


def diff(
    a: str | PathLike[str] | Located,
    b: str | PathLike[str] | Located,
    *,
    reading_a: ReadArguments | None = None,
    reading_b: ReadArguments | None = None,
    header: bool = False,
    **reading: Unpack[ReadArguments],
) -> "Difference":
    """Say how two checkpoints differ, tensor by tensor under common names.

    Values are compared as vitconvert would load them: in the same layout, and in float64 if their
    dtypes differ. Only one tensor of each side is in memory at a time.

    Args:
        a, b: Paths or references, as for `load_model`.
        reading_a, reading_b: How to read one of them, such as `{"overrides": {"num_heads": 3}}`;
            each comes before what is said for both.
        header: Compare headers only; no weights are read.
        reading: For both, as for `load_checkpoint`: dialect, overrides, architecture, table,
            prefer, tower, ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        SourceError: A source leads to no file.
        CorruptFile, UnsafeFile: A file cannot be read, or not safely.
        NotRepresentable: A tensor that is ignored as a constant has other values.
        UsageError: There is no such dialect, field or value.
    """
    from vitconvert.difference import diff_located

    said_a: ReadArguments = {**reading, **(reading_a or {})}
    said_b: ReadArguments = {**reading, **(reading_b or {})}
    located_a = locate(a, tower=said_a.get("tower"))
    located_b = locate(b, tower=said_b.get("tower"))
    options = ReadOptions(**said_a), ReadOptions(**said_b)
    return diff_located(located_a, located_b, *options, header=header)


def draft_table(
    source: str | PathLike[str] | Located,
    *,
    like: Source,
    output: str | PathLike[str] | None = None,
    prefer: str | None = None,
    ignore: Sequence[str] = (),
    overwrite: bool = False,
) -> "Draft":
    """Draft a table for the names of a file that nobody knows, by a ViT that is known.

    Rows follow from shapes, words in names and, where the reference has the same weights, equal
    values. What is certain are rows that can be used at once (`load_model(source, table=output)`),
    guesses are commented out with the reason, and what is left is listed. What no tensor shows
    (activation, eps, heads, ...) is taken from the reference.

    Args:
        source: A path or a reference, as for `load_model`.
        like: A ViT of the same depth and width: the name of an architecture of timm
            (`vit_base_patch16_224`: no weights are needed), or what `load_model` takes.
        output: The table to write, NAME.toml; by default, none is written.
        prefer, ignore: As for `load_checkpoint`.
        overwrite: Replace an earlier draft, and nothing else.

    Raises:
        UsageError: Nothing in the file is like the reference, or the output's name is no table's.
        OutputExists: The output is there, and `overwrite` is false or it is no draft.
        VitConvertError: The reference cannot be read, as for `load_checkpoint`.

    Example:
        >>> draft = draft_table("team.pth", like="vit_base_patch16_224")   # doctest: +SKIP
        >>> print(draft.text)                                             # doctest: +SKIP
    """
    from vitconvert.drafting.draft import draft_located
    from vitconvert.drafting.draft_file import check_draft_output, write_draft
    from vitconvert.drafting.reference import read_reference

    if output is not None:  # before anything is downloaded
        check_draft_output(Path(output), overwrite=overwrite)
    options = ReadOptions(prefer=prefer, ignore=ignore)
    draft = draft_located(locate(source), read_reference(like), options)
    if output is not None:
        write_draft(draft.text, Path(output))
    return draft


def build_lucidrains(source: Source | ViTConfig) -> "nn.Module":
    """Build the installed vit-pytorch's ViT or SimpleViT for a checkpoint, and load it strictly.

    The class has no arguments for three things, which are replaced in the module if the
    configuration says so: the two norms around the patch projection become `nn.Identity`, GELU
    another activation, and the epsilon of the norms another number. Written for vit-pytorch 1.26.

    Args:
        source: What `convert(..., to="lucidrains")` wrote, or any checkpoint of vit-pytorch. A
            configuration alone gives a module with random weights.

    Returns:
        A module of vit-pytorch, on the CPU and in eval mode; weights in half precision become
        float32.

    Raises:
        MissingPackage: vit-pytorch is not installed.
        NotRepresentable: Its class cannot compute this function, even changed.
        UsageError: The checkpoint is another project's.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> model = build_lucidrains("out")               # doctest: +SKIP
        >>> logits = model(images)                        # doctest: +SKIP
    """
    from vitconvert.programs.vit_pytorch.reference import build_vit_pytorch

    return build_vit_pytorch(source if isinstance(source, ViTConfig) else load_checkpoint(source))


def _in_float32(
    model: "ViT | Source", preprocessing: Preprocessing | None, device: "torch.device | str"
) -> "tuple[ViT, Preprocessing]":
    """A model and its preprocessing, with the usual arithmetic."""
    import torch

    from vitconvert.inference.photographs import ready

    opened = _checkpoint_or_model(model, torch.float32)
    return ready(opened, preprocessing, fast=False, dtype=torch.float32, device=device)


def _checkpoint_or_model(model: "ViT | Source", dtype: "torch.dtype | None") -> "ViT | Checkpoint":
    if not isinstance(model, str | PathLike | Located):
        return model
    return load_checkpoint(model, **_computed_in(dtype, {}))


def _computed_in(dtype: "torch.dtype | None", reading: ReadArguments) -> ReadArguments:
    """How to read a checkpoint whose weights are cast: quantised ones are computed in that."""
    if dtype is None or reading.get("dequantise"):
        return reading
    return {**reading, "dequantise": str(dtype).removeprefix("torch.")}


def _engines(
    runtime: str, tell: Callable[[str], None] | None, **asked: Any
) -> "Callable[..., Engine] | None":
    """What makes an engine of a checkpoint and its model; None: torch computes."""
    if runtime == "torch":
        return None
    from vitconvert.export.fastest import engines

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


# Classes of results, which nobody needs before a function has returned one; ViT needs torch.
_LATE = {
    "AttentionMaps": "vitconvert.pictures.maps",
    "AuditReport": "vitconvert.parity.audit_report",
    "Conversion": "vitconvert.export.convert",
    "ConversionPlan": "vitconvert.export.conversion_plan",
    "Difference": "vitconvert.difference",
    "Draft": "vitconvert.drafting.draft",
    "Embedder": "vitconvert.scale.embedder",
    "FeatureMaps": "vitconvert.pictures.features",
    "Exported": "vitconvert.export.runtime_file",
    "Golden": "vitconvert.parity.golden",
    "Inspection": "vitconvert.inspection",
    "ParityReport": "vitconvert.parity.report",
    "ViT": "vitconvert.model",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
