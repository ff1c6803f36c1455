"""Another checkpoint that computes the same function."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.api.loading import Source, computed_in, load_checkpoint
from vitconvert.arguments import checked, given, options_of, refuse
from vitconvert.checkpoint import Checkpoint, ReadOptions
from vitconvert.conversion.options import WriteOptions

if TYPE_CHECKING:
    import torch

    from vitconvert.conversion.conversion_plan import ConversionPlan
    from vitconvert.conversion.convert import Conversion
    from vitconvert.tables.table import Table


@checked(WriteOptions, ReadOptions)
def plan_conversion(
    source: Source,
    *,
    to: str = "vit",
    output: str | PathLike[str] | None = None,
    **how: object,
) -> "ConversionPlan":
    """Say what `convert` would do, reading no weights and writing nothing.

    The plan proves that each tensor of the source would be used or ignored once, that each of the
    target would be written once, and that all shapes fit. What only the weights can show is in
    `guards`.

    Args:
        source: A path or a reference, as for `load_model`.
        to: As for `convert`.
        output: If it is given, and would replace the source, it is refused as by `convert`.
        how: As for `convert`.

    Raises:
        NotRepresentable: The target cannot compute this function.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.conversion.conversion_plan import plan_checkpoint

    place = None if output is None else Path(output)
    return plan_checkpoint(*_asked(source, to, how), output=place)


@checked(WriteOptions, ReadOptions)
def convert(
    source: Source,
    *,
    to: str = "vit",
    output: str | PathLike[str],
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
    **how: object,
) -> "Conversion":
    """Convert a checkpoint to another ecosystem, and prove that the function is the same.

    Args:
        source: A path or a reference, as for `load_model`.
        to: An ecosystem, a dialect, or `vit`: a directory that vitconvert loads, and timm or
            transformers too if they can compute the function. The name of `table` ("team" of
            team.toml) makes that table the target, and the source is read without it.
        output: The directory to write. It appears complete or not at all.
        verify: Compare with the source's own implementation, in float64 too if any bit differs in
            float32, and with the programs that the output is for.
        overwrite: Replace an earlier output. What vitconvert did not write is never replaced.
        command: The command that the record of the output names.
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
        how: These, and as for `load_checkpoint`: dialect, overrides, architecture, table, prefer,
            tower, ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        NotRepresentable: The target cannot compute this function.
        ParityFailed: The numbers disagree; nothing is written.
        OutputExists: The output is there, and `overwrite` is false, or holds other files.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.conversion.convert import convert_checkpoint
    from vitconvert.conversion.output import check_output

    check_output(Path(output), overwrite=overwrite)  # before anything is downloaded
    return convert_checkpoint(
        *_asked(source, to, how),
        output=Path(output),
        verify=verify,
        overwrite=overwrite,
        command=command,
    )


def _asked(source: Source, to: str, how: Mapping[str, object]) -> tuple[Checkpoint, WriteOptions]:
    """The checkpoint, and what to make of it, by the options of both."""
    writing = {name: how[name] for name in options_of(WriteOptions) if name in how}
    reading = {name: value for name, value in how.items() if name not in writing}
    target, reading = _target(to, reading)
    options = WriteOptions(to=target, **writing)  # type: ignore[arg-type]
    return load_checkpoint(source, **computed_in(options.dtype, reading)), options


@checked(ReadOptions)
def convert_state_dict(
    state_dict: "Mapping[str, torch.Tensor]",
    *,
    to: str,
    **reading: object,
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
    from vitconvert.checkpoint.reading import read_state_dict
    from vitconvert.conversion.convert import respell

    target, how = _target(to, reading)
    of_a_file = given({name: how.get(name) for name in ("prefer", "rescue")})
    refuse(of_a_file, "this is about reading a file, and a state dict is no file.")
    return respell(*read_state_dict(state_dict, ReadOptions.of(how)), target)


def _target(to: str, reading: Mapping[str, object]) -> "tuple[str | Table, dict[str, object]]":
    """A table of the user's as the target, if `to` is its name, and how to read the source then."""
    from vitconvert.tables.dialects import is_of, read_table

    file = reading.get("table")
    if not isinstance(file, str | PathLike) or not is_of(to, file):
        return to, {**reading}
    return read_table(Path(file)), {**reading, "table": None}
