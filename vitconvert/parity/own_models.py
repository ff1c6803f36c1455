"""Proof that somebody's own model computes what a checkpoint, or another model, computes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.arguments import refuse
from vitconvert.checkpoint import Checkpoint, ReadOptions, build_model
from vitconvert.comparison import TOLERANCE
from vitconvert.errors import NotRepresentable, UsageError, some
from vitconvert.model import ViT
from vitconvert.parity.comparison import DTYPES, Sides, in_order
from vitconvert.parity.diagnosis import UNKNOWN
from vitconvert.parity.differences import Divergence
from vitconvert.parity.gradients import Backward, compare_gradients
from vitconvert.parity.implementations import (
    Implementation,
    name_of,
    of_function,
    of_module,
    of_vit,
)
from vitconvert.parity.matching import (
    Match,
    canonical_tensors,
    match_by_layers,
    match_by_tensors,
    other_blocks,
    other_shapes,
)
from vitconvert.parity.photographs import (
    Photographs,
    Seen,
    compare_on_photographs,
    of_own_models,
)
from vitconvert.parity.report import ParityReport
from vitconvert.parity.trial import NOISE, Trial, run, try_out
from vitconvert.parity.untested import unseen_of_models
from vitconvert.parity.verification import check_arguments, verify_checkpoint
from vitconvert.preprocessing.sample_images import edge_images, sampled_images
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
        layers: Name of a module of somebody's own (the one that is tested, of two) -> name of a
            module of the other, or of vitconvert's ViT: their outputs are compared.
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
    models = _Models(tested, against)
    notes = _proved(models.checkpoint, tolerance)
    with isolated():
        images = _images(inputs, models.checkpoint, models.vit)
        match = _match(models, options, layers)
        both = _implementations(models, match, images[NOISE])
        weights = _weights(models, match)
        trial = try_out(*both, images, in_order(dtypes))
        found, sides = trial.compare(tolerance), trial.sides
        seen = _on_photographs(inputs.photographs, models, sides, tolerance)
        backward = _gradients(models, match, trial, inputs.seed) if gradients else None
    divergence = found.divergence or (backward and backward.divergence)
    return ParityReport(
        source=_reference_of(tested) or sides.tested.name,
        against=_reference_of(against),
        reference=sides.reference.name,
        comparisons=(*found.comparisons, *seen.comparisons),
        layers=tuple(found.layers),
        gradients=backward.tensors if backward else (),
        first_divergence=weights.named_in(divergence) if divergence else None,
        notes=(*notes, *match.notes, *weights.notes, *trial.notes, *seen.notes),
        executed=_executed(sides.both, models.checkpoint),
        not_tested=(
            *unseen_of_models((sides.tested.name, tested), (sides.reference.name, against)),
            *seen.not_tested,
        ),
        tolerance=tolerance,
    )


@dataclass(frozen=True)
class _Models:
    """The two models."""

    tested: Model
    against: Model

    @property
    def both(self) -> tuple[Model, Model]:
        """What is tested first."""
        return self.tested, self.against

    @functools.cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The one that is a checkpoint."""
        return next((model for model in self.both if isinstance(model, Checkpoint)), None)

    @functools.cached_property
    def vit(self) -> ViT | None:
        """vitconvert's own model, of which parts can be exchanged to find causes."""
        if self.checkpoint is not None:
            return build_model(self.checkpoint)
        return self.against if isinstance(self.against, ViT) else None

    @property
    def modules(self) -> list[nn.Module]:
        """Modules of somebody's own."""
        return [m for m in self.both if isinstance(m, nn.Module) and m is not self.vit]


def _proved(checkpoint: Checkpoint | None, tolerance: float) -> tuple[str, ...]:
    """That vitconvert's ViT computes what the checkpoint's own project does, in a sentence."""
    if checkpoint is None:
        return ()
    report = verify_checkpoint(checkpoint, tolerance=tolerance, until_equal=True)
    report.raise_if_failed()
    verdict = report.summary().splitlines()[0]
    return (f"vitconvert's ViT of {checkpoint.located.reference} is {verdict}",)


def _reference_of(model: Model) -> str:
    return model.located.reference if isinstance(model, Checkpoint) else ""


def _images(inputs: Inputs, checkpoint: Checkpoint | None, vit: ViT | None) -> Mapping[str, Tensor]:
    config = vit.config if vit else None
    if config is not None:
        asked = {"image_size": inputs.image_size, "in_channels": inputs.in_channels}
        others = (n for n, value in asked.items() if value not in (None, getattr(config, n)))
        refuse(others, "the checkpoint that is compared reads other images.")
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


def _match(models: _Models, options: ReadOptions, layers: Mapping[str, str] | None) -> Match:
    """Which modules of the two compute the same layers."""
    modules = models.modules
    if not modules:
        if layers:
            raise UsageError("`layers` names modules of a torch module, and there is none.")
        return Match(notes=("Layers are not compared: a function does not show them.",))
    other = models.vit or (modules[1] if len(modules) == 2 else None)
    if layers:
        if other is None:
            raise UsageError("`layers` needs two modules, or a module and a checkpoint.")
        return match_by_layers(layers, modules[0], other)
    if models.vit is None:
        fact = "Layers are not compared: layers= says which modules of the two are the same."
        return Match(notes=(fact,))
    return match_by_tensors(modules[0], models.vit.config, options)


def _implementations(
    models: _Models, match: Match, noise: Tensor
) -> tuple[Implementation, Implementation]:
    """What is tested, and what it is measured by."""
    taps = {id(module): match.theirs for module in models.modules[:1]}

    def implementation(model: Model) -> Implementation:
        if models.vit is not None and (isinstance(model, Checkpoint) or model is models.vit):
            return of_vit(models.vit, name="vitconvert's ViT", taps=match.ours)
        if isinstance(model, nn.Module):
            return of_module(model, name=name_of(model), taps=taps.get(id(model), match.ours))
        assert not isinstance(model, Checkpoint)
        return own_function(model, noise.float())

    return implementation(models.tested), implementation(models.against)


def _gradients(models: _Models, match: Match, trial: Trial, seed: int) -> Backward:
    """Of noise, in the most exact dtype that both compute in."""
    if models.vit is None or len(models.modules) != 1:
        raise UsageError(
            "Gradients are compared between a torch module and a checkpoint.",
            evidence={"found": " and ".join(type(model).__name__ for model in models.both)},
        )
    noise = trial.images[NOISE].to(DTYPES[trial.dtypes[-1]])
    return compare_gradients(models.modules[0], models.vit, match, noise, seed=seed)


def _on_photographs(
    photographs: Photographs | None, models: _Models, sides: Sides, tolerance: float
) -> Seen:
    if photographs is None:
        return Seen()
    prepared = of_own_models(models.both, photographs.preprocess)
    return compare_on_photographs(photographs, sides, prepared, tolerance=tolerance)


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

    def named_in(self, divergence: Divergence) -> Divergence:
        """With those that belong to the block, or the part, that ends with its layer."""
        block = block_of(divergence.layer)
        if not (others := [name for name in self.differing if block_of(name) == block]):
            return divergence
        held = f"it holds other numbers in {some(others)}"
        known = divergence.cause != UNKNOWN
        return replace(divergence, cause=f"{divergence.cause}; {held}" if known else held)


def _weights(models: _Models, match: Match) -> _Weights:
    vit = models.vit
    if vit is None or match.binding is None:
        return _Weights()
    if others := dict(other_blocks(match, vit.config)):
        raise _other_sizes(others)
    try:
        own = canonical_tensors({}, models.modules[0], match, vit.config)
    except NotRepresentable as error:
        return _Weights(notes=(f"its weights are not compared: {error.fact}",))
    except RuntimeError as error:  # one of them cannot be laid out so
        sizes = dict(other_shapes(match, vit.config)) or {"problem": str(error)}
        raise _other_sizes(sizes) from None
    theirs = vit.state_dict()
    if lacking := sorted(theirs.keys() - own.keys()):
        fact = f"the module has no tensors for {some(lacking)}"
        return _Weights(differing=lacking, notes=(fact,))
    differing = [name for name in theirs if not torch.equal(own[name], theirs[name])]
    if not differing:
        return _Weights(notes=("all its weights are the checkpoint's, bit by bit",))
    fact = f"its weights are not all the checkpoint's: {some(differing)} differ"
    return _Weights(differing=differing, notes=(fact,))


def _other_sizes(found: Mapping[str, str]) -> UsageError:
    return UsageError(
        "The module has other sizes than what it is compared with.",
        evidence=dict([*found.items()][:3]),
        hint="build it with the sizes of the checkpoint, or compare it with another.",
    )


def _executed(sides: Sequence[Implementation], checkpoint: Checkpoint | None) -> str:
    own = [side.name for side in sides if side.vit is None]
    ran = " and ".join([*(f"{name} (your code)" for name in own)] or ["vitconvert's ViT alone"])
    stored = f" Nothing stored in {checkpoint.located.reference} was." if checkpoint else ""
    return f"Executed: {ran}.{stored}"
