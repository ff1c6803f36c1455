"""A checkpoint, the model that is built of it, and what its files show."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vitconvert.arguments import LOADED, LOCATED, checked, refuse, values_of
from vitconvert.checkpoint import (
    Checkpoint,
    ReadArguments,
    ReadOptions,
    build_model,
    read_checkpoint,
)
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitconvert.difference import Difference
    from vitconvert.drafting.draft import Draft
    from vitconvert.inspection import Inspection
    from vitconvert.model import ViT

Source = str | PathLike[str] | Located | Checkpoint
"""A path, `timm:NAME`, `hf-hub:ORG/REPO` or another reference that `vitconvert.sources.locate`
takes; or what `locate` or `load_checkpoint` returned."""

Size = int | tuple[int, int]
"""Pixels of a side, or height and width."""


@checked()
@plain_arithmetic()
def load_checkpoint(
    source: Source, *, image_size: Size | None = None, **reading: Unpack[ReadArguments]
) -> Checkpoint:
    """Read a pretrained ViT checkpoint, and return its tensors under canonical names.

    No code in the file is run. Each tensor of the file is used exactly once, or ignored for a
    reason that the dialect's table states. This is checked with the header. The tensors are read
    when they are first used.

    Args:
        source: A path, `timm:NAME`, `hf-hub:ORG/REPO` or another reference of `sources.locate`.
        image_size: Resample the positions to this size, by the library's own rule. If no file
            shows the size of the images, this states it.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        The tensors under canonical names, with the configuration, preprocessing and labels.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The file cannot be read, or not safely. Damaged bytes of a tensor
            raise it when the tensors are read.
        UnknownDialect, AmbiguousDialect: No table explains every key, or several do.
        TensorMismatch, ShapeMismatch: Tensors are missing, left over, duplicated, or have the
            wrong shape.
        MissingFact, ConflictingFact: A value that the function depends on is unknown, or
            contradicts the tensors.
        NotRepresentable: The checkpoint's configuration asks for something that is not supported.
        UsageError: The source is a `Checkpoint`, so options of reading have no effect.

    Example:
        >>> checkpoint = vitconvert.load_checkpoint("my-vit")
        >>> checkpoint.config.depth, checkpoint.labels[0]
        (4, '0')
    """
    return loaded_at(source, ReadOptions.of(reading).sized(image_size))


def loaded_at(source: Source, options: ReadOptions) -> Checkpoint:
    """The checkpoint that a reference leads to, resampled to the size of the options."""
    from vitconvert.conversion.changes import at_size

    return at_size(loaded(source, options), options.image_size)


def loaded(source: Source, options: ReadOptions) -> Checkpoint:
    """The checkpoint that a reference leads to; see `load_checkpoint`."""
    if isinstance(source, Checkpoint):
        options.refuse("this one was read already")
        return source
    return read_checkpoint(locate(source, tower=options.tower), options)


@checked()
@plain_arithmetic()
def load_model(
    source: Source,
    *,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    dynamic_size: bool = False,
    drop_rate: float | None = None,
    embed_drop_rate: float | None = None,
    attention_drop_rate: float | None = None,
    proj_drop_rate: float | None = None,
    drop_path_rate: float | None = None,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    fast: bool = False,
    **reading: Unpack[ReadArguments],
) -> "ViT":
    """Load a pretrained ViT of any dialect as vitconvert's own module, in eval mode.

    Args:
        source: A path, `timm:NAME`, `hf-hub:ORG/REPO` or another reference of `sources.locate`.
        image_size: Resample the positions to this size, by the library's own rule. If no file
            shows the size of the images, this states it.
        patch_size: Resize the kernel of the patches as FlexiViT does, and resample the positions.
        in_channels: Adapt to images of this many channels, as timm adapts a first convolution.
        num_classes: Replace the head by a new one of this size (0: none).
        dynamic_size: Take images of any height and width. Positions are resampled in each forward
            pass. Images without a whole number of patches raise InputMismatch, or are cut, as in
            the checkpoint's library.
        drop_rate: Dropout before the head. This and the next four act only in training.
        embed_drop_rate: Dropout after the positions; timm's `pos_drop_rate`.
        attention_drop_rate: Dropout of attention probabilities; timm's `attn_drop_rate`.
        proj_drop_rate: Dropout after the attention's projection and in the MLPs.
        drop_path_rate: Stochastic depth: the rate at which the last block's attention or MLP is
            skipped for an image. The rate rises from 0 in equal steps over the blocks, as in timm.
        dtype: Cast the weights to this dtype. By default, half-precision weights become float32.
            This is exact, and their libraries do the same on a CPU. Quantised weights are computed
            in this dtype.
        device: The device of the model.
        fast: Build a `model.fast.FastViT`, for inference only. It is faster. Its outputs are equal
            within rounding; those of the usual model are bit-identical.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        A torch module that maps images (B, C, H, W) to logits, or without a head to features.

    Raises:
        UsageError: There is no such device, or a change makes no sense for this model.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> model = vitconvert.load_model("my-vit")
        >>> model(torch.zeros(1, model.config.in_channels, *model.config.image_size)).shape
        torch.Size([1, 10])
    """
    rates = {
        "drop_rate": drop_rate,
        "embed_drop_rate": embed_drop_rate,
        "attention_drop_rate": attention_drop_rate,
        "proj_drop_rate": proj_drop_rate,
        "drop_path_rate": drop_path_rate,
    }
    return build_model(
        loaded(source, ReadOptions.of(reading).cast(dtype).sized(image_size)),
        image_size=image_size,
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=num_classes,
        dynamic_size=dynamic_size,
        drop_rates={name: rate for name, rate in rates.items() if rate is not None},
        dtype=dtype,
        device=device,
        fast=fast,
    )


@checked(source=LOCATED)
@plain_arithmetic()
def inspect(
    source: str | PathLike[str] | Located,
    *,
    with_hash: bool = False,
    **reading: Unpack[ReadArguments],
) -> "Inspection":
    """Say what a checkpoint is, without reading its weights.

    If a checkpoint cannot be loaded (an unknown dialect, a missing value, tensors that do not fit
    together), `problem` of the result has the reason. It is not raised.

    Args:
        source: A path or a reference, as for `load_model`.
        with_hash: Also compute `function_hash`. This reads all weights.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        What the header shows and what it means.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The header cannot be read, or not safely.

    Example:
        >>> inspection = vitconvert.inspect("my-vit")
        >>> inspection.dialect, inspection.problem
        ('timm', None)
    """
    from vitconvert.inspection import inspect_located

    options = ReadOptions.of(reading).without_images("a header shows neither")
    located = locate(source, tower=options.tower, headers_only=not with_hash)
    return inspect_located(located, options, with_hash=with_hash)


@checked()
@plain_arithmetic()
def diff(
    a: str | PathLike[str] | Located,
    b: str | PathLike[str] | Located,
    *,
    reading_a: ReadArguments | None = None,
    reading_b: ReadArguments | None = None,
    header: bool = False,
    **reading: Unpack[ReadArguments],
) -> "Difference":
    """Compare two checkpoints tensor by tensor, under common names.

    Values are compared in the same layout, as vitconvert would load them. If dtypes differ, they
    are compared in float64. Only one tensor of each side is in memory at a time.

    Args:
        a, b: Paths or references, as for `load_model`.
        reading_a, reading_b: How to read one of them, such as `{"overrides": {"num_heads": 3}}`;
            they override `reading`.
        header: Compare only headers; no weights are read.
        reading: How to read both: `ReadArguments` lists these options.

    Returns:
        What differs; `equal` is true if nothing does.

    Raises:
        SourceError: A source leads to no file.
        CorruptFile, UnsafeFile: A file cannot be read, or not safely.
        NotRepresentable: A tensor that is ignored as a constant has other values.
        UsageError: There is no such dialect, field or value.

    Example:
        >>> vitconvert.diff("my-vit", "my-vit").only_a
        {}
    """
    from vitconvert.difference import diff_located

    of_a, of_b = (
        ReadOptions.of({**reading, **(own or {})}).without_images("only tensors are compared")
        for own in (reading_a, reading_b)
    )
    located_a, located_b = locate(a, tower=of_a.tower), locate(b, tower=of_b.tower)
    return diff_located(located_a, located_b, of_a, of_b, header=header)


@checked(source=LOCATED, module=LOADED, **values_of(ReadOptions))
@plain_arithmetic()
def draft_table(
    source: str | PathLike[str] | Located | None = None,
    *,
    like: Source | None = None,
    module: "nn.Module | None" = None,
    output: str | PathLike[str] | None = None,
    overrides: Mapping[str, object] | None = None,
    prefer: str | None = None,
    tower: str | None = None,
    ignore: Sequence[str] = (),
    rescue: bool = False,
    overwrite: bool = False,
) -> "Draft":
    """Draft a table for unknown tensor names, with a reference: a known ViT, or your own code.

    Rows are found by shapes, by words in names and, if the reference has the same weights, by equal
    values. Certain rows can be used at once (`load_model(source, table=output)`). Guesses are
    comments with the reason. Tensors without a row are listed. Values that no tensor shows
    (activation, eps, heads, ...) are taken from the reference.

    A module shows more than a known ViT: its sizes and layers. A copy of it runs with random
    parameters, to check whether the draft computes the same numbers.

    Args:
        source: A path or a reference, as for `load_model`. None: the names are the module's.
        like: A ViT of the same depth and width: the name of an architecture of timm
            (`vit_base_patch16_224`: no weights are needed), or a reference as for `load_model`.
            None: the module's own sizes; without a module, the source.
        module: Your own untrained model that has these names. It is not changed.
        output: The table to write, NAME.toml. By default, none is written.
        overrides: Fields of ViTConfig that the reference, or the module, does not show.
        prefer, tower, ignore, rescue: As for `load_checkpoint`.
        overwrite: Replace an earlier draft, and nothing else.

    Returns:
        The proposal: its rows, and the text of the table.

    Raises:
        UsageError: Nothing in the file is like the reference, the output does not end in .toml, or
            there is neither a reference nor a module.
        MissingFact: The module does not show how many heads it has, or which images it reads.
        OutputExists: The output is there, and `overwrite` is false or it is no draft.
        VitConvertError: The reference cannot be read, as for `load_checkpoint`.

    Example:
        >>> draft = vitconvert.draft_table("team.pth", like="my-vit", output="team.toml")
        >>> draft.left
        {}
    """
    from vitconvert.drafting.draft import draft_of
    from vitconvert.drafting.draft_text import check_draft_output, write_draft

    if output is not None:  # before anything is downloaded
        check_draft_output(Path(output), overwrite=overwrite)
    options = ReadOptions(prefer=prefer, tower=tower, ignore=ignore, rescue=rescue)
    located = None if source is None else locate(source)
    draft = draft_of(located, like, module, options, overrides)
    if output is not None:
        write_draft(draft.text, Path(output), overwrite=overwrite)
    return draft


def checkpoint_or_model(
    model: "ViT | Source",
    *,
    read_in: "torch.dtype | None",
    image_size: Size | None = None,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | str" = "cpu",
    fast: bool = True,
) -> "ViT | Checkpoint":
    """What a model was given as: itself, or the checkpoint that a reference leads to.

    Args:
        model: Either.
        read_in: What weights of a checkpoint are cast to later.
        image_size: What a checkpoint is resampled to.
        dtype, device, fast: What was asked for.

    Raises:
        UsageError: A model, which is used as it is, computes otherwise than was asked for.
    """
    if isinstance(model, str | PathLike | Located | Checkpoint):
        return loaded_at(model, ReadOptions().cast(read_in).sized(image_size))
    import torch

    from vitconvert.model import FastViT

    weight = next(model.parameters())
    elsewhere = device != "cpu" and torch.empty(0, device=device).device != weight.device
    size = size_of(image_size) or model.config.image_size
    otherwise = {
        "image_size": size != model.config.image_size and not model.dynamic_img_size,
        "dtype": dtype not in (None, weight.dtype),
        "device": elsewhere,
        "fast": not fast and isinstance(model, FastViT),
    }
    refuse(
        (name for name, differs in otherwise.items() if differs),
        "this option builds the model differently, and the model is built already.",
        hint="give the checkpoint, or a model that load_model made with these options.",
    )
    return model


def size_of(image_size: Size | None) -> tuple[int, int] | None:
    """Height and width."""
    return ReadOptions().sized(image_size).image_size


def at_stated_size(
    preprocessing: Preprocessing | None, size: tuple[int, int] | None
) -> Preprocessing | None:
    """A preprocessing that a user states, for images of another size; None of either: as it is."""
    return preprocessing.at_size(size) if preprocessing and size else preprocessing
