"""Whether two checkpoints or models compute the same function: comparisons, and golden files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from vitconvert.api.loading import Size, Source, loaded
from vitconvert.arguments import COMPARED, NAMED_LAYERS, PREPARING, checked, given, refuse
from vitconvert.checkpoint import Checkpoint, ReadArguments, ReadOptions
from vitconvert.checkpoint.companions import hashed
from vitconvert.errors import UnknownDialect, UsageError
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic
from vitconvert.sources import locate

if TYPE_CHECKING:
    from PIL import Image

    from vitconvert.parity.golden import Golden
    from vitconvert.parity.images import ComparedImages
    from vitconvert.parity.report import ParityReport
    from vitconvert.pixel_goldens.check import PixelReport
    from vitconvert.pixel_goldens.golden import PixelGolden
    from vitconvert.preprocessing.finding import ImageSource


@checked(source=COMPARED)
@plain_arithmetic()
def verify(
    source: Source,
    *,
    against: Source | None = None,
    tolerance: float = 2e-5,
    seed: int = 0,
    batch: int = 2,
    dtypes: Sequence[str] = ("float32", "float64"),
    images: "ImageSource | Iterable[ImageSource] | None" = None,
    max_image_pixels: int | None = None,
    **reading: Unpack[ReadArguments],
) -> "ParityReport":
    """Compare a checkpoint with the model of its own library, or with another checkpoint.

    The library loads the file with its own code. If the library is not installed, nothing is
    compared, and `verified` is False. `compare` takes your own models and functions, and
    `check_golden` takes golden files.

    Args:
        source: A path or a reference, as for `load_model`.
        against: Another checkpoint that should compute the same function. *Its* library loads it.
        tolerance: Largest relative difference in float32; in float64 a ten-millionth of it.
        seed, batch: Which images, and how many of each kind.
        dtypes: "float32", "float64" or both. With "float16" or "bfloat16", the report also says
            how far vitconvert's own model in this dtype differs from float64, layer by layer, and
            whether its numbers fit. This does not change the result.
        images: Images, as for `predict`: the first 32 are compared too. Each side has its own
            preprocessing: vitconvert's, and that of the library (timm's transforms, transformers'
            processor), as far as these are known.
        max_image_pixels: Of `images`, as for `predict`.
        reading: How to read `source`: `ReadArguments` lists these options.

    Returns:
        Whether both compute the same, as far as was compared: `verified`, and each comparison.

    Raises:
        VitConvertError: A checkpoint cannot be loaded, as for `load_model`.
        UsageError: `source` or `against` is a model, a function or a golden file; the two take
            other images or give other outputs; none of `images` can be read; or an argument is
            wrong.
        MissingFact: Nothing says how `images` are prepared.

    Example:
        >>> report = vitconvert.verify("my-vit")
        >>> report.verified
        True
    """
    from vitconvert.parity.verification import verify_checkpoint

    for name, side in (("source", source), ("against", against)):
        if callable(side):
            raise UsageError(
                f"`{name}` is a model or a function, and verify compares checkpoints.",
                hint="vitconvert.compare(model, against) compares models and functions.",
            )
        _refuse_golden(name, side)
    seen = _images(images, None, max_image_pixels)
    return verify_checkpoint(
        _load_whole(source, **reading),
        against=None if against is None else _load_whole(against),
        tolerance=tolerance,
        seed=seed,
        batch=batch,
        dtypes=dtypes,
        images=seen,
    )


@checked(source=COMPARED, layers=NAMED_LAYERS)
@plain_arithmetic()
def compare(
    source: "Source | Callable[..., Any]",
    against: "Source | Callable[..., Any]",
    *,
    tolerance: float = 2e-5,
    seed: int = 0,
    batch: int = 2,
    dtypes: Sequence[str] = ("float32", "float64"),
    layers: Mapping[str, str] | None = None,
    image_size: Size | None = None,
    in_channels: int | None = None,
    images: "ImageSource | Iterable[ImageSource] | None" = None,
    preprocess: "Callable[[Image.Image], Any] | None" = None,
    max_image_pixels: int | None = None,
    **reading: Unpack[ReadArguments],
) -> "ParityReport":
    """Compare your own model or function with a checkpoint, a model or a function.

    Your model runs unchanged. The images are noise, a smooth image, and images that are constant,
    large, of one channel, and in batches of one and three. For a checkpoint, vitconvert's ViT is
    first compared with the checkpoint's own library. If the two sides differ, the report names the
    first layer that differs and the likely cause. For this, modules are matched by the names of
    their tensors (`table`, `dialect`, or a known dialect) or by `layers`.

    Args:
        source: An `nn.Module`; a function of images (B, C, H, W) to logits, of torch tensors or
            NumPy arrays; or a checkpoint, as for `load_model`. A function may return several
            outputs by name ("logits", "last_hidden_state", "pooler_output"; in a dict, or as
            attributes).
        against: The same. One of the two must be a module or a function.
        tolerance: Largest relative difference in float32; in float64 a ten-millionth of it.
        seed, batch: Which images, and how many of each kind.
        dtypes: "float32", "float64" or both, if both sides compute in them.
        layers: Which modules to compare: the name of a module of your own -> the name of a module
            of vitconvert's ViT, or of the other module, such as
            `{"encoder.3.attention": "blocks.3.attn"}`.
        image_size, in_channels: Of the images, if neither side is a checkpoint.
        images: Images, as for `predict`: the first 32 are compared too. The checkpoint has its own
            preprocessing.
        preprocess: With `images`: your function from an image that Pillow opened to a tensor
            (C, H, W). By default, your model gets the preprocessing of the checkpoint.
        max_image_pixels: For `images`, as for `predict`.
        reading: How to read the checkpoint: `ReadArguments` lists these options. `table` and
            `dialect` describe the module's names.

    Returns:
        Whether both compute the same, as far as was compared: `verified`, and each comparison.

    Raises:
        VitConvertError: The checkpoint cannot be loaded, as for `load_model`.
        UsageError: Both are checkpoints; the two take other images or give other outputs; a model
            of your own raises an error on such images; none of `images` can be read; or an argument
            is wrong.
        MissingFact: Nothing says how `images` are prepared.
        ParityFailed: vitconvert's ViT does not compute what the checkpoint's library computes.

    Example:
        >>> model = vitconvert.load_model("my-vit")
        >>> vitconvert.compare(lambda images: model(images), "my-vit").ok
        True
    """
    from vitconvert.parity.own_models import verify_model

    for name, side in (("source", source), ("against", against)):
        _refuse_golden(name, side)
    if not (callable(source) or callable(against)):
        raise UsageError(
            "Neither side is a model or a function.",
            hint="vitconvert.verify(source, against=...) compares checkpoints.",
        )
    seen = _images(images, preprocess, max_image_pixels)
    return verify_model(
        *_models((source, against), reading, layers=layers),
        options=ReadOptions.of(reading),
        layers=layers,
        image_size=cast(tuple[int, int] | None, image_size),
        in_channels=in_channels,
        seed=seed,
        batch=batch,
        images=seen,
        tolerance=tolerance,
        dtypes=dtypes,
    )


@checked(source=COMPARED, layers=NAMED_LAYERS)
@plain_arithmetic()
def check_golden(
    source: "Source | Callable[..., Any]",
    golden: str | PathLike[str],
    *,
    tolerance: float = 2e-5,
    dtypes: Sequence[str] = ("float32", "float64"),
    layers: Mapping[str, str] | None = None,
    **reading: Unpack[ReadArguments],
) -> "ParityReport":
    """Compare a checkpoint, a model or a function with a golden file of `record_golden`.

    The library that the weights came from is not needed. The golden file has the images.

    Args:
        source: A checkpoint, a module or a function, as for `compare`.
        golden: The file, NAME.golden.
        tolerance: Largest relative difference in float32; in float64 a ten-millionth of it.
        dtypes: "float32", "float64" or both, if `source` computes in them.
        layers: Name of a module of your own -> name of a module of vitconvert's ViT.
        reading: How to read a checkpoint: `ReadArguments` lists these options. `table` and
            `dialect` describe a module's names.

    Returns:
        Whether both compute the same, as far as was compared: `verified`, and each comparison.

    Raises:
        SourceError, CorruptFile: The golden file cannot be read.
        VitConvertError: The checkpoint cannot be loaded, as for `load_model`.
        ParityFailed: The golden file was recorded of other weights.
        UsageError: `golden` is no golden file; a model of your own raises an error on its images;
            or an argument is wrong.

    Example:
        >>> golden = vitconvert.record_golden("my-vit", "my-vit.golden")
        >>> vitconvert.check_golden("my-vit", "my-vit.golden").verified
        True
    """
    from vitconvert.parity.golden import is_golden, read_golden
    from vitconvert.parity.replay import verify_golden

    if not is_golden(golden):
        raise UsageError(
            f"{fspath(golden)} is not a golden file: the name of one ends in .golden.",
            hint="vitconvert.verify compares checkpoints, vitconvert.compare models and functions.",
        )
    recorded = read_golden(Path(golden))  # before anything is downloaded
    (model,) = _models((source,), reading, layers=None)
    return verify_golden(
        model,
        recorded,
        options=ReadOptions.of(reading),
        layers=layers,
        tolerance=tolerance,
        dtypes=dtypes,
    )


@checked()
@plain_arithmetic()
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
    """Record reference outputs of a checkpoint, so that models can be compared with it anywhere.

    First, the checkpoint is compared with the model of its own library. If that is not installed,
    the golden file says "not verified", and so does each report of a comparison with it. The file
    (safetensors, a few hundred KB) has outputs in float64, digests of all layers, the sha256 of the
    weights and of the images, and versions. `check_golden(model, output)` compares with it.

    Args:
        source: A path or a reference, as for `load_model`.
        output: The file, NAME.golden. It is written atomically.
        seed, batch: Which images, and how many of each kind.
        tolerance: Of the comparison with the library, as for `verify`.
        overwrite: Replace an earlier golden file, and nothing else.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        What was recorded.

    Raises:
        ParityFailed: vitconvert's ViT does not compute the same as the checkpoint's library;
            nothing is written.
        OutputExists: The output exists, and `overwrite` is false or it is no golden file.
        UsageError: The output does not end in .golden, or the images would be too large.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> golden = vitconvert.record_golden("my-vit", "my-vit.golden")
        >>> vitconvert.check_golden("my-vit", "my-vit.golden").verified
        True
    """
    from vitconvert.parity.golden import check_golden_output, write_golden
    from vitconvert.parity.replay import record

    check_golden_output(Path(output), overwrite=overwrite)  # before anything is downloaded
    checkpoint = loaded(source, ReadOptions.of(reading))
    golden = record(checkpoint, seed=seed, batch=batch, tolerance=tolerance)
    write_golden(golden, Path(output), overwrite=overwrite)
    return golden


@checked(source=PREPARING)
@plain_arithmetic()
def record_pixels(
    source: "Source | Preprocessing",
    output: str | PathLike[str],
    *,
    preprocess: "Callable[[Image.Image], object] | None" = None,
    overwrite: bool = False,
    **reading: Unpack[ReadArguments],
) -> "PixelGolden":
    """Record reference pixels of a model's preprocessing, for ports to other languages.

    The directory has twelve images (gradients, edges, odd sizes, EXIF, transparency, CMYK, grey, a
    palette, 16 bits, a synthetic photograph), their pixels after decoding, resizing, cropping and
    normalising (safetensors), and a description of these steps (JSON). If the model's library is
    installed, each result is compared bit by bit with its code (timm's transforms, transformers'
    processor). If they differ for an image, only the library's result is kept.

    Args:
        source: A path or a reference, as for `load_model`; or a preprocessing.
        output: The directory. It is written atomically.
        preprocess: Your code instead of the library's: from an image that Pillow opened to a tensor
            (C, H, W).
        overwrite: Replace a directory that vitconvert wrote, and nothing else.
        reading: How to read the file: `ReadArguments` lists these options.

    Returns:
        What was recorded.

    Raises:
        MissingFact: No file states the preprocessing of images.
        InputMismatch: The model does not read images, but recordings.
        ParityFailed: The library's own code gives other numbers for every image; nothing is
            written.
        OutputExists: The output exists, and `overwrite` is false or vitconvert did not write it.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> golden = vitconvert.record_pixels("my-vit", "my-vit.pixels")
        >>> "edges.png" in golden.images
        True
    """
    from vitconvert.checkpoint.images import needed_preprocessing
    from vitconvert.conversion.output import check_output
    from vitconvert.parity.images import of_both_checkpoints
    from vitconvert.pixel_goldens.golden import record
    from vitconvert.sources.references import published

    check_output(Path(output), overwrite=overwrite)  # before anything is downloaded
    own = ("your preprocess", preprocess) if preprocess else None
    options = ReadOptions.of(reading)
    if isinstance(source, Preprocessing):
        options.refuse("a preprocessing is given")
        steps, name = source, source.origin
    else:
        checkpoint = loaded(source, options)
        steps, name = needed_preprocessing(checkpoint), published(checkpoint.located.reference)
        if not own and not options.of_images:  # which the project's own code does not know
            ours, theirs = of_both_checkpoints(checkpoint, None)
            own = None if ours is theirs else (theirs.name, theirs.prepare)
    return record(steps, Path(output), source=name, own=own, overwrite=overwrite)


@checked()
@plain_arithmetic()
def check_pixels(
    golden: str | PathLike[str], theirs: "str | PathLike[str] | Mapping[str, object]"
) -> "PixelReport":
    """Compare the pixels of a port with the reference pixels of `record_pixels`.

    Args:
        golden: The directory.
        theirs: A file (.npz, .safetensors), or arrays by name, such as "edges.png/resized". The
            name of an image alone is its final result. Steps and images may be left out. Axes are
            (C, H, W), as in the golden, or (H, W, C).

    Returns:
        Whether all are equal (`ok`). If not, the first step that differs and likely causes: another
        filter, antialias, rounding, crop, order of channels, mean and std, scale, EXIF,
        transparency.

    Raises:
        SourceError, CorruptFile: A file cannot be read.
        UsageError: An array has a name that the golden does not have.

    Example:
        >>> golden = vitconvert.record_pixels("my-vit", "my-vit.pixels")
        >>> import numpy
        >>> steps = golden.images["edges.png"].steps
        >>> theirs = numpy.flip(steps["normalised"], 0)
        >>> report = vitconvert.check_pixels("my-vit.pixels", {"edges.png": theirs})
        >>> report.causes
        ('the channels are in the order blue, green, red',)
    """
    from vitconvert.pixel_goldens.check import check
    from vitconvert.pixel_goldens.golden import read

    port = Path(theirs) if isinstance(theirs, str | PathLike) else theirs
    return check(read(Path(golden)), port)


def _refuse_golden(name: str, side: object) -> None:
    from vitconvert.parity.golden import is_golden

    if isinstance(side, str | PathLike) and is_golden(side):
        raise UsageError(
            f"`{name}` is a golden file, {fspath(side)}.",
            hint="vitconvert.check_golden(model, golden) compares with one.",
        )


def _images(images: Any, preprocess: Any, max_pixels: int | None) -> "ComparedImages | None":
    if images is None:
        about = given({"preprocess": preprocess, "max_image_pixels": max_pixels})
        refuse(about, "is about `images`, and there are none.", hint="images= names some.")
        return None
    from vitconvert.parity.images import ComparedImages
    from vitconvert.preprocessing.finding import find_images

    return ComparedImages(
        files=list(find_images(images)), preprocess=preprocess, max_pixels=max_pixels
    )


def _models(
    sides: Sequence[Any], reading: Mapping[str, object], *, layers: Mapping[str, str] | None
) -> list[Any]:
    """The two sides; options that are not about the names of a module read a checkpoint.

    Raises:
        UsageError: There is none to read, or no module whose names would be matched.
    """
    read = [model for model in sides if not callable(model)]
    of_names = {"dialect": reading.get("dialect"), "table": reading.get("table")}
    others = dict(reading)
    if len(read) < len(sides):
        if layers or not any(hasattr(model, "state_dict") for model in sides):
            refuse(given(of_names), "this is about names of a module's tensors, and none is used.")
        others |= {"dialect": None, "table": None}
    if not read:
        ReadOptions.of(others).refuse("none is compared here")
    table = reading.get("table") if len(read) < len(sides) else None
    return [model if callable(model) else _beside_module(model, table, others) for model in sides]


def _load_whole(source: Source, **reading: object) -> Checkpoint:
    """A checkpoint whose `vitconvert.json` is believed only if every byte is as it says."""
    options = ReadOptions.of(reading)
    if not isinstance(source, Checkpoint):
        source = hashed(locate(source, tower=options.tower))
    return loaded(source, options)


def _beside_module(source: Source, table: object, reading: Mapping[str, object]) -> Checkpoint:
    """A checkpoint in the names of its own library, or in those of the module's table."""
    try:
        return _load_whole(source, **reading)
    except UnknownDialect:
        if table is None:
            raise
        return _load_whole(source, **{**reading, "table": table})
