"""Proof that somebody's own model computes what a checkpoint, or another model, computes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint, ReadOptions, build_model
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.model import ViT
from vitconvert.parity.comparison import DTYPES, in_order
from vitconvert.parity.diagnosis import UNKNOWN
from vitconvert.parity.differences import Divergence, LayerDifference
from vitconvert.parity.gradients import compare_gradients
from vitconvert.parity.implementations import (
    Implementation,
    name_of,
    of_function,
    of_module,
    of_vit,
)
from vitconvert.parity.inputs import edge_images
from vitconvert.parity.matching import (
    Match,
    canonical_tensors,
    match_by_layers,
    match_by_tensors,
)
from vitconvert.parity.photographs import (
    Photographs,
    Seen,
    compare_on_photographs,
    of_own_models,
)
from vitconvert.parity.report import ParityReport
from vitconvert.parity.trial import NOISE, Trial, run, some, try_out
from vitconvert.parity.untested import unseen_of_models
from vitconvert.parity.verification import check_arguments, sampled_images, verify_checkpoint
from vitconvert.programs.agreement import TOLERANCE
from vitconvert.programs.isolation import isolated
from vitconvert.programs.taps import block_of

Model = Checkpoint | nn.Module | Callable[..., Any]
"""What computes: a checkpoint in vitconvert's ViT, a module, or a function of images."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Which images two models are compared on.

    Attributes:
        image_size: Height and width; None: those of the checkpoint.
        in_channels: None: those of the checkpoint.
        seed: Another one makes other images.
        batch: Images of each kind.
        photographs: Compared as well, if there are any.
    """

    image_size: tuple[int, int] | None = None
    in_channels: int | None = None
    seed: int = 0
    batch: int = 2
    photographs: Photographs | None = None


def verify_model(
    tested: Model,
    against: Model,
    *,
    inputs: Inputs | None = None,
    options: ReadOptions | None = None,
    layers: Mapping[str, str] | None = None,
    gradients: bool = False,
    tolerance: float = TOLERANCE,
    dtypes: Sequence[str] = ("float32", "float64"),
) -> ParityReport:
    """Compare two models, at most one of which is a checkpoint.

    A checkpoint is computed by vitconvert's ViT, which is itself compared with the checkpoint's
    own project before. Neither model is changed: copies of modules run, in eval mode.

    Args:
        tested: What is verified.
        against: What it is measured by.
        inputs: The images.
        options: `table` or `dialect` names the tensors of a module, so that layers are compared.
        layers: Name of a module of `tested` -> name of a module of what it is compared with
            (vitconvert's ViT, for a checkpoint): their outputs are compared.
        gradients: Whether to compare gradients as well.
        tolerance, dtypes: As for `vitconvert.verify`.

    Raises:
        UsageError: A model does not run on such images, outputs do not match, or an argument is
            wrong.
        ParityFailed: vitconvert's ViT does not compute what the checkpoint's own project computes.
        MissingFact: There are photographs, and nothing says how to prepare them.
    """
    inputs, options = inputs or Inputs(), options or ReadOptions()
    check_arguments(inputs.batch, dtypes)
    checkpoint = next((m for m in (tested, against) if isinstance(m, Checkpoint)), None)
    notes = _proved(checkpoint, tolerance) if checkpoint else ()
    vit = build_model(checkpoint) if checkpoint else against if isinstance(against, ViT) else None
    with isolated():
        images = _images(inputs, checkpoint, vit)
        match = _match(tested, against, vit, options, layers)
        sides = [_implementation(m, vit, match, images[NOISE]) for m in (tested, against)]
        weights = _weights(tested if isinstance(tested, nn.Module) else against, match, vit)
        trial = try_out(sides[0], sides[1], images, in_order(dtypes))
        parts = [trial.compare_in(dtype, tolerance) for dtype in trial.dtypes]
        seen = _on_photographs(inputs.photographs, (tested, against), trial, tolerance)
        divergence = parts[-1].divergence
        backward: tuple[LayerDifference, ...] = ()
        if gradients:
            noise = images[NOISE].to(DTYPES[trial.dtypes[-1]])
            backward, wrong = _gradients(tested, against, vit, match, noise, inputs.seed)
            divergence = divergence or wrong
    if divergence and (others := weights.explaining(divergence.layer)):
        divergence = replace(divergence, cause=_with_weights(divergence.cause, others))
    return ParityReport(
        source=_reference_of(tested) or sides[0].name,
        against=_reference_of(against),
        reference=sides[1].name,
        comparisons=(*(c for part in parts for c in part.comparisons), *seen.comparisons),
        layers=tuple(layer for part in parts for layer in part.layers),
        gradients=backward,
        first_divergence=divergence,
        notes=(*notes, *match.notes, *weights.notes, *trial.notes, *seen.notes),
        executed=_executed(sides, checkpoint),
        not_tested=(
            *unseen_of_models((sides[0].name, tested), (sides[1].name, against)),
            *seen.not_tested,
        ),
        tolerance=tolerance,
    )


def _proved(checkpoint: Checkpoint, tolerance: float) -> tuple[str, ...]:
    """That vitconvert's ViT computes what the checkpoint's own project does, in a sentence."""
    report = verify_checkpoint(checkpoint, tolerance=tolerance, until_equal=True)
    report.raise_if_failed()
    return (f"vitconvert's ViT of it is {report.summary().splitlines()[0]}",)


def _reference_of(model: Model) -> str:
    return model.located.reference if isinstance(model, Checkpoint) else ""


def _images(inputs: Inputs, checkpoint: Checkpoint | None, vit: ViT | None) -> Mapping[str, Tensor]:
    config = vit.config if vit else None
    size = inputs.image_size or (config.image_size if config else None)
    channels = inputs.in_channels or (config.in_channels if config else None)
    if size is None or channels is None:
        raise UsageError(
            "Neither of the two models says which images it takes.",
            evidence={"image_size": size or "unknown", "in_channels": channels or "unknown"},
            hint="state both, as in image_size=224, in_channels=3.",
        )
    steps = None if checkpoint is None else checkpoint.preprocessing
    seed, batch = inputs.seed, inputs.batch
    usual = sampled_images(size, channels, steps, seed=seed, batch=batch)
    edges = edge_images(size, channels, seed=seed, batch=batch)
    return {**usual, **{kind: torch.from_numpy(array) for kind, array in edges.items()}}


def _match(
    tested: Model,
    against: Model,
    vit: ViT | None,
    options: ReadOptions,
    layers: Mapping[str, str] | None,
) -> Match:
    """Which modules of the two compute the same layers."""
    modules = [m for m in (tested, against) if isinstance(m, nn.Module) and m is not vit]
    if not modules:
        if layers:
            raise UsageError("`layers` names modules of a torch module, and there is none.")
        return Match(notes=("Layers are not compared: a function does not show them.",))
    other = vit or (against if len(modules) == 2 and isinstance(against, nn.Module) else None)
    if layers:
        if other is None:
            raise UsageError("`layers` needs two modules, or a module and a checkpoint.")
        return match_by_layers(layers, modules[0], other)
    if vit is None:
        fact = "Layers are not compared: layers= says which modules of the two are the same."
        return Match(notes=(fact,))
    return match_by_tensors(modules[0], vit.config, options)


def _implementation(model: Model, vit: ViT | None, match: Match, noise: Tensor) -> Implementation:
    if isinstance(model, Checkpoint) or model is vit:
        assert vit is not None
        return of_vit(vit, name="vitconvert's ViT", taps=match.ours)
    if isinstance(model, nn.Module):
        return of_module(model, name=name_of(model), taps=match.theirs)
    return own_function(model, noise.float())


def _gradients(
    tested: Model, against: Model, vit: ViT | None, match: Match, noise: Tensor, seed: int
) -> tuple[tuple[LayerDifference, ...], Divergence | None]:
    own = [m for m in (tested, against) if isinstance(m, nn.Module) and m is not vit]
    if vit is None or len(own) != 1:
        raise UsageError(
            "Gradients are compared between a torch module and a checkpoint.",
            evidence={"found": " and ".join(type(m).__name__ for m in (tested, against))},
        )
    return compare_gradients(own[0], vit, match, noise, seed=seed)


def _on_photographs(
    photographs: Photographs | None, models: tuple[Model, Model], trial: Trial, tolerance: float
) -> Seen:
    if photographs is None:
        return Seen()
    return compare_on_photographs(
        photographs,
        trial.sides,
        of_own_models(models, photographs.preprocess),
        tolerance=tolerance,
        pairs=trial.pairs,
    )


def own_function(function: Callable[..., Any], noise: Tensor) -> Implementation:
    """A function takes tensors, or else arrays."""
    name = name_of(function)
    try:
        function(noise)
    except Exception:  # whatever it says to images of another library
        arrays = of_function(function, name=f"{name} (of NumPy arrays)", takes_numpy=True)
        run(arrays, noise)
        return arrays
    return of_function(function, name=name, takes_numpy=False)


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """Canonical names of tensors in which a module and the ViT hold other numbers."""

    differing: Sequence[str] = ()
    notes: tuple[str, ...] = ()

    def explaining(self, layer: str) -> list[str]:
        """Tensors that differ and belong to the block, or the part, that ends with a layer."""
        block = block_of(layer)
        if block is not None:
            return [name for name in self.differing if block_of(name) == block]
        return [name for name in self.differing if block_of(name) is None]


def _weights(model: Model, match: Match, vit: ViT | None) -> _Weights:
    if vit is None or match.binding is None or not isinstance(model, nn.Module):
        return _Weights()
    try:
        own = canonical_tensors({}, model, match, vit.config)
    except NotRepresentable as error:
        return _Weights(notes=(f"its weights are not compared: {error.fact}",))
    theirs = vit.state_dict()
    if lacking := sorted(theirs.keys() - own.keys()):
        fact = f"the module has no tensors for {some(lacking)}"
        return _Weights(differing=lacking, notes=(fact,))
    differing = [name for name in theirs if not torch.equal(own[name], theirs[name])]
    if not differing:
        return _Weights(notes=("all its weights are the checkpoint's, bit by bit",))
    fact = f"its weights are not all the checkpoint's: {some(differing)} differ"
    return _Weights(differing=differing, notes=(fact,))


def _with_weights(cause: str, others: list[str]) -> str:
    held = f"it holds other numbers in {some(others)}"
    return held if cause == UNKNOWN else f"{cause}; {held}"


def _executed(sides: Sequence[Implementation], checkpoint: Checkpoint | None) -> str:
    own = [side.name for side in sides if side.vit is None]
    ran = " and ".join([*(f"{name} (your code)" for name in own)] or ["vitconvert's ViT alone"])
    stored = f" Nothing stored in {checkpoint.located.reference} was." if checkpoint else ""
    return f"Executed: {ran}.{stored}"
