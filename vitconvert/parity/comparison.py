"""Two implementations on the same images: their outputs, their layers, and what explains a gap."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vitconvert.parity.diagnosis import UNKNOWN, Case, diagnose
from vitconvert.parity.differences import (
    Comparison,
    Divergence,
    LayerDifference,
    allowed,
    compare_outputs,
    layer_differences,
    token_differences,
)
from vitconvert.parity.implementations import Implementation, Run
from vitconvert.programs.isolation import side_by_side
from vitconvert.programs.taps import OUTPUT

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Pairs = Mapping[str, str]  # an output of the one that is tested -> the reference's


@dataclass(frozen=True)
class Part:
    """The result of one dtype."""

    comparisons: list[Comparison]
    layers: list[LayerDifference]
    divergence: Divergence | None

    @property
    def bit_equal(self) -> bool:
        """Whether no output and no layer differs at all."""
        outputs = all(comparison.bit_equal for comparison in self.comparisons)
        return outputs and all(layer.relative == 0 for layer in self.layers)


def compare_in(
    dtype: str,
    tested: Implementation,
    reference: Implementation,
    images: Mapping[str, Tensor],
    *,
    tolerance: float,
    pairs: Pairs | None = None,
    skipped: Collection[str] = (),
) -> Part:
    """Run both in one dtype, image by image, and compare all that both keep.

    Args:
        dtype: A key of `DTYPES`.
        tested: What is verified.
        reference: What it is measured by.
        images: Batches by kind.
        tolerance: The relative difference that counts as equal in float32.
        pairs: Which outputs are compared; by default, the one called "output".
        skipped: Layers that are not.
    """
    run_tested, run_reference = (side.prepare(DTYPES[dtype]) for side in (tested, reference))
    limit = allowed(tolerance, dtype)
    comparisons: list[Comparison] = []
    worst: dict[str, float] = {}
    divergence = None
    vit = tested.vit or reference.vit
    for kind, batch in images.items():
        x = batch.to(DTYPES[dtype])
        theirs, ours = side_by_side(partial(run_reference, x), partial(run_tested, x))
        seen = ours.through(reference.view)
        comparisons += [
            compare_outputs(
                seen.outputs[name],
                theirs.outputs[other],
                images=kind,
                dtype=dtype,
                output=name,
                tolerance=tolerance,
            )
            for name, other in (pairs or {OUTPUT: OUTPUT}).items()
        ]
        apart = layer_differences(
            {k: x for k, x in seen.layers.items() if k not in skipped}, theirs.layers
        )
        worst = {layer: max(value, worst.get(layer, 0.0)) for layer, value in apart.items()}
        departing = next((layer for layer, value in apart.items() if not value <= limit), None)
        if departing and not divergence:
            divergence = Divergence(
                layer=departing,
                dtype=dtype,
                images=kind,
                relative=apart[departing],
                cause=_cause(departing, x, (tested, ours), (reference, theirs), limit),
                positions=token_differences(seen.layers[departing], theirs.layers[departing]),
                grid=vit.config.grid_size if vit else None,
            )
    layers = [LayerDifference(layer=k, dtype=dtype, relative=value) for k, value in worst.items()]
    return Part(comparisons, layers, divergence)


def _cause(
    layer: str,
    images: Tensor,
    tested: tuple[Implementation, Run],
    reference: tuple[Implementation, Run],
    limit: float,
) -> str:
    """What explains the first layer that differs: of two, one must be vitconvert's own model."""
    for (side, _), (shown, other) in ((tested, reference), (reference, tested)):
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
        known = side is reference[0] and cause != UNKNOWN
        return f"{tested[0].name} computes as if {cause}" if known else cause
    return UNKNOWN


def in_order(dtypes: Sequence[str]) -> list[str]:
    """The most exact arithmetic last: it shows where two implementations differ."""
    return sorted(set(dtypes))
