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
    relative_difference,
)
from vitconvert.model import ViT
from vitconvert.parity.implementations import of_vit
from vitconvert.parity.report import Precision
from vitconvert.programs.taps import OUTPUT

LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def too_large(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[str, ...]:
    """The tensors with a number that is finite, but not in this dtype."""
    limit = torch.finfo(dtype).max
    return tuple(name for name, tensor in tensors.items() if limit < largest(tensor) < math.inf)


@dataclass
class LargestValue:
    """The largest magnitude of the outputs of a model's modules."""

    value: float = 0.0
    module: str = ""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Look at each output inside."""
        handles = [
            module.register_forward_hook(partial(self._look, name))
            for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _look(self, name: str, _: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor) and (value := largest(output)) > self.value:
            self.value, self.module = value, name or "the whole model"


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
            self.lost[layer] = (
                infinite + int(values.isinf().sum()),
                nan + int(values.isnan().sum()),
            )

    def precision(self, checkpoint: Checkpoint, most: LargestValue) -> Precision:
        dtype = LOWER[self.dtype]
        overflow = next((layer for layer, lost in self.lost.items() if any(lost)), "")
        infinite, nan = self.lost.get(overflow, (0, 0))
        return Precision(
            dtype=self.dtype,
            limit=torch.finfo(dtype).max,
            largest=most.value,
            module=most.module,
            overflow=overflow,
            infinite=infinite,
            nan=nan,
            weights=too_large(checkpoint.tensors, dtype),
            problem=self.problem,
        )


@dataclass(frozen=True)
class LowerPrecision:
    """The part of a report on dtypes of fewer bits."""

    comparisons: tuple[Comparison, ...] = ()
    layers: tuple[LayerDifference, ...] = ()
    precision: tuple[Precision, ...] = ()


def measure_precision(
    checkpoint: Checkpoint, images: Mapping[str, Tensor], dtypes: Iterable[str]
) -> LowerPrecision:
    """Run a checkpoint in each dtype and in float64, on the same images.

    Two models are in memory at a time, and the layers of one kind of images.

    Args:
        checkpoint: Computed by vitconvert's ViT.
        images: Batches by kind, in float64.
        dtypes: Keys of `LOWER`.
    """
    found = {dtype: _Measured(dtype) for dtype in LOWER if dtype in dtypes}
    model, most = build_model(checkpoint, dtype=torch.float64), LargestValue()
    for kind, batch in images.items():
        with most.watching(model):
            exact = _layers(model, batch)
        for dtype, measured in found.items():
            if measured.problem:
                continue
            try:
                measured.add(kind, _lower_layers(checkpoint, dtype, batch), exact)
            except RuntimeError as error:  # "not implemented for 'Half'"
                measured.problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    good = [measured for measured in found.values() if not measured.problem]
    return LowerPrecision(
        comparisons=tuple(comparison for one in good for comparison in one.comparisons),
        layers=tuple(
            LayerDifference(layer=layer, dtype=one.dtype, relative=relative)
            for one in good
            for layer, relative in one.layers.items()
        ),
        precision=tuple(one.precision(checkpoint, most) for one in found.values()),
    )


def _lower_layers(checkpoint: Checkpoint, dtype: str, images: Tensor) -> Mapping[str, Tensor]:
    model = build_model(checkpoint, dtype=LOWER[dtype])
    return _layers(model, images.to(LOWER[dtype]))


def _layers(model: ViT, images: Tensor) -> Mapping[str, Tensor]:
    return of_vit(model, name="vitconvert").prepare(images.dtype)(images).layers
