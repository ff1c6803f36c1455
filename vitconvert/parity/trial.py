"""What of two models can be compared at all: both are run once before they are measured.

One of them is somebody's own code, which may refuse a batch of three, know no float64, or return
several outputs.
"""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitconvert.errors import UsageError, some, what_was_raised
from vitconvert.parity.comparison import DTYPES, Outcome, Pairs, Sides, compare_in, joined
from vitconvert.parity.implementations import Implementation, Run
from vitconvert.programs.taps import OUTPUT

NOISE = "noise"  # the kind of images that everything must run on


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Two models, and what of them can be compared.

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


def try_out(
    tested: Implementation,
    reference: Implementation,
    images: Mapping[str, Tensor],
    dtypes: Sequence[str],
) -> Trial:
    """Run two models, to find out what of them can be compared.

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
    return Trial(
        sides=Sides(tested=tested, reference=reference, pairs=pairs, skipped={*odd}),
        images={kind: batch for kind, batch in images.items() if kind not in refused},
        dtypes=[d for d in dtypes if not (too_coarse and d == "float64")] or ["float32"],
        notes=tuple(notes),
    )


def run(side: Implementation, images: Tensor) -> Run:
    """Run what may be somebody's code.

    Raises:
        UsageError: It raised.
    """
    try:
        with torch.no_grad():
            return side.prepare(images.dtype)(images)
    except UsageError:
        raise
    except Exception as error:  # it may be any, since the code is not ours
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"{side.name} does not run on images of shape {tuple(images.shape)}.",
            evidence={
                "raised": what_was_raised(error),
                "in": f"{frame.name}, line {frame.lineno}",
            },
        ) from error


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
