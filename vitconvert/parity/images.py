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
from vitconvert.parity.report import ON_FILES, PIXELS_DIFFER, ReportFindings
from vitconvert.parity.sides import Sides, run
from vitconvert.preprocessing.effects import PixelScale, effects
from vitconvert.preprocessing.image_files import open_image
from vitconvert.preprocessing.transform import transformed
from vitconvert.programs.isolation import isolated, silent_transformers
from vitconvert.programs.program import Preparation, opened, program_of

MOST = 32
_SHOWN = 3  # images that could not be compared
_ROUNDING = 1e-5  # of two ways to normalise


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
    seen = PixelDifferences(preparations, images.max_pixels)
    for file in islice(files, MOST):
        name = _name_of(file)
        try:
            x, y = _pixels(file, preparations, images.max_pixels)
            seen.add(file, name, x, y)
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
        notes += [f"preprocessing: {one}" for one in seen.in_words()]
    notes += [f"not compared: {failure}" for failure in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        notes.append(f"not compared: {len(failures) - _SHOWN} more images")
    return ReportFindings(
        comparisons=tuple(
            compare_outputs(
                torch.cat([outputs[name] for outputs in mine]),
                torch.cat([outputs[other] for outputs in theirs]),
                images=ON_FILES,
                dtype="float32",
                output=name,
                tolerance=tolerance,
            )
            for name, other in sides.pairs.items()
        ),
        notes=tuple(notes),
        not_tested=("preprocessing of images: both sides took the same",) if same else (),
    )


class PixelDifferences:
    """How the pixels of two preparations differ, and by what, over several images."""

    def __init__(
        self, preparations: tuple[Preparation, Preparation], max_pixels: int | None
    ) -> None:
        self._mine, self._theirs = (one.steps for one in preparations)
        unstated = (one.name for one in preparations if one.steps is None)
        self._name, self._max_pixels = next(unstated, preparations[1].name), max_pixels
        self._scale: PixelScale | None = None
        if self._mine and self._theirs:
            self._scale = PixelScale.of(self._mine, self._theirs)
        self._images, self._largest, self._worst = 0, 0.0, ""
        self._causes: dict[str, list[float]] = {}
        self._unexplained = 0

    def add(self, file: Path | Image.Image, name: str, mine: Tensor, theirs: Tensor) -> None:
        """Compare the pixels of an image, and try each difference of the steps alone."""
        self._images += 1
        apart = largest(mine - theirs)
        if not apart:
            return
        if not (self._mine and self._theirs and self._scale):
            if apart > self._largest:
                self._largest, self._worst = apart, name
            return
        apart = self._scale.largest((mine - theirs).numpy())
        if apart > self._largest:
            self._largest, self._worst = apart, name
        for cause, effect in effects(
            file, self._mine, self._theirs, max_pixels=self._max_pixels
        ).items():
            self._causes.setdefault(cause, []).append(effect)
        try:
            stated = transformed(file, self._theirs, max_pixels=self._max_pixels)
        except VitConvertError:
            stated = mine[:, :0].numpy()
        as_stated = stated.shape == theirs.shape
        if not as_stated or largest(torch.from_numpy(stated) - theirs) > _ROUNDING:
            self._unexplained += 1

    def in_words(self) -> list[str]:
        """The largest difference; each cause, the largest first; and what no cause explains."""
        if not self._largest:
            return ["bit-equal pixels"]
        unit = self._scale.unit if self._scale else "in the normalised input"
        said = [f"{PIXELS_DIFFER} by up to {self._largest:.3g} {unit} ({self._worst})"]
        for cause, alone in sorted(self._causes.items(), key=lambda one: -max(one[1])):
            effect = f", up to {max(alone):.3g}" if max(alone) < float("inf") else ""
            said.append(f"{cause}: {len(alone)} of {self._images} images{effect}")
        if self._scale is None or self._unexplained:
            count = f" in {self._unexplained} of {self._images} images" if self._scale else ""
            said.append(f"cause unknown{count}: no file states what {self._name} does")
        return said


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
