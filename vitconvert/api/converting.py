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
    """Say what `convert` would do, reading no weights and writing nothing.

    The plan verifies that each tensor of the source would be used or ignored once, that each of the
    target would be written once, and that all shapes fit. What only the weights can show is in
    `guards`.

    Args:
        source: A path or a reference, as for `load_model`.
        to: As for `convert`.
        output: If it is given, and would replace the source, it is refused as by `convert`.
        how: As for `convert`: `WriteArguments` and `ReadArguments` list these options.

    Returns:
        What would be written, and what would be checked of the weights before.

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
        to: A library, a dialect, or `vit`: a directory that vitconvert loads, and timm or
            transformers too if they can compute the function. The name of `table` ("team" of
            team.toml) makes that table the target, and the source is read without it.
        output: The directory to write. It appears complete or not at all.
        verify: Compare with the source's own implementation, in float64 too if any bit differs in
            float32, and with the programs that the output is for.
        overwrite: Replace an earlier output. What vitconvert did not write is never replaced.
        command: The command that the record of the output names.
        how: What to make of the checkpoint, and how to read it: `WriteArguments` and
            `ReadArguments` list these options.

    Returns:
        What was written and verified: `output`, `parity`, hashes, and what other programs computed.

    Raises:
        NotRepresentable: The target cannot compute this function.
        ParityFailed: The numbers disagree; nothing is written.
        OutputExists: The output is there, and `overwrite` is false, or holds other files.
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
        probabilities: Give probabilities instead of logits: a softmax, or sigmoids of a model of
            several labels (`ViTConfig.score_function`). A regression has none.
        with_preprocessing: Take uint8 images (B, height, width, C), already resized and cropped,
            and normalise them within; if not, float32 images (B, C, height, width).
        batch_size: The one size of batches; by default, any.
        dtype: Of the weights and the arithmetic, "float32" or "float16"; images and output stay
            float32. What float16 loses stays in float32, by measuring, and is in the notes of the
            result. Weights of a quantised file are computed in it.
        int8: Round the weights of an ONNX or OpenVINO file to 8 bits, and activations by the
            ranges that `calibrate` makes; without it, which ONNX allows, as the file runs.
        calibrate: Images such as the model will see, as for `predict`; 20 at least, and of more
            than 512 as many, spread over all. Every second one is held out, and the file is
            compared on it. Needs the extra `int8`.
        opset: Version of ONNX's operators; by default, torch's choice.
        probes: Give the embedded tokens and those of each block as further outputs of an ONNX file,
            by which `check_onnx.py` says where an engine departs.
        dynamic_size: Take images of any height and width, from two patches down and across:
            positions are resampled in the graph. The file is checked at five sizes.
        image_size: As for `load_checkpoint`.
        images: Images on which the file is compared too, as for `predict`.
        max_image_pixels: Of `images` and `calibrate`, as for `predict`.
        verify: Compare with vitconvert's own model in float32, on noise and a sample image, for one
            image and for three at once, within rounding (1 % of the largest output in float16; in
            int8, the difference is reported, and only nonsense refused).
        overwrite: Replace an earlier export. What vitconvert did not write is never replaced.
        command: The command that the metadata name.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        The files, what their metadata say, and how far they are from vitconvert's own model.

    Raises:
        MissingPackage: The runtime is not installed.
        NotRepresentable: torch, or the runtime, cannot export this model.
        ParityFailed: The runtime computes something else; nothing is written.
        OutputExists: The output is there, and `overwrite` is false, or it is somebody else's.
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
