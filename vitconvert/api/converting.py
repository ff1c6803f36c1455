"""Another checkpoint, file or module that computes the same function."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vitconvert.api.loading import Size, Source, load_checkpoint, loaded, loaded_at
from vitconvert.arguments import BUILT, checked, given, one_of, refuse, split
from vitconvert.checkpoint import Checkpoint, ReadArguments, ReadOptions
from vitconvert.config import ViTConfig
from vitconvert.conversion.options import ConvertArguments, WriteOptions
from vitconvert.settings import plain_arithmetic
from vitconvert.tables.dialects import find_tables, is_of, read_table

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitconvert.conversion.conversion_plan import ConversionPlan
    from vitconvert.conversion.convert import Conversion
    from vitconvert.preprocessing.finding import ImageSource
    from vitconvert.runtimes.export import Exported
    from vitconvert.tables.table import Table


@checked()
@plain_arithmetic()
def plan_conversion(
    source: Source,
    *,
    to: str = "vit",
    output: str | PathLike[str] | None = None,
    **how: Unpack[ConvertArguments],
) -> "ConversionPlan":
    """Say what `convert` would do, without reading weights or writing files.

    A plan is made only if each tensor of the source would be used or ignored once, each tensor of
    the target would be written once, and all shapes fit. `guards` lists the checks that need the
    weights.

    Args:
        source: A path or a reference, as for `load_model`.
        to: As for `convert`.
        output: If it is given and would replace the source, this is an error, as in `convert`.
        how: As for `convert`: `WriteArguments` and `ReadArguments` list these options.

    Returns:
        What would be written, and what would be checked in the weights before.

    Raises:
        NotRepresentable: The target cannot compute this function.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> plan = vitconvert.plan_conversion("my-vit", to="hf")
        >>> "model.safetensors" in plan.files
        True
    """
    from vitconvert.conversion.conversion_plan import plan_checkpoint

    place = None if output is None else Path(output)
    return plan_checkpoint(*_asked(source, to, how), output=place)


@checked()
@plain_arithmetic()
def convert(
    source: Source,
    *,
    to: str = "vit",
    output: str | PathLike[str],
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
    **how: Unpack[ConvertArguments],
) -> "Conversion":
    """Convert a checkpoint to another library, and verify that the function is the same.

    Args:
        source: A path or a reference, as for `load_model`.
        to: A library or a dialect. `vit` is a directory that vitconvert loads; timm or transformers
            load it too, if they can compute the function. If it is the name of `table` ("team" for
            team.toml), that table is the target, and the source is read without it.
        output: The directory to write. It is written atomically.
        verify: Compare the source with its own library (in float64 too if any bit differs in
            float32), and the output with the libraries that open it.
        overwrite: Replace an earlier output. Files that vitconvert did not write are never
            replaced.
        command: The command that the record of the output names.
        how: How to change and to read the checkpoint: `WriteArguments` and `ReadArguments` list
            these options.

    Returns:
        What was written and verified: `output`, `parity`, hashes, and other libraries' results.

    Raises:
        NotRepresentable: The target cannot compute this function.
        ParityFailed: The outputs differ; nothing is written.
        OutputExists: The output exists, and `overwrite` is false, or it holds other files.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> conversion = vitconvert.convert("my-vit", to="timm", output="my-vit-timm")
        >>> conversion.parity.verified
        True
    """
    from vitconvert.conversion.convert import convert_checkpoint
    from vitconvert.conversion.output import check_output

    check_output(Path(output), overwrite=overwrite)  # before anything is downloaded
    checkpoint, options = _asked(source, to, how)
    return convert_checkpoint(
        checkpoint,
        options,
        output=Path(output),
        verify=verify,
        overwrite=overwrite,
        command=command,
    )


def _asked(source: Source, to: str, how: Mapping[str, object]) -> tuple[Checkpoint, WriteOptions]:
    """The checkpoint, and what to make of it, by the options of both."""
    writing, reading = split(how, WriteOptions)
    target, reading = _target(to, reading)
    options = ReadOptions.of(reading).cast(writing.dtype).sized(writing.image_size)
    if isinstance(target, str):
        find_tables(target, options.table)  # before anything is downloaded, or asked for
    return loaded(source, options), replace(writing, to=target)


@checked()
@plain_arithmetic()
def convert_state_dict(
    state_dict: "Mapping[str, torch.Tensor]",
    *,
    to: str,
    **reading: Unpack[ReadArguments],
) -> "dict[str, torch.Tensor]":
    """Convert a state dict in memory to the names and layouts of another dialect.

    Args:
        state_dict: Tensors by name. They are not changed; the result may share their memory.
        to: A library or dialect; `vit` gives vitconvert's own names. The name of `table`
            ("team" of team.toml) makes that table the target.
        reading: How to read the tensors: `ReadArguments` lists these options. An adapter is merged
            on the CPU. `prefer` and `rescue` are about files, and refused.

    Returns:
        Tensors by the names of the target.

    Raises:
        NotRepresentable: The target cannot compute this function.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> tensors = vitconvert.load_model("my-vit").state_dict()
        >>> facts = {"num_heads": 3}  # which no tensor shows
        >>> theirs = vitconvert.convert_state_dict(tensors, to="hf", overrides=facts)
        >>> theirs["vit.embeddings.cls_token"].shape
        torch.Size([1, 1, 48])
    """
    from vitconvert.checkpoint.reading import read_state_dict
    from vitconvert.conversion.convert import respell

    target, how = _target(to, reading)
    of_a_file = given({name: how.get(name) for name in ("prefer", "rescue")})
    refuse(of_a_file, "this is for reading a file, not for a state dict.")
    options = ReadOptions.of(how).without_images("a state dict has only tensors")
    return respell(*read_state_dict(state_dict, options), target)


@checked(dtype=one_of("float32", "float16"))
@plain_arithmetic()
def export_model(
    source: Source,
    output: str | PathLike[str],
    *,
    to: str,
    kind: str | None = None,
    probabilities: bool = False,
    with_preprocessing: bool = False,
    batch_size: int | None = None,
    dtype: str = "float32",
    int8: bool = False,
    calibrate: "ImageSource | Iterable[ImageSource] | None" = None,
    opset: int | None = None,
    probes: bool = False,
    dynamic_size: bool = False,
    image_size: Size | None = None,
    images: "ImageSource | Iterable[ImageSource] | None" = None,
    max_image_pixels: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
    **reading: Unpack[ReadArguments],
) -> "Exported":
    """Write a checkpoint as a file for another runtime, and compare the outputs in that runtime.

    The file's metadata have the names of the classes, the preprocessing, the source and its hashes,
    as in vitconvert.json.

    Args:
        source: A path or a reference, as for `load_model`.
        output: The file: NAME.onnx, NAME.pt2 or NAME.xml (OpenVINO, with NAME.bin beside it). If an
            ONNX file has more than 1.9 GB of weights, they are in NAME.onnx.data beside it.
        to: "onnx", "pt2" (torch.export) or "openvino".
        kind: The output: "logits" (features, if there is no head), "features" (the input of the
            head) or "tokens" (all tokens, after the last norm).
        probabilities: Return probabilities instead of logits: a softmax, or sigmoids for a
            multi-label model (`ViTConfig.score_function`). A regression model has none.
        with_preprocessing: Take uint8 images (B, height, width, C), already resized and cropped,
            and normalise them in the graph. By default, images are float32 (B, C, height, width).
        batch_size: A fixed batch size; by default, any.
        dtype: The dtype of weights and arithmetic, "float32" or "float16". Images and output stay
            in float32. Operations that float16 cannot hold are found by measuring, and stay in
            float32; the notes of the result list them. Quantised weights are computed in this
            dtype.
        int8: Round the weights of an ONNX or OpenVINO file to 8 bits. Activations are rounded by
            the ranges that `calibrate` finds. For ONNX, `calibrate` may be left out: then ranges
            are found while the file runs.
        calibrate: Images like those that the model will see, as for `predict`: at least 20. If
            there are more than 512, 512 of them are used. Every second image is held out, and the
            file is compared on it. Needs the extra `int8`.
        opset: Version of ONNX's operators; by default, torch's choice.
        probes: Add the embedded tokens and those of each block as outputs of an ONNX file, so that
            `check_onnx.py` finds the first block in which an engine differs.
        dynamic_size: Take images of any height and width of at least two patches. Positions are
            resampled in the graph. The file is checked at five sizes.
        image_size: As for `load_checkpoint`.
        images: More images for the comparison, as for `predict`.
        max_image_pixels: For `images` and `calibrate`, as for `predict`.
        verify: Compare with vitconvert's own model in float32, on noise and a sample image, in
            batches of one and three. The outputs must be equal within rounding, and in float16
            within 1 % of the largest output. In int8, the difference is reported; only a very
            large one is an error.
        overwrite: Replace an earlier export. Files that vitconvert did not write are never
            replaced.
        command: The command that the metadata name.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        The files, what their metadata say, and how far they differ from vitconvert's own model.

    Raises:
        MissingPackage: The runtime is not installed.
        NotRepresentable: torch, or the runtime, cannot export this model.
        ParityFailed: The runtime computes other outputs; nothing is written.
        OutputExists: The output exists, and `overwrite` is false, or vitconvert did not write it.
        UsageError, ConflictingFact, MissingFact: The model has no such output.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> exported = vitconvert.export_model("my-vit", "my-vit.pt2", to="pt2", probabilities=True)
        >>> exported.output.name
        'my-vit.pt2'
    """
    from vitconvert.preprocessing.finding import find_images
    from vitconvert.runtimes.export import check_export, export_checkpoint
    from vitconvert.runtimes.options import ExportOptions

    wanted = ExportOptions(
        to=to,
        output=kind,
        probabilities=probabilities,
        with_preprocessing=with_preprocessing,
        batch_size=batch_size,
        dtype=dtype,
        int8=int8,
        calibrated=calibrate is not None,
        opset=opset,
        probes=probes,
        dynamic_size=dynamic_size,
    )
    if images is not None and not verify:
        refuse(["images"], "the file is compared on these, and verify=False compares nothing.")
    if images is None and calibrate is None:
        about = given({"max_image_pixels": max_image_pixels})
        refuse(about, "is about images, and there are none.", hint="images= names some.")
    check_export(Path(output), wanted, overwrite=overwrite)  # before anything is downloaded
    checkpoint = loaded_at(source, ReadOptions.of(reading).cast(dtype).sized(image_size))
    if dynamic_size and image_size is not None and checkpoint.ledger.changed:
        why = "a file for images of any size keeps the positions as they are"
        refuse(["image_size"], f"{why}, and these were resampled.")
    return export_checkpoint(
        checkpoint,
        Path(output),
        wanted,
        images=None if images is None else find_images(images),
        calibrate=() if calibrate is None else find_images(calibrate),
        max_pixels=max_image_pixels,
        verify=verify,
        overwrite=overwrite,
        command=command,
    )


@checked(source=BUILT)
@plain_arithmetic()
def build_lucidrains(source: Source | ViTConfig) -> "nn.Module":
    """Build the installed vit-pytorch's ViT or SimpleViT for a checkpoint, and load it strictly.

    The class has no arguments for three things. If the configuration needs them, they are changed
    in the module: the two norms around the patch projection become `nn.Identity`, GELU becomes
    another activation, and the norms get another eps. Tested with vit-pytorch 1.26.

    Args:
        source: An output of `convert(..., to="lucidrains")`, or any checkpoint of vit-pytorch. For
            a configuration, the module has random weights.

    Returns:
        A module of vit-pytorch, on the CPU and in eval mode. Half-precision weights become float32.

    Raises:
        MissingPackage: vit-pytorch is not installed.
        NotRepresentable: Its class cannot compute this function, even changed.
        UsageError: The checkpoint belongs to another library.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> config = vitconvert.load_checkpoint("my-vit").config.replace(qkv_bias=False)
        >>> type(vitconvert.build_lucidrains(config)).__name__
        'ViT'
    """
    from vitconvert.programs.vit_pytorch import build_vit_pytorch

    return build_vit_pytorch(source if isinstance(source, ViTConfig) else load_checkpoint(source))


def _target(to: str, reading: Mapping[str, object]) -> "tuple[str | Table, dict[str, object]]":
    """A table of the user's as the target, if `to` is its name, and how to read the source then."""
    file = reading.get("table")
    if not isinstance(file, str | PathLike) or not is_of(to, file):  # no path is refused later
        return to, {**reading}
    return read_table(Path(file)), {**reading, "table": None}
