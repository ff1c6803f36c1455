"""Proof that a model still gives the golden outputs, without the project that they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint, ReadOptions, build_model
from vitconvert.comparison import TOLERANCE, fingerprint
from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError, some
from vitconvert.model import ViT
from vitconvert.parity.comparison import Outcome, in_order
from vitconvert.parity.golden import Golden, own_versions
from vitconvert.parity.implementations import Implementation, name_of, of_module, of_vit
from vitconvert.parity.matching import (
    Match,
    canonical_tensors,
    match_by_layers,
    match_by_tensors,
)
from vitconvert.parity.own_models import Model, own_function
from vitconvert.parity.report import ParityReport
from vitconvert.parity.trial import NOISE, try_out
from vitconvert.parity.untested import unseen_of_models
from vitconvert.parity.verification import check_arguments
from vitconvert.programs.isolation import isolated
from vitconvert.programs.taps import OUTPUT


def verify_golden(
    tested: Model,
    golden: Golden,
    *,
    options: ReadOptions | None = None,
    layers: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
    dtypes: Sequence[str] = ("float32", "float64"),
) -> ParityReport:
    """Compare a model with golden outputs.

    Args:
        tested: A checkpoint, which vitconvert's ViT computes, a module or a function of images.
        golden: What it should give.
        options: `table` or `dialect` names the tensors of a module: its weights are then compared
            too, and its layers.
        layers: Name of a module of `tested` -> name of a module of vitconvert's ViT.
        tolerance, dtypes: As for `vitconvert.verify`.

    Raises:
        UsageError: The model has other weights than those that were recorded, other images would
            be drawn, or the model does not run on them.
    """
    check_arguments(golden.drawn.batch, dtypes)
    with isolated():
        images = golden.redrawn()
        side = _side(tested, golden, images[NOISE], options or ReadOptions(), layers)
        reference = golden.implementation(images, side.vit, side.match.ours)
        trial = try_out(side.tested, reference, images, in_order(dtypes))
        if side.tested.vit:  # its other outputs are layers, too
            trial = replace(trial, sides=replace(trial.sides, pairs={OUTPUT: OUTPUT}))
        found = trial.compare(tolerance)
    return _report(tested, golden, side, found, trial.notes, tolerance)


def _report(
    tested: Model,
    golden: Golden,
    side: "_Side",
    found: Outcome,
    notes: Sequence[str],
    tolerance: float,
) -> ParityReport:
    return ParityReport(
        source=tested.located.reference if isinstance(tested, Checkpoint) else side.tested.name,
        reference=golden.title,
        comparisons=tuple(found.comparisons),
        layers=tuple(found.layers),
        first_divergence=found.divergence,
        notes=(_recorded(golden), _versions(golden), *side.notes, *side.match.notes, *notes),
        executed=_executed(side.tested),
        not_tested=(*side.unseen, *unseen_of_models((side.tested.name, tested)), *_unseen(golden)),
        tolerance=tolerance,
    )


def _executed(tested: Implementation) -> str:
    ran = tested.name if tested.vit else f"{tested.name} (your code)"
    unused = "nothing of it was, nor of the project that it was proved with"
    return f"Executed: {ran}. The golden file holds numbers only: {unused}."


def _recorded(golden: Golden) -> str:
    if golden.verdict == "equal":
        return f"when it was recorded, it was equal to {golden.reference}"
    return f"the golden outputs themselves are not verified: {golden.reference}"


def _unseen(golden: Golden) -> tuple[str, ...]:
    return tuple(f"when it was recorded: {fact}" for fact in golden.not_tested)


def _versions(golden: Golden) -> str:
    then, now = (
        ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
        for versions in (golden.versions, own_versions())
    )
    return f"recorded with {then}; compared with {now}"


@dataclass(frozen=True, kw_only=True)
class _Side:
    """What is tested, and vitconvert's ViT of the same weights, where they are known."""

    tested: Implementation
    vit: ViT | None = None
    match: Match = field(default_factory=Match)
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def _side(
    model: Model,
    golden: Golden,
    noise: Tensor,
    options: ReadOptions,
    layers: Mapping[str, str] | None,
) -> _Side:
    if layers and (isinstance(model, Checkpoint | ViT) or not isinstance(model, nn.Module)):
        raise UsageError("`layers` names modules of a torch module, and there is none.")
    if isinstance(model, Checkpoint | ViT):
        vit = build_model(model) if isinstance(model, Checkpoint) else model
        _check_weights(vit.state_dict(), golden)
        same = "all its weights are those that were recorded"
        return _Side(tested=of_vit(vit, name="vitconvert's ViT"), notes=(same,))
    if isinstance(model, nn.Module):
        return _of_module(model, golden, options, layers)
    unseen = (
        "its layers, and whether its weights are those that were recorded (sha256 "
        f"{golden.weights}): a function does not show them"
    )
    return _Side(tested=own_function(model, noise.float()), unseen=(unseen,))


def _of_module(
    module: nn.Module, golden: Golden, options: ReadOptions, layers: Mapping[str, str] | None
) -> _Side:
    blank = _blank(golden.config)
    match = match_by_tensors(module, golden.config, options)
    if layers:
        named = match_by_layers(layers, module, blank)
        match = replace(named, binding=match.binding, prefix=match.prefix)
    tested = of_module(module, name=name_of(module), taps=match.theirs)
    if match.binding is None:
        unseen = "whether its weights are those that were recorded: no table names them"
        return _Side(tested=tested, match=match, unseen=(unseen,))
    weights = _canonical(module, match, blank)
    _check_weights(weights, golden)
    blank.load_state_dict(weights, strict=True, assign=True)
    same = "all its weights are those that were recorded"
    return _Side(tested=tested, vit=blank.eval(), match=match, notes=(same,))


def _blank(config: ViTConfig) -> ViT:
    """The model of a configuration, without numbers."""
    try:
        return ViT(config, device="meta")
    except (RuntimeError, OverflowError) as error:  # its sizes are no model's
        raise UsageError(
            "The golden file says that the model has impossible sizes.",
            evidence={"problem": str(error)[:200]},
        ) from None


def _canonical(module: nn.Module, match: Match, blank: ViT) -> dict[str, Tensor]:
    """A module's weights under canonical names.

    Raises:
        UsageError: They are not those of a model of such sizes.
    """
    wanted = blank.state_dict()
    has = sum(tensor.numel() for tensor in module.state_dict().values())
    needs = sum(tensor.numel() for tensor in wanted.values())
    problem = f"{has:,} numbers, not {needs:,}" if 2 * has < needs else ""
    try:
        own = {} if problem else canonical_tensors({}, module, match, blank.config)
    except RuntimeError as error:  # one of them cannot be laid out so
        own, problem = {}, str(error)[:200]
    odd = [n for n in wanted if n not in own or own[n].shape != wanted[n].shape]
    if problem or odd:
        raise UsageError(
            "The model has tensors of other sizes than the one that was recorded.",
            evidence={"problem": problem or some(odd)},
        )
    return {name: own[name] for name in wanted}


def _check_weights(weights: Mapping[str, Tensor], golden: Golden) -> None:
    """Refuse to compare other weights: all numbers would differ, and none would mean anything."""
    if (found := fingerprint(weights)) != golden.weights:
        raise UsageError(
            "The model has other weights than those that were recorded.",
            evidence={
                "golden": golden.name,
                "of": golden.source,
                "sha256 recorded": golden.weights,
                "sha256 found": found,
            },
            hint="`vitconvert golden SOURCE -o FILE` records those of another model.",
        )
