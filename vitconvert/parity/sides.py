"""Two implementations on the same images: their outputs, their layers, and what explains a gap.

One of the two may be the user's own code, which may refuse a batch of three, know no float64, or
return several outputs: `matched` runs both once before they are measured.
"""

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitconvert.comparison import (
    Divergence,
    LayerDifference,
    allowed,
    compare_outputs,
    relative_difference,
)
from vitconvert.errors import UsageError, some, what_was_raised
from vitconvert.parity.diagnosis import Case, diagnose
from vitconvert.parity.implementations import Implementation, Run, whole
from vitconvert.parity.report import UNKNOWN, ReportFindings
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
        images: Batches by kind, on which both run.
        dtypes: Keys of `DTYPES`, in which both compute.
        pairs: Which outputs are the same; by default, those called "output".
        skipped: Layers that are not compared.
        notes: What is not compared, and why.
    """

    tested: Implementation
    reference: Implementation
    images: Mapping[str, Tensor]
    dtypes: Collection[str]
    pairs: Pairs = field(default_factory=lambda: {OUTPUT: OUTPUT})
    skipped: Collection[str] = ()
    notes: tuple[str, ...] = ()

    def compare(self, tolerance: float, *, until_equal: bool = False) -> ReportFindings:
        """Compare all that both keep, in one dtype after the other.

        Args:
            tolerance: The relative difference that counts as equal in float32.
            until_equal: End with the first dtype in which no bit differs.
        """
        found = ReportFindings(notes=self.notes)
        # The most exact arithmetic comes last, and alone says where two implementations part:
        # rounding in float32 can hide the layer, or be taken for a difference.
        for dtype in sorted(set(self.dtypes)):
            one = self._compare_in(dtype, tolerance)
            found = replace(found + one, first_divergence=one.first_divergence)
            equal = all(comparison.bit_equal for comparison in one.comparisons)
            if until_equal and equal and all(layer.relative == 0 for layer in one.layers):
                break
        return found

    def _compare_in(self, dtype: str, tolerance: float) -> ReportFindings:
        tested, reference = (s.prepare(DTYPES[dtype]) for s in (self.tested, self.reference))
        limit = allowed(tolerance, dtype)
        comparisons, divergence = [], None
        worst: dict[str, float] = {}
        for kind, batch in self.images.items():
            x = batch.to(DTYPES[dtype])
            # Each has one thread, so that both together take the time of one.
            theirs, ours = side_by_side(partial(reference, x), partial(tested, x))
            seen = ours.through(self.reference.view)
            comparisons += [
                compare_outputs(
                    seen.outputs[name],
                    theirs.outputs[other],
                    images=kind,
                    dtype=dtype,
                    output=name,
                    tolerance=tolerance,
                )
                for name, other in self.pairs.items()
            ]
            apart = {
                layer: relative_difference(values, theirs.layers[layer])
                for layer, values in seen.layers.items()
                if layer in theirs.layers and layer not in self.skipped
            }
            worst = {layer: max(value, worst.get(layer, 0.0)) for layer, value in apart.items()}
            departs = next((layer for layer, value in apart.items() if not value <= limit), None)
            if departs is not None and divergence is None:
                sides = (self.tested, tested, ours), (self.reference, reference, theirs)
                mixing = next((s.name for s, f, made in sides if _mixes(s, f, x, made, limit)), "")
                cause, settings = (
                    (f"{mixing} {_MIXES}", {})
                    if mixing
                    else self._cause(x, ours, theirs, layer=departs, limit=limit)
                )
                divergence = Divergence(
                    layer=departs,
                    dtype=dtype,
                    images=kind,
                    relative=apart[departs],
                    cause=cause,
                    settings=settings,
                )
        return ReportFindings(
            comparisons=tuple(comparisons),
            layers=tuple(
                LayerDifference(layer=layer, dtype=dtype, relative=value)
                for layer, value in worst.items()
            ),
            first_divergence=divergence,
        )

    def _cause(
        self, images: Tensor, ours: Run, theirs: Run, *, layer: str, limit: float
    ) -> tuple[str, Mapping[str, object]]:
        """The cause in words and fields, if one of the two is vitconvert's own model."""
        for side, other, measured in (
            (self.tested, self.reference, theirs),
            (self.reference, self.tested, ours),
        ):
            if side.vit is not None:
                case = Case(
                    side=side, images=images, theirs=measured.layers, limit=limit, view=other.view
                )
                cause, settings = diagnose(case, layer)
                known = side is self.reference and cause != UNKNOWN
                words = f"{self.tested.name} computes as if {cause}" if known else cause
                return words, settings
        return UNKNOWN, {}


_MIXES = (
    "lets the images of a batch see each other: attention along the batch, as in "
    "nn.MultiheadAttention and nn.TransformerEncoderLayer without batch_first=True. No ViT does"
)


def _mixes(
    side: Implementation, compute: Callable[[Tensor], Run], x: Tensor, made: Run, limit: float
) -> bool:
    """Whether what the user's own code gives for images depends on others in their batch.

    Layers count too: a class token that reads those of other images learns nothing of any.
    """
    if side.vit is not None or side.view is not whole:  # a golden file computes no other images
        return False
    try:
        with torch.no_grad():
            again, beside = compute(x), compute(torch.cat((x, x.flip(-1).roll(1, 0) / 2)))
    except Exception:  # the user's code may take batches of one size alone
        return False

    def differs(other: Run) -> bool:
        found = {**other.layers, **other.outputs}
        return any(
            relative_difference(found[name][: len(x)], values) > limit
            for name, values in {**made.layers, **made.outputs}.items()
            if name in found and values.ndim and len(values) == len(x)
        )

    return differs(beside) and not differs(again)  # other numbers each time are another mistake


def matched(
    tested: Implementation,
    reference: Implementation,
    images: Mapping[str, Tensor],
    dtypes: Sequence[str],
) -> Sides:
    """Run two models once, to find out what of them can be compared.

    Raises:
        UsageError: One does not run on noise in float32, or no outputs match.
    """

    def refusal(batch: Tensor, dtype: str) -> str:
        """Why one of the two does not compute with such images; "" if both do."""
        for side in (tested, reference):
            if dtype not in side.dtypes:
                return f"{side.name} computes in {side.dtypes[0]}"
            try:
                outputs = run(side, batch.to(DTYPES[dtype])).outputs
            except UsageError as error:
                return f"{side.name} raised {error.evidence.get('raised', error.fact)}"
            returned = {str(x.dtype).removeprefix("torch.") for x in outputs.values()}
            if dtype == "float64" and returned != {dtype}:
                return f"{side.name} returned {', '.join(sorted(returned))}"
        return ""

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
        if len(batch) != len(noise) and (reason := refusal(batch, "float32"))
    }
    notes += [f"not compared on a {kind}: {reason}" for kind, reason in refused.items()]
    too_coarse = refusal(noise, "float64") if "float64" in dtypes else ""
    if too_coarse:
        notes.append(f"not compared in float64: {too_coarse}")
    return Sides(
        tested=tested,
        reference=reference,
        images={kind: batch for kind, batch in images.items() if kind not in refused},
        dtypes=[d for d in dtypes if not (too_coarse and d == "float64")] or ["float32"],
        pairs=pairs,
        skipped={*odd},
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
    evidence = {"raised": what_was_raised(error)}
    if not frame.filename.startswith("<frozen "):  # that of Python's own import is nobody's code
        evidence["in"] = f"{Path(frame.filename).name}, line {frame.lineno}"
    return UsageError(fact, evidence=evidence)


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
        shapes = {
            whose: ", ".join(f"{key} {tuple(output.shape)}" for key, output in outputs.items())
            for whose, outputs in ((name, mine), ("compared with", theirs))
        }
        raise UsageError(
            "No output of the two models has the same name and shape.",
            evidence=shapes,
            hint="wrap the model in a function that returns the output that should be equal.",
        )
    if others := [k for k in mine if k not in pairs]:
        notes.append(f"outputs that are not compared: {some(others)}")
    return pairs, notes
