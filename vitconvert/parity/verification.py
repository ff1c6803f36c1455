"""Proof that a model computes what the checkpoint's own project computes."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.errors import MissingPackage, NotRepresentable, UsageError
from vitconvert.model import ViT
from vitconvert.parity.diagnosis import Case, diagnose
from vitconvert.parity.differences import (
    Comparison,
    Divergence,
    LayerDifference,
    allowed,
    compare_outputs,
    layer_differences,
    token_differences,
)
from vitconvert.parity.inputs import sample_images
from vitconvert.parity.report import ParityReport
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs import build_reference
from vitconvert.programs.agreement import TOLERANCE
from vitconvert.programs.isolation import isolated, side_by_side
from vitconvert.programs.reference import Reference
from vitconvert.programs.taps import OUTPUT, record, record_ours

_Model = TypeVar("_Model", bound=nn.Module)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


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

    Raises:
        UsageError: The model reads other images than `against`, or an argument is wrong.
    """
    theirs = against or checkpoint
    model = model or build_model(checkpoint)
    _check(theirs, model, batch, dtypes)
    source = checkpoint.located.reference
    loaded = against.located.reference if against else ""
    with isolated():
        try:
            reference = build_reference(theirs)
        except (MissingPackage, NotRepresentable) as error:
            return ParityReport(
                source=source, against=loaded, skipped=error.fact, tolerance=tolerance
            )
        model = reference.adapt(model)
        images = _images(model, checkpoint.preprocessing, seed=seed, batch=batch)
        # The most exact arithmetic comes last: it shows where the two differ.
        wanted = sorted(set(dtypes) & set(reference.dtypes)) or reference.dtypes
        parts: list[_Part] = []
        for dtype in wanted:
            parts.append(_compare_in(dtype, reference, model, images, tolerance))
            if until_equal and parts[-1].bit_equal:
                break
    return ParityReport(
        source=source,
        against=loaded,
        reference=reference.name,
        comparisons=tuple(comparison for part in parts for comparison in part.comparisons),
        layers=tuple(layer for part in parts for layer in part.layers),
        first_divergence=parts[-1].divergence,
        notes=reference.notes,
        tolerance=tolerance,
    )


@dataclass(frozen=True)
class _Part:
    """The result of one dtype."""

    comparisons: list[Comparison]
    layers: list[LayerDifference]
    divergence: Divergence | None

    @property
    def bit_equal(self) -> bool:
        """Whether no output and no layer differs at all."""
        outputs = all(comparison.bit_equal for comparison in self.comparisons)
        return outputs and all(layer.relative == 0 for layer in self.layers)


def _compare_in(
    dtype: str, reference: Reference, model: ViT, images: Mapping[str, Tensor], tolerance: float
) -> _Part:
    theirs_model = _in_dtype(reference.model, DTYPES[dtype])
    ours_model = _in_dtype(model, DTYPES[dtype])
    comparisons: list[Comparison] = []
    worst: dict[str, float] = {}
    divergence = None
    for kind, batch in images.items():
        x = batch.to(DTYPES[dtype])
        theirs, ours = side_by_side(
            partial(record, theirs_model, reference.taps, partial(reference.run, theirs_model, x)),
            partial(record_ours, ours_model, x, reads=reference.reads),
        )
        comparisons.append(
            compare_outputs(
                ours[OUTPUT], theirs[OUTPUT], images=kind, dtype=dtype, tolerance=tolerance
            )
        )
        apart = layer_differences(ours, theirs)
        worst = {layer: max(value, worst.get(layer, 0.0)) for layer, value in apart.items()}
        divergence = divergence or _divergence(
            apart,
            Case(ours_model, reference.reads, x, theirs, allowed(tolerance, dtype)),
            kind,
            ours,
        )
    differing = [
        LayerDifference(layer=layer, dtype=dtype, relative=value) for layer, value in worst.items()
    ]
    return _Part(comparisons, differing, divergence)


def _divergence(
    apart: Mapping[str, float], case: Case, kind: str, ours: Mapping[str, Tensor]
) -> Divergence | None:
    """The first layer that differs by more than rounding, and why."""
    layer = next((layer for layer, value in apart.items() if not value <= case.limit), None)
    if layer is None:
        return None
    return Divergence(
        layer=layer,
        dtype=str(case.images.dtype).removeprefix("torch."),
        images=kind,
        relative=apart[layer],
        cause=diagnose(case, layer),
        positions=token_differences(ours[layer], case.theirs[layer]),
        grid=case.model.config.grid_size,
    )


def _in_dtype(model: _Model, dtype: torch.dtype) -> _Model:
    """The model itself if it is ready, or a copy on the CPU."""
    ready = all(p.dtype == dtype and p.device.type == "cpu" for p in model.parameters())
    if ready and not model.training:
        return model
    return copy.deepcopy(model).to(device="cpu", dtype=dtype).eval()


def _images(
    model: ViT, preprocessing: Preprocessing | None, *, seed: int, batch: int
) -> Mapping[str, Tensor]:
    config = model.config
    usual = (
        {"mean": preprocessing.mean, "std": preprocessing.std}
        if preprocessing and preprocessing.channels in (1, config.in_channels)
        else {}
    )
    arrays = sample_images(
        batch=batch, channels=config.in_channels, size=config.image_size, seed=seed, **usual
    )
    return {kind: torch.from_numpy(array) for kind, array in arrays.items()}


def _check(checkpoint: Checkpoint, model: ViT, batch: int, dtypes: Sequence[str]) -> None:
    if unknown := sorted(set(dtypes) - set(DTYPES)) or not dtypes:
        raise UsageError(
            "Parity is measured in float32, float64 or both.", evidence={"asked": unknown}
        )
    if batch < 1:
        raise UsageError(f"batch must be at least 1, not {batch}.")
    for field in ("image_size", "in_channels", "num_classes"):
        found, wanted = getattr(model.config, field), getattr(checkpoint.config, field)
        if found != wanted:
            raise UsageError(
                "The model and the checkpoint it is compared with have different inputs or "
                "outputs.",
                evidence={f"{field} of the model": found, f"{field} of the checkpoint": wanted},
            )
