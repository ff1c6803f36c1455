"""Two implementations on the same images: their outputs, their layers, and what explains a gap."""

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from vitconvert.comparison import Comparison, allowed, compare_outputs
from vitconvert.parity.diagnosis import UNKNOWN, Case, diagnose
from vitconvert.parity.differences import (
    Divergence,
    LayerDifference,
    layer_differences,
    token_differences,
)
from vitconvert.parity.implementations import Implementation, Run
from vitconvert.programs.isolation import side_by_side
from vitconvert.programs.taps import OUTPUT

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Pairs = Mapping[str, str]  # an output of the one that is tested -> the reference's


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Two implementations, and what of them is compared.

    Attributes:
        tested: What is verified.
        reference: What it is measured by.
        pairs: Which outputs are the same; by default, those called "output".
        skipped: Layers that are not compared.
    """

    tested: Implementation
    reference: Implementation
    pairs: Pairs = field(default_factory=lambda: {OUTPUT: OUTPUT})
    skipped: Collection[str] = ()

    @property
    def both(self) -> tuple[Implementation, Implementation]:
        """What is tested first."""
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
    comparisons: list[Comparison] = []
    worst: dict[str, float] = {}
    divergence = None
    for kind, batch in images.items():
        x = batch.to(DTYPES[dtype])
        theirs, ours = side_by_side(partial(run_reference, x), partial(run_tested, x))
        computed = _Computed(
            sides=sides,
            kind=kind,
            dtype=dtype,
            images=x,
            ours=ours,
            theirs=theirs,
            tolerance=tolerance,
        )
        comparisons += computed.comparisons()
        apart = computed.layers_apart()
        worst = {layer: max(value, worst.get(layer, 0.0)) for layer, value in apart.items()}
        divergence = divergence or computed.divergence(apart)
    layers = [LayerDifference(layer=k, dtype=dtype, relative=value) for k, value in worst.items()]
    return Outcome(comparisons, layers, divergence)


@dataclass(frozen=True, kw_only=True)
class _Computed:
    """What both gave for a batch of images in one dtype."""

    sides: Sides
    kind: str
    dtype: str
    images: Tensor
    ours: Run
    theirs: Run
    tolerance: float

    @functools.cached_property
    def seen(self) -> Run:
        """Ours, as far as the reference keeps it."""
        return self.ours.through(self.sides.reference.view)

    def comparisons(self) -> Iterator[Comparison]:
        """Of each output."""
        for name, other in self.sides.pairs.items():
            yield compare_outputs(
                self.seen.outputs[name],
                self.theirs.outputs[other],
                images=self.kind,
                dtype=self.dtype,
                output=name,
                tolerance=self.tolerance,
            )

    def layers_apart(self) -> dict[str, float]:
        """How far each layer is apart."""
        compared = {k: x for k, x in self.seen.layers.items() if k not in self.sides.skipped}
        return layer_differences(compared, self.theirs.layers)

    def divergence(self, apart: Mapping[str, float]) -> Divergence | None:
        """The first layer that is further apart than rounding explains."""
        limit = allowed(self.tolerance, self.dtype)
        layer = next((layer for layer, value in apart.items() if not value <= limit), None)
        if layer is None:
            return None
        vit = self.sides.tested.vit or self.sides.reference.vit
        return Divergence(
            layer=layer,
            dtype=self.dtype,
            images=self.kind,
            relative=apart[layer],
            cause=self._cause(layer, limit),
            positions=token_differences(self.seen.layers[layer], self.theirs.layers[layer]),
            grid=vit.config.grid_size if vit else None,
        )

    def _cause(self, layer: str, limit: float) -> str:
        """What explains it: of two, one must be vitconvert's own model."""
        tested, reference = self.sides.both
        for side, shown, other in (
            (tested, reference, self.theirs),
            (reference, tested, self.ours),
        ):
            if side.vit is None:
                continue
            case = Case(
                model=side.vit,
                reads=side.reads,
                taps=side.taps,
                images=self.images,
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
