"""Two models on the user's images, each behind its own preprocessing.

Noise is given to both as numbers. A deployed model is given files, and a resize of another kind
changes more than any rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitconvert.checkpoint import Checkpoint
from vitconvert.comparison import Comparison, compare_outputs, largest
from vitconvert.errors import MissingFact, UsageError, VitConvertError, printable, what_was_raised
from vitconvert.parity.sides import Sides, run
from vitconvert.preprocessing.image_files import open_image
from vitconvert.programs import program_of
from vitconvert.programs.isolation import silent_transformers
from vitconvert.programs.program import Preparation

KIND = "images"  # of the user, as comparisons call them
MOST = 32
_SHOWN = 3  # images that could not be compared


@dataclass(frozen=True, kw_only=True)
class Images:
    """Which images of the user's two models are compared on.

    Attributes:
        files: Files and open images, as `find_images` gives them; the first 32 are compared.
        preprocess: What the user's own model does with an image (PIL) before it reads it.
    """

    files: Iterable[Path | Image.Image]
    preprocess: Callable[[Image.Image], object] | None = None


@dataclass(frozen=True, kw_only=True)
class OnImages:
    """The result on the user's images.

    Attributes:
        comparisons: One for each output.
        notes: How they were prepared, how far pixels are apart, and what could not be compared.
        not_tested: What they did not show, in sentences.
    """

    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ("preprocessing of images (--images compares it)",)


def of_both_checkpoints(
    checkpoint: Checkpoint, against: Checkpoint | None
) -> tuple[Preparation, Preparation]:
    """vitconvert's preprocessing of a checkpoint, and that of the reference's own program.

    Raises:
        MissingFact: Nothing says how images are prepared.
    """
    theirs = against or checkpoint
    try:
        with silent_transformers():
            program = program_of(theirs.table).preparation(theirs)
    except Exception:  # a program may raise anything for files of others
        program = None
    if against and program is None:
        program = _of_checkpoint(against)
    return _both_or_one(_of_checkpoint(checkpoint), program)


def of_own_models(
    models: tuple[object, object], preprocess: Callable[[Image.Image], object] | None
) -> tuple[Preparation, Preparation]:
    """vitconvert's preprocessing of a checkpoint, and the user's function for another model.

    Raises:
        MissingFact: Nothing says how images are prepared.
    """

    def prepare(image: Image.Image) -> Tensor:
        assert preprocess is not None
        tensor = torch.as_tensor(preprocess(image))
        return tensor.squeeze(0) if tensor.ndim == 4 else tensor

    own = Preparation(name="your preprocess", prepare=prepare) if preprocess else None
    tested, reference = (
        _of_checkpoint(model) if isinstance(model, Checkpoint) else own for model in models
    )
    return _both_or_one(tested, reference)


def _of_checkpoint(checkpoint: Checkpoint) -> Preparation | None:
    """vitconvert's own, from what a checkpoint states; None if it states nothing."""
    steps = checkpoint.preprocessing
    if steps is None:
        return None
    return Preparation(name=f"vitconvert ({steps.origin})", prepare=steps, steps=steps)


def _both_or_one(
    tested: Preparation | None, reference: Preparation | None
) -> tuple[Preparation, Preparation]:
    """The preparation of each side; the other's where one has none."""
    known = tested or reference
    if known is None:
        raise MissingFact(
            "Nothing says how images are prepared.",
            hint="put preprocessor_config.json, or timm's config.json, beside the weights; a "
            "model of your own takes preprocess= in Python.",
        )
    return tested or known, reference or known


@dataclass
class _Tally:
    """The results so far, image by image."""

    mine: list[Mapping[str, Tensor]] = field(default_factory=list)
    theirs: list[Mapping[str, Tensor]] = field(default_factory=list)
    apart: float = 0.0
    worst: str = ""
    failures: list[str] = field(default_factory=list)

    def add(
        self, file: Path | Image.Image, sides: Sides, preparations: tuple[Preparation, Preparation]
    ) -> None:
        if isinstance(file, Path) and file.is_dir():
            raise UsageError("There are no images in this folder.")
        with nullcontext(file) if isinstance(file, Image.Image) else open_image(file) as image:
            mine, theirs = (each.prepare(image).float() for each in preparations)
        if mine.shape != theirs.shape:
            raise UsageError(f"it becomes {tuple(mine.shape)} here and {tuple(theirs.shape)} there")
        if (apart := largest(mine - theirs)) > self.apart:
            self.apart, self.worst = apart, _name_of(file)
        tested, reference = sides.both
        outputs = run(tested, mine[None]).outputs, run(reference, theirs[None]).outputs
        self.mine.append(outputs[0])
        self.theirs.append(outputs[1])


def compare_on_images(
    images: Images,
    sides: Sides,
    preparations: tuple[Preparation, Preparation],
    *,
    tolerance: float,
) -> OnImages:
    """Run both on each image, in float32, and compare pixels and outputs.

    Args:
        images: The user's.
        sides: The two.
        preparations: What prepares images for each.
        tolerance: The relative difference that counts as equal.

    Raises:
        UsageError: None of the images could be compared.
    """
    files, tally = iter(images.files), _Tally()
    for file in islice(files, MOST):
        try:
            tally.add(file, sides, preparations)
        except VitConvertError as error:
            reason = error.evidence.get("raised", error.fact)
            tally.failures.append(f"{_name_of(file)}: {reason}")
        except Exception as error:  # the user's own code may raise anything
            tally.failures.append(f"{_name_of(file)}: {printable(what_was_raised(error))}")
    if not tally.mine:
        raise UsageError(
            "None of the images could be compared.",
            details=tally.failures[:_SHOWN] or ["no images were found"],
        )
    left_over = next(files, None) is not None
    same = preparations[0] is preparations[1]
    return OnImages(
        comparisons=tuple(
            compare_outputs(
                torch.cat([outputs[name] for outputs in tally.mine]),
                torch.cat([outputs[other] for outputs in tally.theirs]),
                images=KIND,
                dtype="float32",
                output=name,
                tolerance=tolerance,
            )
            for name, other in sides.pairs.items()
        ),
        notes=tuple(_notes(tally, preparations, left_over=left_over)),
        not_tested=("preprocessing of images: both sides took the same",) if same else (),
    )


def _notes(
    tally: _Tally, preparations: tuple[Preparation, Preparation], *, left_over: bool
) -> Iterator[str]:
    tested, reference = preparations
    count = f"{len(tally.mine)} of the first {MOST}" if left_over else str(len(tally.mine))
    if tested is reference:
        only = "of the other side, nothing says how"
        yield f"images: {count}, prepared by {tested.name} for both sides: {only}"
    else:
        yield f"images: {count}, prepared by {tested.name} and by {reference.name}"
        if tally.apart:
            yield f"preprocessing: largest difference of pixels {tally.apart:.2g} in {tally.worst}"
        else:
            yield "preprocessing: bit-equal pixels"
    if tally.apart and tested.steps and reference.steps:
        for difference in tested.steps.differences(reference.steps):
            yield f"preprocessing: {difference}"
    shown = tally.failures[:_SHOWN]
    yield from (f"not compared: {failure}" for failure in shown)
    if len(tally.failures) > len(shown):
        yield f"not compared: {len(tally.failures) - len(shown)} more images"


def _name_of(file: Path | Image.Image) -> str:
    path = getattr(file, "filename", "") if isinstance(file, Image.Image) else file
    return printable(Path(path).name) if path else "an open image"
