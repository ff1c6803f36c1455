"""How far float16 and bfloat16 take a model from float64, and which numbers they cannot hold.

Nothing outside is needed: float64 of vitconvert's own model is the reference.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.comparison import (
    Comparison,
    LayerDifference,
    compare_outputs,
    largest,
    overflows,
    relative_difference,
)
from vitconvert.model import ViT
from vitconvert.parity.implementations import of_vit
from vitconvert.parity.report import Precision, ReportFindings
from vitconvert.programs.taps import OUTPUT

LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_NOT_JUDGED = (
    "float16 and bfloat16 are measured without a verdict; another processor rounds differently"
)


def too_large(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[str, ...]:
    """The tensors with a number that is finite, but not in this dtype."""
    return tuple(name for name, tensor in tensors.items() if overflows(tensor, tensor.to(dtype)))


@dataclass
class LargestValue:
    """The largest magnitude of the outputs of a model's modules."""

    value: float = 0.0
    module: str = ""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Look at each output inside."""

        def look(name: str, _: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and (value := largest(output)) > self.value:
                self.value, self.module = value, name or "the whole model"

        handles = [
            module.register_forward_hook(partial(look, name))
            for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass
class _Measured:
    """One dtype: its difference from float64 so far."""

    dtype: str
    comparisons: list[Comparison] = field(default_factory=list)
    layers: dict[str, float] = field(default_factory=dict)
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)  # layer: infinite, NaN
    problem: str = ""

    def add(self, kind: str, ours: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> None:
        ours = {layer: values.double() for layer, values in ours.items()}
        self.comparisons.append(
            compare_outputs(
                *(ours[OUTPUT], exact[OUTPUT]), images=kind, dtype=self.dtype, tolerance=math.inf
            )
        )
        for layer, values in ours.items():
            apart = relative_difference(values, exact[layer])
            self.layers[layer] = max(apart, self.layers.get(layer, 0.0))
            infinite, nan = self.lost.get(layer, (0, 0))
            infinite, nan = infinite + int(values.isinf().sum()), nan + int(values.isnan().sum())
            self.lost[layer] = (infinite, nan)

    def findings(self, checkpoint: Checkpoint, most: LargestValue) -> ReportFindings:
        overflow = next((layer for layer, lost in self.lost.items() if any(lost)), "")
        infinite, nan = self.lost.get(overflow, (0, 0))
        precision = Precision(
            dtype=self.dtype,
            limit=torch.finfo(LOWER[self.dtype]).max,
            largest=most.value,
            module=most.module,
            overflow=overflow,
            infinite=infinite,
            nan=nan,
            weights=too_large(checkpoint.tensors, LOWER[self.dtype]),
            problem=self.problem,
        )
        if self.problem:
            return ReportFindings(precision=(precision,))
        return ReportFindings(
            comparisons=tuple(self.comparisons),
            layers=tuple(
                LayerDifference(layer=layer, dtype=self.dtype, relative=relative)
                for layer, relative in self.layers.items()
            ),
            precision=(precision,),
        )


def measure_precision(
    checkpoint: Checkpoint, images: Mapping[str, Tensor], dtypes: Iterable[str]
) -> ReportFindings:
    """Run a checkpoint in each dtype and in float64, on the same images.

    Two models are in memory at a time, and the layers of one kind of images.

    Args:
        checkpoint: Computed by vitconvert's ViT.
        images: Batches by kind, in float64.
        dtypes: Keys of `LOWER`.
    """

    def layers(model: ViT, batch: Tensor) -> Mapping[str, Tensor]:
        return of_vit(model, name="vitconvert").prepare(batch.dtype)(batch).layers

    measured = [_Measured(dtype) for dtype in LOWER if dtype in dtypes]
    model, most = build_model(checkpoint, dtype=torch.float64), LargestValue()
    for kind, batch in images.items():
        with most.watching(model):
            exact = layers(model, batch)
        for one in measured:
            if one.problem:
                continue
            dtype = LOWER[one.dtype]
            try:
                lower = layers(build_model(checkpoint, dtype=dtype), batch.to(dtype))
                one.add(kind, lower, exact)
            except RuntimeError as error:  # "not implemented for 'Half'"
                one.problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    found = (one.findings(checkpoint, most) for one in measured)
    return sum(found, ReportFindings(notes=(_NOT_JUDGED,)))
