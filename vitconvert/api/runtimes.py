"""Models that run without vitconvert: a file for a runtime, a module of vit-pytorch."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.api.loading import Source, load_checkpoint
from vitconvert.arguments import BUILT, checked, one_of, refuse
from vitconvert.checkpoint import ReadOptions
from vitconvert.config import ViTConfig

if TYPE_CHECKING:
    from torch import nn

    from vitconvert.preprocessing.finding import ImageSource
    from vitconvert.runtimes.export import Exported


@checked(ReadOptions, dtype=one_of("float32", "float16"))
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
    **reading: object,
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
        images: Images on which the file is compared too, as for `predict`.
        verify: Compare with vitconvert's own model in float32, on noise and a sample image, for one
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
    from vitconvert.preprocessing.finding import find_images
    from vitconvert.runtimes.export import ExportOptions, check_export

    wanted = ExportOptions(
        to=to,
        output=kind,
        softmax=softmax,
        with_preprocessing=with_preprocessing,
        batch_size=batch_size,
        dtype=dtype,
        int8=int8,
        opset=opset,
    )
    if images is not None and not verify:
        refuse(["images"], "the file is compared on these, and verify=False compares nothing.")
    check_export(Path(output), wanted, overwrite=overwrite)  # before anything is downloaded
    from vitconvert.runtimes.export import export_checkpoint

    return export_checkpoint(
        load_checkpoint(source, **reading),
        Path(output),
        wanted,
        photographs=None if images is None else find_images(images),
        verify=verify,
        overwrite=overwrite,
        command=command,
    )


@checked(source=BUILT)
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
    from vitconvert.programs.vit_pytorch import build_vit_pytorch

    return build_vit_pytorch(source if isinstance(source, ViTConfig) else load_checkpoint(source))
