"""Golden outputs recorded, and compared with a model where the project they came from is absent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint, ReadOptions, build_model
from vitconvert.comparison import TOLERANCE, fingerprint
from vitconvert.errors import ParityFailed, UsageError, some
from vitconvert.model import ViT
from vitconvert.parity.golden import MOST_NUMBERS, Drawn, Golden, digest, numbers_of
from vitconvert.parity.implementations import Implementation, name_of, of_module, of_vit
from vitconvert.parity.matching import (
    Match,
    canonical_tensors,
    match_by_layers,
    match_by_tensors,
)
from vitconvert.parity.own_models import Model, own_function
from vitconvert.parity.report import ParityReport, ReportFindings
from vitconvert.parity.sides import NOISE, matched
from vitconvert.parity.untested import unseen_of_models
from vitconvert.parity.verification import check_dtypes, verify_checkpoint
from vitconvert.preprocessing.sample_images import normalisation
from vitconvert.programs.isolation import isolated
from vitconvert.programs.taps import BRANCH, OUTPUT, Tap, canonical_taps
from vitconvert.sources.references import published
from vitconvert.version import VERSION


def record(
    checkpoint: Checkpoint, *, seed: int = 0, batch: int = 2, tolerance: float = TOLERANCE
) -> Golden:
    """Compute what is kept of a checkpoint, once its own project computes the same.

    Raises:
        ParityFailed: vitconvert's ViT does not compute what the checkpoint's own project computes.
        UsageError: The images would be too large, or the outputs are not finite.
    """
    checkpoint.config.require_images("A golden file")
    size, channels = checkpoint.config.image_size, checkpoint.config.in_channels
    usual = normalisation(checkpoint.preprocessing, channels)
    mean, std = (tuple(usual.get(name, ())) for name in ("mean", "std"))
    drawn = Drawn(seed=seed, batch=batch, size=size, channels=channels, mean=mean, std=std)
    if (numbers := numbers_of(drawn)) > MOST_NUMBERS:
        raise UsageError(
            "The images are too large to record golden outputs of.",
            evidence={"numbers in a batch": f"{numbers:,}", "at most": f"{MOST_NUMBERS:,}"},
        )
    report = verify_checkpoint(checkpoint, tolerance=tolerance, briefly=True)
    report.raise_if_failed()
    model = build_model(checkpoint)
    images = drawn.images()
    with isolated():
        # Where a model is compared, and what its branches give before that is added.
        taps: dict[str, Tap] = canonical_taps(model.config.depth, model.config.block_order)
        for i in range(model.config.depth):
            for part in (f"blocks.{i}.attn", f"blocks.{i}.mlp"):
                taps[f"{part}{BRANCH}"] = Tap(part)
        side = of_vit(model, name="vitconvert's ViT", taps=taps)
        run = side.prepare(torch.float64)
        layers = {kind: run(batch).layers for kind, batch in images.items()}
        shapes = {k: tuple(x.shape[1:]) for k, x in layers["noise"].items() if x.ndim > 2}
        kept = {
            kind: {name: digest(x) if name in shapes else x for name, x in found.items()}
            for kind, found in layers.items()
        }
    for kind, layers_kept in kept.items():
        for name, values in layers_kept.items():
            if not values.isfinite().all():
                raise UsageError(
                    "The model gives numbers that are NaN or infinite, which equal nothing.",
                    evidence={"layer": name, "images": kind},
                )
    return Golden(
        source=published(checkpoint.located.reference),
        verdict=report.verdict,
        reference=report.reference or report.skipped,
        config=model.config,
        weights=fingerprint(model.state_dict()),
        drawn=drawn,
        images=fingerprint(images),
        not_tested=report.not_tested,
        versions=_own_versions(),
        shapes=shapes,
        kept=kept,
    )


def _own_versions() -> dict[str, str]:
    """The packages that compute here; `reference` names the other side's."""
    return {"vitconvert": VERSION, "torch": torch.__version__, "numpy": np.__version__}


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
        golden: The outputs it should give.
        options: `table` or `dialect` names the tensors of a module: its weights are then compared
            too, and its layers.
        layers: Name of a module of `tested` -> name of a module of vitconvert's ViT.
        tolerance, dtypes: As for `vitconvert.verify`.

    Raises:
        ParityFailed: The model has other weights than those that were recorded.
        UsageError: Other images would be drawn, or the model does not run on them.
    """
    check_dtypes(dtypes, lower=False)
    if layers and (isinstance(tested, Checkpoint | ViT) or not isinstance(tested, nn.Module)):
        raise UsageError("`layers` names modules of a torch module, and there is none.")
    with isolated():
        images = golden.redrawn()
        side = _tested(tested, golden, images[NOISE], options or ReadOptions(), layers)
        name = side.implementation.name
        reference = golden.implementation(images, side.vit, side.match.ours)
        sides = matched(side.implementation, reference, images, dtypes)
        if own := side.implementation.vit is not None:  # its other outputs are layers, too
            sides = replace(sides, pairs={OUTPUT: OUTPUT})
        found = sides.compare(tolerance)
    proved = (
        "when it was recorded, it was equal to"
        if golden.verdict == "equal"
        else "the golden outputs themselves are not verified:"
    )
    then, now = (
        ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
        for versions in (golden.versions, _own_versions())
    )
    about = f"{proved} {golden.reference}", f"recorded with {then}; compared with {now}"
    earlier = (f"when it was recorded: {fact}" for fact in golden.not_tested)
    before = ReportFindings(
        notes=(*about, *side.found.notes, *side.match.notes),
        not_tested=(*side.found.not_tested, *unseen_of_models((name, tested)), *earlier),
    )
    return ParityReport(
        source=tested.located.reference if isinstance(tested, Checkpoint) else name,
        reference=golden.title,
        executed=f"Executed: {name if own else f'{name} (your code)'}. The golden file holds "
        "only numbers. No code of it or of its library was executed.",
        tolerance=tolerance,
        **vars(before + found),
    )


_SAME_WEIGHTS = ReportFindings(notes=("all its weights are those that were recorded",))


@dataclass(frozen=True, kw_only=True)
class _Tested:
    """The tested model, and vitconvert's ViT of the same weights, where they are known."""

    implementation: Implementation
    vit: ViT | None = None
    match: Match = field(default_factory=Match)
    found: ReportFindings = _SAME_WEIGHTS


def _tested(
    model: Model,
    golden: Golden,
    noise: Tensor,
    options: ReadOptions,
    layers: Mapping[str, str] | None,
) -> _Tested:
    if isinstance(model, Checkpoint | ViT):
        vit = build_model(model) if isinstance(model, Checkpoint) else model
        _check_weights(vit.state_dict(), golden)
        return _Tested(implementation=of_vit(vit, name="vitconvert's ViT"))
    if not isinstance(model, nn.Module):
        unseen = (
            "its layers, and whether its weights are those that were recorded (sha256 "
            f"{golden.weights}): a function does not show them"
        )
        function = own_function(model, noise.float())
        return _Tested(implementation=function, found=ReportFindings(not_tested=(unseen,)))
    try:
        # Without numbers: whoever wrote the file may have stated any size.
        blank = ViT(golden.config, device="meta")
    except (RuntimeError, OverflowError) as error:  # its sizes are no model's
        raise UsageError(
            "The golden file says that the model has impossible sizes.",
            evidence={"problem": str(error)[:200]},
        ) from None
    match = match_by_tensors(model, golden.config, options)
    if layers:
        named = match_by_layers(layers, model, blank)
        match = replace(named, binding=match.binding, prefix=match.prefix)
    implementation = of_module(model, name=name_of(model), taps=match.theirs)
    if match.binding is None:
        unseen = "whether its weights are those that were recorded: no table names them"
        found = ReportFindings(not_tested=(unseen,))
        return _Tested(implementation=implementation, match=match, found=found)
    weights = _canonical(model, match, blank)
    _check_weights(weights, golden)
    blank.load_state_dict(weights, strict=True, assign=True)
    return _Tested(implementation=implementation, vit=blank.eval(), match=match)


def _canonical(module: nn.Module, match: Match, blank: ViT) -> dict[str, Tensor]:
    """A module's weights under canonical names.

    Raises:
        UsageError: They are not those of a model of such sizes.
    """
    wanted = blank.state_dict()
    has = sum(tensor.numel() for tensor in module.state_dict().values())
    needs = sum(tensor.numel() for tensor in wanted.values())
    # Before anything is laid out, for the same reason: missing biases become zeros.
    problem = f"{has:,} numbers, not {needs:,}" if 2 * has < needs else ""
    try:
        own = {} if problem else canonical_tensors(module, match, blank.config)
    except RuntimeError as error:  # one of them cannot be laid out so
        own, problem = {}, str(error)[:200]
    odd = [n for n in wanted if n not in own or own[n].shape != wanted[n].shape]
    if problem or odd:
        raise ParityFailed(
            "The model has tensors of other sizes than the one that was recorded.",
            evidence={"problem": problem or some(odd)},
        )
    return {name: own[name] for name in wanted}


def _check_weights(weights: Mapping[str, Tensor], golden: Golden) -> None:
    """Refuse to compare other weights: all numbers would differ, and none would mean anything."""
    if (found := fingerprint(weights)) != golden.weights:
        raise ParityFailed(
            "The model has other weights than those that were recorded.",
            evidence={
                "golden": golden.name,
                "of": golden.source,
                "sha256 recorded": golden.weights,
                "sha256 found": found,
            },
            hint="`vitconvert diff A B` lists the tensors that differ; if the change is meant, "
            "`vitconvert golden SOURCE -o FILE --force` records the new ones.",
        )
