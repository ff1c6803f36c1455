"""Proof that a model computes what the checkpoint's own project computes."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.comparison import TOLERANCE
from vitconvert.errors import MissingPackage, NotRepresentable, UsageError, nearest
from vitconvert.model import ViT
from vitconvert.parity.images import (
    NO_IMAGES,
    ComparedImages,
    compare_on_images,
    of_both_checkpoints,
)
from vitconvert.parity.implementations import of_reference, of_vit
from vitconvert.parity.precision import LOWER, measure_precision
from vitconvert.parity.report import ParityReport, ReportFindings
from vitconvert.parity.sides import DTYPES, Sides
from vitconvert.parity.untested import differing_classes, unseen_of_checkpoints
from vitconvert.preprocessing.sample_images import sampled_images
from vitconvert.programs.isolation import isolated
from vitconvert.programs.program import build_reference
from vitconvert.programs.reference import Reference


def verify_checkpoint(
    checkpoint: Checkpoint,
    *,
    against: Checkpoint | None = None,
    model: ViT | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    batch: int = 2,
    dtypes: Sequence[str] = ("float32", "float64"),
    briefly: bool = False,
    images: ComparedImages | None = None,
    once_built: Callable[[], object] = lambda: None,
    once_compared: Callable[[Reference], object] = lambda _: None,
) -> ParityReport:
    """Compare a checkpoint with the implementation of its own program.

    Args:
        checkpoint: What is verified.
        against: A checkpoint whose program loads its tensors and is compared with; by default,
            the same checkpoint.
        model: The model that should compute the same, which is not changed; by default, the
            checkpoint in vitconvert's model.
        tolerance, seed, batch, dtypes: As for `vitconvert.verify`.
        briefly: One image of each kind, all in one batch, whatever `batch` is; and no float64 if
            no bit differs in float32 in any layer: it would show nothing more, and takes three
            times as long.
        images: Compared as well, through both preprocessings.
        once_built: Called when everything is imported and built, before anything is computed.
        once_compared: Given the program's own model after the comparison.

    Raises:
        UsageError: The model reads other images than `against`, or an argument is wrong.
        MissingFact: There are images, and nothing says how to prepare them.
    """
    theirs = against or checkpoint
    model = model or build_model(checkpoint)
    exact = check_dtypes(dtypes)
    for field in ("image_size", "in_channels", "frames", "num_classes"):
        found, wanted = getattr(model.config, field), getattr(theirs.config, field)
        if found != wanted:
            raise UsageError(
                "The model and the checkpoint it is compared with have different inputs or "
                "outputs.",
                evidence={f"{field} of the model": found, f"{field} of the checkpoint": wanted},
            )
    config = checkpoint.config
    if images:
        config.require_images("A comparison on files of images")
    batch = 1 if briefly else batch
    drawn = sampled_images(
        config.image_size,
        config.in_channels,
        checkpoint.preprocessing,
        seed=seed,
        batch=batch,
        frames=config.frames,
    )
    report = partial(
        ParityReport,
        source=checkpoint.located.reference,
        against=against.located.reference if against else "",
        tolerance=tolerance,
    )
    with isolated():
        asked = set(dtypes) & LOWER.keys()
        lower = measure_precision(checkpoint, drawn, asked) if asked else ReportFindings()
        try:
            reference = build_reference(theirs)
            sides = Sides(
                tested=of_vit(reference.adapt(model), name="vitconvert", reads=reference.reads),
                reference=of_reference(reference, theirs),
                images={", ".join(drawn): torch.cat([*drawn.values()])} if briefly else drawn,
                dtypes={*exact} & {*reference.dtypes} or reference.dtypes,
            )
            prepared = None
            if images:
                prepared = of_both_checkpoints(checkpoint, against, max_pixels=images.max_pixels)
            once_built()
            found = sides.compare(tolerance, until_equal=briefly)
        except MissingPackage as error:
            skipped = f"{error.fact.rstrip('.')} ({error.hint})."
            return report(skipped=skipped, **vars(lower))
        except NotRepresentable as error:  # or its class does not take what config.json says
            return report(skipped=error.fact, **vars(lower))
        on_images = NO_IMAGES
        if images and prepared:
            on_images = compare_on_images(images, sides, prepared, tolerance=tolerance)
        once_compared(reference)
    both = (checkpoint, against) if against else (checkpoint,)
    before = ReportFindings(
        notes=(
            *(doubt for side in both for doubt in side.doubts),
            *differing_classes(checkpoint, against),
            *reference.notes,
        ),
        not_tested=unseen_of_checkpoints(checkpoint, against, reference),
    )
    stored = "either checkpoint" if against else "the checkpoint"
    return report(
        reference=reference.name,
        executed=f"Executed: {reference.name} and vitconvert's ViT; no code stored in {stored}.",
        **vars(before + found + on_images + lower),
    )


def check_dtypes(dtypes: Sequence[str], *, lower: bool = True) -> list[str]:
    """The dtypes in which parity is verified: all there are if none is named.

    Args:
        dtypes: Those that were asked for.
        lower: Whether float16 and bfloat16 may be among them.

    Raises:
        UsageError: A dtype in which nothing is measured.
    """
    known = {**DTYPES, **(LOWER if lower else {})}
    if unknown := sorted(set(dtypes) - set(known)):
        lowered = set(unknown) <= set(LOWER)
        near = nearest(unknown[0], known, 3)
        raise UsageError(
            f"Parity is measured in {', '.join(known)}.",
            evidence={"asked": unknown},
            hint="float16 and bfloat16 are measured where a checkpoint is verified."
            if lowered
            else f"did you mean {' or '.join(near)}?"
            if near
            else None,
        )
    return [dtype for dtype in dtypes if dtype in DTYPES] or [*DTYPES]
