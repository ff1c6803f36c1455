"""Proof that a model computes what the checkpoint's own project computes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.comparison import TOLERANCE
from vitconvert.errors import MissingPackage, NotRepresentable, UsageError
from vitconvert.model import ViT
from vitconvert.parity.images import Images, OnImages, compare_on_images, of_both_checkpoints
from vitconvert.parity.implementations import Implementation, Run, of_reference, of_vit
from vitconvert.parity.precision import LOWER, LowerPrecision, measure_precision
from vitconvert.parity.report import ParityReport
from vitconvert.parity.sides import DTYPES, Outcome, Sides, compare_in, in_order, joined
from vitconvert.parity.untested import differing_classes, unseen_of_checkpoints
from vitconvert.preprocessing.sample_images import sampled_images
from vitconvert.programs import build_reference, explained_refusal
from vitconvert.programs.isolation import isolated
from vitconvert.programs.reference import ConfigNotTaken

_NOT_JUDGED = (
    "float16 and bfloat16 are measured and not judged; another processor rounds at other places"
)


def verify_checkpoint(
    checkpoint: Checkpoint,
    *,
    against: Checkpoint | None = None,
    model: ViT | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    batch: int = 2,
    dtypes: Sequence[str] = ("float32", "float64"),
    until_equal: bool = False,
    images: Images | None = None,
) -> ParityReport:
    """Compare a checkpoint with the implementation of its own program.

    Args:
        checkpoint: What is verified.
        against: A checkpoint whose program loads its tensors and is compared with; by default,
            the same checkpoint.
        model: The model that should compute the same, which is not changed; by default, the
            checkpoint in vitconvert's model.
        tolerance, seed, batch, dtypes: As for `vitconvert.verify`.
        until_equal: Leave out float64 if no bit differs in float32 in any layer: it would show
            nothing more, and takes three times as long.
        images: Compared as well, through both preprocessings.

    Raises:
        UsageError: The model reads other images than `against`, or an argument is wrong.
        MissingFact: There are images, and nothing says how to prepare them.
    """
    theirs = against or checkpoint
    model = model or build_model(checkpoint)
    exact = check_arguments(batch, dtypes)
    _check_same_inputs(theirs, model)
    source = checkpoint.located.reference
    loaded = against.located.reference if against else ""
    skipped = partial(ParityReport, source=source, against=loaded, tolerance=tolerance)
    size, channels = checkpoint.config.image_size, checkpoint.config.in_channels
    draw = partial(sampled_images, size, channels, checkpoint.preprocessing, seed=seed, batch=batch)
    with isolated():
        asked = set(dtypes) & LOWER.keys()
        lower = measure_precision(checkpoint, draw(), asked) if asked else LowerPrecision()
        try:
            reference = build_reference(theirs)
        except MissingPackage as error:
            return _with(lower, skipped(skipped=f"{error.fact.rstrip('.')} ({error.hint})."))
        except NotRepresentable as error:
            return _with(lower, skipped(skipped=error.fact))
        sides = Sides(
            tested=of_vit(reference.adapt(model), name="vitconvert", reads=reference.reads),
            reference=_as_stated(theirs, of_reference(reference)),
        )
        prepared, drawn = of_both_checkpoints(checkpoint, against) if images else None, draw()
        shared = in_order([*(set(exact) & set(reference.dtypes))] or reference.dtypes)
        in_each = (compare_in(dtype, sides, drawn, tolerance=tolerance) for dtype in shared)
        try:
            found = joined([*(_until_equal(in_each) if until_equal else in_each)])
        except ConfigNotTaken as error:
            return _with(lower, skipped(skipped=error.fact))
        seen = OnImages()
        if images and prepared:
            seen = compare_on_images(images, sides, prepared, tolerance=tolerance)
    ran = f"Executed: {reference.name} and vitconvert's ViT."
    stored = "either checkpoint" if against else "the checkpoint"
    report = ParityReport(
        source=source,
        against=loaded,
        reference=reference.name,
        comparisons=(*found.comparisons, *seen.comparisons),
        layers=tuple(found.layers),
        first_divergence=found.divergence,
        notes=(
            *(doubt for side in (checkpoint, against) if side for doubt in side.doubts),
            *differing_classes(checkpoint, against),
            *reference.notes,
            *seen.notes,
        ),
        executed=f"{ran} Nothing stored in {stored} was.",
        not_tested=(*unseen_of_checkpoints(checkpoint, against, reference), *seen.not_tested),
        tolerance=tolerance,
    )
    return _with(lower, report)


def _with(lower: LowerPrecision, report: ParityReport) -> ParityReport:
    """A report that also says what dtypes of fewer bits do."""
    return replace(
        report,
        comparisons=(*report.comparisons, *lower.comparisons),
        layers=(*report.layers, *lower.layers),
        precision=lower.precision,
        notes=(*report.notes, *([_NOT_JUDGED] if lower.precision else [])),
    )


def _until_equal(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Results of one dtype after the other, up to the first in which no bit differs."""
    for outcome in outcomes:
        yield outcome
        if outcome.bit_equal:
            return


def _as_stated(checkpoint: Checkpoint, theirs: Implementation) -> Implementation:
    """A program that may only find out while it computes that it does not take a config.json."""

    def prepare(dtype: torch.dtype) -> Callable[[Tensor], Run]:
        run = theirs.prepare(dtype)

        def run_as_stated(images: Tensor) -> Run:
            with explained_refusal(checkpoint):
                return run(images)

        return run_as_stated

    return replace(theirs, prepare=prepare)


def check_arguments(batch: int, dtypes: Sequence[str], *, lower: bool = True) -> list[str]:
    """The dtypes in which parity is proved: all there are if none is named.

    Args:
        batch: Images of each kind.
        dtypes: Those that were asked for.
        lower: Whether float16 and bfloat16 may be among them.

    Raises:
        UsageError: A dtype in which nothing is measured, or an empty batch.
    """
    known = {**DTYPES, **(LOWER if lower else {})}
    if unknown := sorted(set(dtypes) - set(known)):
        lowered = set(unknown) <= set(LOWER)
        raise UsageError(
            f"Parity is measured in {', '.join(known)}.",
            evidence={"asked": unknown},
            hint="float16 and bfloat16 are measured where a checkpoint is verified."
            if lowered
            else None,
        )
    if batch < 1:
        raise UsageError(f"batch must be at least 1, not {batch}.")
    return [dtype for dtype in dtypes if dtype in DTYPES] or [*DTYPES]


def _check_same_inputs(checkpoint: Checkpoint, model: ViT) -> None:
    for field in ("image_size", "in_channels", "num_classes"):
        found, wanted = getattr(model.config, field), getattr(checkpoint.config, field)
        if found != wanted:
            raise UsageError(
                "The model and the checkpoint it is compared with have different inputs or "
                "outputs.",
                evidence={f"{field} of the model": found, f"{field} of the checkpoint": wanted},
            )
