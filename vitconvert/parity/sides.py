"""Two implementations on the same images: their outputs, their layers, and what explains a gap.

One of the two may be the user's own code, which may refuse a batch of three, know no float64, or
return several outputs: both are run once before they are measured.
"""

import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitconvert.comparison import (
    Comparison,
    Divergence,
    LayerDifference,
    allowed,
    compare_outputs,
    relative_difference,
)
from vitconvert.errors import UsageError, some, what_was_raised
from vitconvert.parity.diagnosis import UNKNOWN, Case, diagnose
from vitconvert.parity.implementations import Implementation, Run
from vitconvert.programs.isolation import side_by_side
from vitconvert.programs.taps import OUTPUT

DTYPES = {"float32": torch.float32, "float64": torch.float64}
NOISE = "noise"  # the kind of images that everything must run on
Pairs = Mapping[str, str]  # an output of the one that is tested -> the reference's


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Two implementations, and what of them is compared.

    Attributes:
        tested: The one that is verified.
        reference: The one that measures it.
        pairs: Which outputs are the same; by default, those called "output".
        skipped: Layers that are not compared.
    """

    tested: Implementation
    reference: Implementation
    pairs: Pairs = field(default_factory=lambda: {OUTPUT: OUTPUT})
    skipped: Collection[str] = ()

    @property
    def both(self) -> tuple[Implementation, Implementation]:
        """The tested one first."""
        return self.tested, self.reference


@dataclass(frozen=True)
class Outcome:
    """The result of one dtype."""

    comparisons: list[Comparison]
    layers: list[LayerDifference]
    divergence: Divergence | None

    @property
    def bit_equal(self) -> bool:
        """Whether no output and no layer differs at all."""
        outputs = all(comparison.bit_equal for comparison in self.comparisons)
        return outputs and all(layer.relative == 0 for layer in self.layers)


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The results of several dtypes, of which the last tells where the two part."""
    return Outcome(
        [comparison for outcome in outcomes for comparison in outcome.comparisons],
        [layer for outcome in outcomes for layer in outcome.layers],
        outcomes[-1].divergence,
    )


def compare_in(
    dtype: str, sides: Sides, images: Mapping[str, Tensor], *, tolerance: float
) -> Outcome:
    """Run both in one dtype, image by image, and compare all that both keep.

    Args:
        dtype: A key of `DTYPES`.
        sides: The two.
        images: Batches by kind.
        tolerance: The relative difference that counts as equal in float32.
    """
    run_tested, run_reference = (side.prepare(DTYPES[dtype]) for side in sides.both)
    limit = allowed(tolerance, dtype)
    comparisons: list[Comparison] = []
    worst: dict[str, float] = {}
    divergence = None
    for kind, batch in images.items():
        x = batch.to(DTYPES[dtype])
        theirs, ours = side_by_side(partial(run_reference, x), partial(run_tested, x))
        seen = ours.through(sides.reference.view)
        comparisons += [
            compare_outputs(
                seen.outputs[name],
                theirs.outputs[other],
                images=kind,
                dtype=dtype,
                output=name,
                tolerance=tolerance,
            )
            for name, other in sides.pairs.items()
        ]
        apart = {
            layer: relative_difference(values, theirs.layers[layer])
            for layer, values in seen.layers.items()
            if layer in theirs.layers and layer not in sides.skipped
        }
        worst = {layer: max(value, worst.get(layer, 0.0)) for layer, value in apart.items()}
        departs = next((layer for layer, value in apart.items() if not value <= limit), None)
        if departs is not None and divergence is None:
            divergence = Divergence(
                layer=departs,
                dtype=dtype,
                images=kind,
                relative=apart[departs],
                cause=_cause(sides, x, ours, theirs, layer=departs, limit=limit),
            )
    layers = [LayerDifference(layer=k, dtype=dtype, relative=value) for k, value in worst.items()]
    return Outcome(comparisons, layers, divergence)


def _cause(
    sides: Sides, images: Tensor, ours: Run, theirs: Run, *, layer: str, limit: float
) -> str:
    """The cause in words, if one of the two is vitconvert's own model."""
    tested, reference = sides.both
    for side, shown, other in ((tested, reference, theirs), (reference, tested, ours)):
        if side.vit is None:
            continue
        case = Case(
            model=side.vit,
            reads=side.reads,
            taps=side.taps,
            images=images,
            theirs=other.layers,
            view=shown.view,
            limit=limit,
        )
        cause = diagnose(case, layer)
        known = side is reference and cause != UNKNOWN
        return f"{tested.name} computes as if {cause}" if known else cause
    return UNKNOWN


def in_order(dtypes: Sequence[str]) -> list[str]:
    """The most exact arithmetic last: it shows where two implementations differ."""
    return sorted(set(dtypes))


@dataclass(frozen=True, kw_only=True)
class Comparable:
    """Two models, and the outputs, images and dtypes in which they can be compared.

    Attributes:
        sides: The two, with the outputs that are the same.
        images: Batches on which both run.
        dtypes: In which both compute.
        notes: What is not compared, and why.
    """

    sides: Sides
    images: Mapping[str, Tensor]
    dtypes: Sequence[str]
    notes: tuple[str, ...]

    def compare(self, tolerance: float) -> Outcome:
        """Compare in all of the dtypes."""
        return joined(
            [
                compare_in(dtype, self.sides, self.images, tolerance=tolerance)
                for dtype in self.dtypes
            ]
        )


def find_comparable(
    tested: Implementation,
    reference: Implementation,
    images: Mapping[str, Tensor],
    dtypes: Sequence[str],
) -> Comparable:
    """Run two models once, to find out what of them can be compared.

    Raises:
        UsageError: One does not run on noise in float32, or no outputs match.
    """
    sides = (tested, reference)
    noise = images[NOISE].float()
    mine, theirs = run(tested, noise).through(reference.view), run(reference, noise)
    pairs, notes = match_outputs(mine.outputs, theirs.outputs, tested.name)
    both = mine.layers.keys() & theirs.layers.keys()
    odd = [k for k in mine.layers if k in both and mine.layers[k].shape != theirs.layers[k].shape]
    if of_layers := [layer for layer in odd if layer != OUTPUT]:
        notes.append(f"layers of other shapes are not compared: {some(of_layers)}")
    if unseen := [layer for layer in tested.taps if layer not in both]:
        notes.append(f"layers that no module computes on its own: {some(unseen)}")
    refused = {
        kind: reason
        for kind, batch in images.items()
        if len(batch) != len(noise) and (reason := _refusal(sides, batch.float()))
    }
    notes += [f"not compared on a {kind}: {reason}" for kind, reason in refused.items()]
    too_coarse = _refusal(sides, noise.double()) if "float64" in dtypes else ""
    if too_coarse:
        notes.append(f"not compared in float64: {too_coarse}")
    return Comparable(
        sides=Sides(tested=tested, reference=reference, pairs=pairs, skipped={*odd}),
        images={kind: batch for kind, batch in images.items() if kind not in refused},
        dtypes=[d for d in dtypes if not (too_coarse and d == "float64")] or ["float32"],
        notes=tuple(notes),
    )


def run(side: Implementation, images: Tensor) -> Run:
    """Run what may be the user's code.

    Raises:
        UsageError: It raised.
    """
    try:
        with torch.no_grad():
            return side.prepare(images.dtype)(images)
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything
        fact = f"{side.name} does not run on images of shape {tuple(images.shape)}."
        raise raised_by_user(fact, error) from error


def raised_by_user(fact: str, error: Exception) -> UsageError:
    """The message about an error of the user's code, with its place."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}, line {frame.lineno}"
    return UsageError(fact, evidence={"raised": what_was_raised(error), "in": place})


def _refusal(sides: Iterable[Implementation], images: Tensor) -> str:
    """Why one of two models does not compute with such images in their dtype; "" if both do."""
    wanted = next(name for name, dtype in DTYPES.items() if dtype == images.dtype)
    for side in sides:
        if wanted not in side.dtypes:
            return f"{side.name} computes in {side.dtypes[0]}"
        try:
            outputs = run(side, images).outputs
        except UsageError as error:
            return f"{side.name} raised {error.evidence.get('raised', error.fact)}"
        returned = {str(x.dtype).removeprefix("torch.") for x in outputs.values()}
        if wanted == "float64" and returned != {wanted}:
            return f"{side.name} returned {', '.join(sorted(returned))}"
    return ""


def match_outputs(
    mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], name: str
) -> tuple[Pairs, list[str]]:
    """Which outputs of two models are the same, by name; or by shape, if there is but one.

    Raises:
        UsageError: None are.
    """
    pairs = {k: k for k in mine if k in theirs and mine[k].shape == theirs[k].shape}
    notes = []
    if not pairs and len(mine) == 1:
        (own, output) = next(iter(mine.items()))
        alike = [other for other in theirs if theirs[other].shape == output.shape]
        pairs = {own: alike[0]} if alike else {}
        notes += [f"assumed by its shape: what {name} returns is {other}" for other in alike[:1]]
    if not pairs:
        raise UsageError(
            "No output of the two models has the same name and shape.",
            evidence={name: _shapes(mine), "compared with": _shapes(theirs)},
            hint="wrap the model in a function that returns the output that should be equal.",
        )
    if others := [k for k in mine if k not in pairs]:
        notes.append(f"outputs that are not compared: {some(others)}")
    return pairs, notes


def _shapes(outputs: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(output.shape)}" for name, output in outputs.items())
