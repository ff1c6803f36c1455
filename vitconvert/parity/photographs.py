"""Two models on the same photographs, each behind its own preprocessing.

Noise is given to both as numbers. Whoever deploys a model gives it files, and a resize of another
kind changes more than any rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitconvert.checkpoint import Checkpoint
from vitconvert.comparison import Comparison, compare_outputs, largest
from vitconvert.errors import MissingFact, UsageError, VitConvertError, printable, what_was_raised
from vitconvert.parity.comparison import Pairs, Sides
from vitconvert.parity.trial import run
from vitconvert.preprocessing.image_files import open_image
from vitconvert.programs import program_of
from vitconvert.programs.isolation import silent_transformers
from vitconvert.programs.program import Preparation

KIND = "photographs"  # of images, as comparisons call them
MOST = 32
_SHOWN = 3  # images that could not be compared


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """Which photographs two models are compared on.

    Attributes:
        files: Files and open images, as `find_images` gives them; the first 32 are compared.
        preprocess: What somebody's own model does with an image (PIL) before it reads it.
    """

    files: Iterable[Path | Image.Image]
    preprocess: Callable[[Image.Image], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What photographs showed.

    Attributes:
        comparisons: One for each output.
        notes: How they were prepared, how far pixels are apart, and what could not be compared.
        not_tested: What they did not show, in sentences.
    """

    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ("preprocessing of photographs (--images compares it)",)


def of_checkpoint(checkpoint: Checkpoint) -> Preparation | None:
    """vitconvert's own, from what a checkpoint states; None if it states nothing."""
    steps = checkpoint.preprocessing
    if steps is None:
        return None
    return Preparation(name=f"vitconvert ({steps.origin})", prepare=steps, steps=steps)


def of_program(checkpoint: Checkpoint) -> Preparation | None:
    """The code of a checkpoint's own program; None where it has none, or takes no such file."""
    try:
        with silent_transformers():
            return program_of(checkpoint.table).preparation(checkpoint)
    except Exception:  # what a program raises for files of others may be anything
        return None


def of_user(preprocess: Callable[[Image.Image], Any] | None) -> Preparation | None:
    """A function of the user's: to a tensor or an array, of one image or of a batch of one."""
    if preprocess is None:
        return None

    def prepare(image: Image.Image) -> Tensor:
        tensor = torch.as_tensor(preprocess(image))
        return tensor.squeeze(0) if tensor.ndim == 4 else tensor

    return Preparation(name="your preprocess", prepare=prepare)


def of_both_checkpoints(
    checkpoint: Checkpoint, against: Checkpoint | None
) -> tuple[Preparation, Preparation]:
    """What vitconvert does for a checkpoint, and what the reference's own program does.

    Raises:
        MissingFact: Nothing says how photographs are prepared.
    """
    theirs = of_program(against or checkpoint)
    if against and theirs is None:
        theirs = of_checkpoint(against)
    return both_or_one(of_checkpoint(checkpoint), theirs)


def of_own_models(
    models: tuple[object, object], preprocess: Callable[[Image.Image], Any] | None
) -> tuple[Preparation, Preparation]:
    """What vitconvert does for a checkpoint, and the user's function for a model of his own.

    Raises:
        MissingFact: Nothing says how photographs are prepared.
    """
    users = of_user(preprocess)
    tested, reference = (
        of_checkpoint(model) if isinstance(model, Checkpoint) else users for model in models
    )
    return both_or_one(tested, reference)


def both_or_one(
    tested: Preparation | None, reference: Preparation | None
) -> tuple[Preparation, Preparation]:
    """What each side takes; the other's where one has none.

    Raises:
        MissingFact: Neither has one.
    """
    known = tested or reference
    if known is None:
        raise MissingFact(
            "Nothing says how photographs are prepared.",
            hint="put preprocessor_config.json, or timm's config.json, beside the weights; a "
            "model of your own takes preprocess= in Python.",
        )
    return tested or known, reference or known


@dataclass
class _Tally:
    """What is gathered, photograph by photograph."""

    mine: list[Mapping[str, Tensor]] = field(default_factory=list)
    theirs: list[Mapping[str, Tensor]] = field(default_factory=list)
    apart: float = 0.0
    worst: str = ""
    failures: list[str] = field(default_factory=list)


def compare_on_photographs(
    photographs: Photographs,
    sides: Sides,
    preparations: tuple[Preparation, Preparation],
    *,
    tolerance: float,
) -> Seen:
    """Run both on each photograph, in float32, and compare pixels and outputs.

    Args:
        photographs: The images.
        sides: The two.
        preparations: What prepares images for each.
        tolerance: The relative difference that counts as equal.

    Raises:
        UsageError: None of the photographs could be compared.
    """
    files = iter(photographs.files)
    tally = _Tally()
    for file in islice(files, MOST):
        try:
            _look(file, sides, preparations, tally)
        except Exception as error:  # of an image that is no image, or of somebody's own code
            tally.failures.append(f"{_name_of(file)}: {_reason(error)}")
    if not tally.mine:
        raise UsageError(
            "None of the photographs could be compared.",
            details=tally.failures[:_SHOWN] or ["no images were found"],
        )
    left_over = next(files, None) is not None
    tested, reference = preparations
    one = ("preprocessing of photographs: both sides took the same",) if tested is reference else ()
    return Seen(
        comparisons=tuple(_compared(tally, sides.pairs, tolerance)),
        notes=tuple(_notes(tally, preparations, left_over=left_over)),
        not_tested=one,
    )


def _look(
    file: Path | Image.Image,
    sides: Sides,
    preparations: tuple[Preparation, Preparation],
    tally: _Tally,
) -> None:
    if isinstance(file, Path) and file.is_dir():
        raise UsageError("There are no images in this folder.")
    with nullcontext(file) if isinstance(file, Image.Image) else open_image(file) as image:
        mine, theirs = (each.prepare(image).float() for each in preparations)
    if mine.shape != theirs.shape:
        raise UsageError(f"it becomes {tuple(mine.shape)} here and {tuple(theirs.shape)} there")
    if (apart := largest(mine - theirs)) > tally.apart:
        tally.apart, tally.worst = apart, _name_of(file)
    outputs = [
        run(side, x[None]).outputs for side, x in zip(sides.both, (mine, theirs), strict=True)
    ]
    tally.mine.append(outputs[0])
    tally.theirs.append(outputs[1])


def _compared(tally: _Tally, pairs: Pairs, tolerance: float) -> Iterator[Comparison]:
    for name, other in pairs.items():
        yield compare_outputs(
            torch.cat([outputs[name] for outputs in tally.mine]),
            torch.cat([outputs[other] for outputs in tally.theirs]),
            images=KIND,
            dtype="float32",
            output=name,
            tolerance=tolerance,
        )


def _notes(
    tally: _Tally, preparations: tuple[Preparation, Preparation], *, left_over: bool
) -> Iterator[str]:
    tested, reference = preparations
    count = f"{len(tally.mine)} of the first {MOST}" if left_over else str(len(tally.mine))
    if tested is reference:
        only = "of the other side, nothing says how"
        yield f"photographs: {count}, prepared by {tested.name} for both sides: {only}"
    else:
        yield f"photographs: {count}, prepared by {tested.name} and by {reference.name}"
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


def _reason(error: Exception) -> str:
    if isinstance(error, VitConvertError):
        return error.evidence.get("raised", error.fact)
    return printable(what_was_raised(error))
