"""Two models on the user's images, each behind its own preprocessing.

Noise is given to both as numbers. A deployed model is given files, and a resize of another kind
changes more than any rounding.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitconvert.checkpoint import Checkpoint
from vitconvert.comparison import compare_outputs, largest
from vitconvert.errors import MissingFact, UsageError, VitConvertError, printable, what_was_raised
from vitconvert.parity.report import ReportFindings
from vitconvert.parity.sides import Sides, run
from vitconvert.preprocessing.image_files import open_image
from vitconvert.programs.isolation import isolated, silent_transformers
from vitconvert.programs.program import Preparation, opened, program_of

KIND = "images"  # of the user, as comparisons call them
MOST = 32
_SHOWN = 3  # images that could not be compared


@dataclass(frozen=True, kw_only=True)
class ComparedImages:
    """Which images of the user's two models are compared on.

    Attributes:
        files: Files and open images, as `find_images` gives them; the first 32 are compared.
        preprocess: What the user's own model does with an image (PIL) before it reads it.
        max_pixels: The most of an image that the user allows.
    """

    files: Iterable[Path | Image.Image]
    preprocess: Callable[[Image.Image], object] | None = None
    max_pixels: int | None = None


NO_IMAGES = ReportFindings(not_tested=("preprocessing of images (--images compares it)",))


def of_both_checkpoints(
    checkpoint: Checkpoint, against: Checkpoint | None, *, max_pixels: int | None = None
) -> tuple[Preparation, Preparation]:
    """vitconvert's preprocessing of a checkpoint, and that of the reference's own program.

    Raises:
        MissingFact: No file states the preprocessing of images.
    """
    theirs = against or checkpoint
    try:
        with isolated(), silent_transformers():
            program = program_of(theirs.table).preparation(theirs)
    except Exception:  # a program may raise anything for files of others
        program = None
    if against and program is None:
        program = _of_checkpoint(against, max_pixels)
    return _both_or_one(_of_checkpoint(checkpoint, max_pixels), program)


def of_own_models(
    models: tuple[object, object],
    preprocess: Callable[[Image.Image], object] | None,
    *,
    max_pixels: int | None = None,
) -> tuple[Preparation, Preparation]:
    """vitconvert's preprocessing of a checkpoint, and the user's function for another model.

    Raises:
        MissingFact: No file states the preprocessing of images.
    """

    def prepare(image: Path | Image.Image) -> Tensor:
        assert preprocess is not None
        with opened(image) as found:
            tensor = torch.as_tensor(preprocess(found))
        return tensor.squeeze(0) if tensor.ndim == 4 else tensor

    own = Preparation(name="your preprocess", prepare=prepare) if preprocess else None
    tested, reference = (
        _of_checkpoint(model, max_pixels) if isinstance(model, Checkpoint) else own
        for model in models
    )
    return _both_or_one(tested, reference)


def _of_checkpoint(checkpoint: Checkpoint, max_pixels: int | None) -> Preparation | None:
    """vitconvert's own, from what a checkpoint states; None if it states nothing."""
    steps = checkpoint.preprocessing
    if steps is None:
        return None
    prepare = partial(steps, max_pixels=max_pixels)
    return Preparation(name=f"vitconvert ({steps.origin})", prepare=prepare, steps=steps)


def _both_or_one(
    tested: Preparation | None, reference: Preparation | None
) -> tuple[Preparation, Preparation]:
    """The preparation of each side; the other's where one has none."""
    known = tested or reference
    if known is None:
        raise MissingFact(
            "No file states the preprocessing of images.",
            hint="put preprocessor_config.json, or timm's config.json, beside the weights; a "
            "model of your own takes preprocess= in Python.",
        )
    return tested or known, reference or known


def compare_on_images(
    images: ComparedImages,
    sides: Sides,
    preparations: tuple[Preparation, Preparation],
    *,
    tolerance: float,
) -> ReportFindings:
    """Run both on each image, in float32, and compare pixels and outputs.

    Args:
        images: The user's.
        sides: The two.
        preparations: What prepares images for each.
        tolerance: The relative difference that counts as equal.

    Raises:
        UsageError: None of the images could be compared.
    """
    files, failures = iter(images.files), []
    mine: list[Mapping[str, Tensor]] = []
    theirs: list[Mapping[str, Tensor]] = []
    apart, worst = 0.0, ""
    for file in islice(files, MOST):
        name = _name_of(file)
        try:
            x, y = _pixels(file, preparations, images.max_pixels)
            if (largest_here := largest(x - y)) > apart:
                apart, worst = largest_here, name
            outputs = run(sides.tested, x[None]).outputs, run(sides.reference, y[None]).outputs
        except VitConvertError as error:
            failures.append(f"{name}: {error.evidence.get('raised', error.fact)}")
        except Exception as error:  # the user's own code may raise anything
            failures.append(f"{name}: {printable(what_was_raised(error))}")
        else:
            mine.append(outputs[0])
            theirs.append(outputs[1])
    if not mine:
        raise UsageError(
            "None of the images could be compared.",
            details=failures[:_SHOWN] or ["no images were found"],
        )
    left_over = next(files, None) is not None
    count = f"{len(mine)} of the first {MOST}" if left_over else str(len(mine))
    tested, reference = preparations
    same = tested is reference
    if same:
        only = "the other side's preprocessing is unknown"
        notes = [f"images: {count}, prepared by {tested.name} for both sides: {only}"]
    else:
        notes = [f"images: {count}, prepared by {tested.name} and by {reference.name}"]
        pixels = f"largest difference of pixels {apart:.2g} in {worst}"
        notes.append(f"preprocessing: {pixels if apart else 'bit-equal pixels'}")
    if apart and tested.steps and reference.steps:
        notes += [f"preprocessing: {one}" for one in tested.steps.differences(reference.steps)]
    notes += [f"not compared: {failure}" for failure in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        notes.append(f"not compared: {len(failures) - _SHOWN} more images")
    return ReportFindings(
        comparisons=tuple(
            compare_outputs(
                torch.cat([outputs[name] for outputs in mine]),
                torch.cat([outputs[other] for outputs in theirs]),
                images=KIND,
                dtype="float32",
                output=name,
                tolerance=tolerance,
            )
            for name, other in sides.pairs.items()
        ),
        notes=tuple(notes),
        not_tested=("preprocessing of images: both sides took the same",) if same else (),
    )


def _pixels(
    file: Path | Image.Image,
    preparations: tuple[Preparation, Preparation],
    max_pixels: int | None,
) -> tuple[Tensor, Tensor]:
    """An image as each side reads it, from its file."""
    if isinstance(file, Path):
        if file.is_dir():
            raise UsageError("There are no images in this folder.")
        with open_image(file, max_pixels=max_pixels):  # no program, and no larger than is allowed
            pass
    mine, theirs = (_prepared(file, each) for each in preparations)
    if mine.shape != theirs.shape:
        raise UsageError(f"it becomes {tuple(mine.shape)} here and {tuple(theirs.shape)} there")
    return mine, theirs


def _prepared(file: Path | Image.Image, preparation: Preparation) -> Tensor:
    """An image as one side reads it; whose error it is, is told."""
    try:
        return preparation.prepare(file).float()
    except VitConvertError:
        raise
    except Exception as error:  # code of others raises anything
        raise UsageError(f"{preparation.name}: {what_was_raised(error)}") from error


def _name_of(file: Path | Image.Image) -> str:
    path = getattr(file, "filename", "") if isinstance(file, Image.Image) else file
    return printable(Path(path).name) if path else "an open image"
