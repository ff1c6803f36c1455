"""The user's own model: built by the user's own code, and compared with another."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitconvert.arguments import refuse
from vitconvert.checkpoint import Checkpoint, ReadOptions, build_model
from vitconvert.comparison import TOLERANCE, Divergence
from vitconvert.errors import NotRepresentable, UsageError, nearest, some
from vitconvert.model import ViT
from vitconvert.parity.images import NO_IMAGES, ComparedImages, compare_on_images, of_own_models
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
    corrected_rows,
    match_by_layers,
    match_by_tensors,
    other_shapes,
)
from vitconvert.parity.report import UNKNOWN, ParityReport, ReportFindings
from vitconvert.parity.sides import NOISE, matched, raised_by_user, run
from vitconvert.parity.untested import unseen_of_models
from vitconvert.parity.verification import check_dtypes, verify_checkpoint
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.sample_images import edge_images, sampled_images
from vitconvert.programs.isolation import isolated
from vitconvert.programs.taps import block_of
from vitconvert.tables.axes import Shape

Model = Checkpoint | nn.Module | Callable[..., Any]
"""A checkpoint in vitconvert's ViT, a module, or a function of images."""


def verify_model(
    tested: Model,
    against: Model,
    *,
    image_size: tuple[int, int] | None = None,
    in_channels: int | None = None,
    seed: int = 0,
    batch: int = 2,
    images: ComparedImages | None = None,
    options: ReadOptions | None = None,
    layers: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
    dtypes: Sequence[str] = ("float32", "float64"),
) -> ParityReport:
    """Compare two models, at most one of which is a checkpoint.

    A checkpoint is computed by vitconvert's ViT, which is itself compared with the checkpoint's
    own project before. Neither model is changed: copies of modules run, in eval mode.

    Args:
        tested: The model that is verified.
        against: The model that it is measured by.
        image_size, in_channels: Of the images; None: those of the checkpoint.
        seed, batch, tolerance, dtypes: As for `vitconvert.verify`.
        images: The user's, compared as well.
        options: `table` or `dialect` names the tensors of a module, so that layers are compared.
        layers: Name of a module of the user's own (the one that is tested, of two) -> name of a
            module of the other, or of vitconvert's ViT: their outputs are compared.

    Raises:
        UsageError: A model does not run on such images, outputs do not match, or an argument is
            wrong.
        ParityFailed: vitconvert's ViT does not compute what the checkpoint's own project computes.
        MissingFact: There are images of the user's, and nothing says how to prepare them.
    """
    check_dtypes(dtypes, lower=False)
    models, notes = (tested, against), []
    checkpoint = next((model for model in models if isinstance(model, Checkpoint)), None)
    if checkpoint is not None:
        proof = verify_checkpoint(checkpoint, tolerance=tolerance, briefly=True)
        proof.raise_if_failed()
        verdict = proof.summary().splitlines()[0]
        if not (proof.verified or checkpoint.table.builtin):
            verdict = "compared with this code alone: its table is your own"
        notes.append(f"vitconvert's ViT of {checkpoint.located.reference} is {verdict}")
    with isolated():
        # vitconvert's own model, of which parts can be exchanged to find causes; and the user's.
        vit = against if isinstance(against, ViT) else None
        if checkpoint is not None:
            vit = build_model(checkpoint)
        modules = [model for model in models if isinstance(model, nn.Module) and model is not vit]
        steps = None if checkpoint is None else checkpoint.preprocessing
        drawn = _draw(vit, steps, image_size, in_channels, seed=seed, batch=batch)
        match = _match(modules, vit, options or ReadOptions(), layers)

        def implementation(model: Model) -> Implementation:
            if vit is not None and (isinstance(model, Checkpoint) or model is vit):
                return of_vit(vit, name="vitconvert's ViT", taps=match.ours)
            if isinstance(model, nn.Module):
                taps = match.theirs if model is modules[0] else match.ours
                return of_module(model, name=name_of(model), taps=taps)
            assert not isinstance(model, Checkpoint)
            return own_function(model, drawn[NOISE].float())

        both = implementation(tested), implementation(against)
        differing, compared = _differing_weights(modules, vit, match)
        if vit is not None and vit.config.position_embedding == "sincos1d" and len(dtypes) > 1:
            dtypes = ("float32",)
            notes.append(
                "not compared in float64: no file holds the sinusoid, and each program "
                "rounds it differently"
            )
        sides = matched(*both, drawn, dtypes)
        found = sides.compare(tolerance)
        on_images = NO_IMAGES
        if images is not None:
            prepared = of_own_models(models, images.preprocess, max_pixels=images.max_pixels)
            on_images = compare_on_images(images, sides, prepared, tolerance=tolerance)
    departs = _by_order(found)
    before = ReportFindings(
        first_divergence=departs and _with_weights(departs, differing),
        notes=(*notes, *match.notes, *compared, *_corrections(departs, checkpoint, match)),
        not_tested=unseen_of_models((sides.tested.name, tested), (sides.reference.name, against)),
    )
    alone = "only vitconvert's ViT"
    own = [f"{s.name} (your code)" for s in (sides.tested, sides.reference) if s.vit is None]
    stored = f"; no code stored in {checkpoint.located.reference}" if checkpoint else ""
    return ParityReport(
        source=checkpoint.located.reference
        if checkpoint and tested is checkpoint
        else sides.tested.name,
        against=checkpoint.located.reference if checkpoint and against is checkpoint else "",
        reference=sides.reference.name,
        executed=f"Executed: {' and '.join(own) or alone}{stored}.",
        tolerance=tolerance,
        **vars(before + found + on_images),
    )


def _draw(
    vit: ViT | None,
    steps: Preprocessing | None,
    size: tuple[int, int] | None,
    channels: int | None,
    *,
    seed: int,
    batch: int,
) -> Mapping[str, Tensor]:
    if vit is not None:
        asked = {"image_size": size, "in_channels": channels}
        others = (n for n, value in asked.items() if value not in (None, getattr(vit.config, n)))
        refuse(others, "the checkpoint that is compared reads other images.")
        size, channels = vit.config.image_size, vit.config.in_channels
    if size is None or channels is None:
        raise UsageError(
            "Neither of the two models says which images it takes.",
            evidence={"image_size": size or "unknown", "in_channels": channels or "unknown"},
            hint="state both, as in image_size=224, in_channels=3.",
        )
    if vit is not None and vit.config.clips:
        frames = vit.config.frames
        return sampled_images(size, channels, steps, seed=seed, batch=batch, frames=frames)
    usual = sampled_images(size, channels, steps, seed=seed, batch=batch)
    edges = edge_images(size, channels, seed=seed, batch=batch)
    return {**usual, **{kind: torch.from_numpy(array) for kind, array in edges.items()}}


def _match(
    modules: Sequence[nn.Module],
    vit: ViT | None,
    options: ReadOptions,
    layers: Mapping[str, str] | None,
) -> Match:
    """Which modules of the two compute the same layers."""
    if not modules:
        if layers:
            raise UsageError("`layers` names modules of a torch module, and there is none.")
        return Match(notes=("Layers are not compared: a function does not show them.",))
    other = vit or (modules[1] if len(modules) == 2 else None)
    if layers:
        if other is None:
            raise UsageError("`layers` needs two modules, or a module and a checkpoint.")
        return match_by_layers(layers, modules[0], other)
    if vit is None:
        fact = "Layers are not compared: layers= says which modules of the two are the same."
        return Match(notes=(fact,))
    return match_by_tensors(modules[0], vit.config, options)


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


def _differing_weights(
    modules: Sequence[nn.Module], vit: ViT | None, match: Match
) -> tuple[Sequence[str], Sequence[str]]:
    """Canonical names of tensors in which a module and the ViT hold other numbers; and notes."""
    if vit is None or match.binding is None:
        return (), ()
    sizes: Mapping[str, str] = {}
    blocks = len({block_of(name) for name in match.binding.links} - {None})
    if blocks != vit.config.depth:
        sizes = {"blocks": f"{blocks}, and {vit.config.depth} in what it is compared with"}
    else:
        try:
            own = canonical_tensors(modules[0], match, vit.config)
        except NotRepresentable as error:
            return (), (f"its weights are not compared: {error.fact}",)
        except RuntimeError as error:  # one of them cannot be laid out so
            sizes = other_shapes(match, vit.config) or {"problem": str(error)}
    theirs = vit.state_dict()
    if sizes:
        no_place = () if "blocks" in sizes else theirs.keys() - match.binding.links.keys()
        raise UsageError(
            "The module has other sizes than what it is compared with.",
            evidence=dict([*sizes.items()][:3]),
            hint=_no_place(sorted(no_place))
            if no_place
            else "build it with the sizes of the checkpoint, or compare it with another.",
        )
    if lacking := sorted(theirs.keys() - own.keys()):
        return lacking, (f"the module has no tensors for {some(lacking)}",)
    differing = [name for name in theirs if not torch.equal(own[name], theirs[name])]
    if not differing:
        return (), ("all its weights are the checkpoint's, bit by bit",)
    return differing, (f"its weights are not all the checkpoint's: {some(differing)} differ",)


def _corrections(
    departs: Divergence | None, checkpoint: Checkpoint | None, match: Match
) -> tuple[str, ...]:
    """What would be stated, or typed in the user's own table, if the user's code is right."""
    tables = [checkpoint.table] if checkpoint else [match.binding.table] if match.binding else []
    if departs is None or not tables:
        return ()
    notes = []
    if departs.settings:
        stated = " ".join(f"--set {name}={value}" for name, value in departs.settings.items())
        notes.append(f"if your code is right, {stated} (in Python, overrides=) says so")
    if not tables[0].builtin:
        rows = corrected_rows(departs.cause, tables[0].section("rows"))
        notes += [f"if the mistake is in {tables[0].origin}, its row is {row}" for row in rows]
    return tuple(notes)


def _by_order(found: ReportFindings) -> Divergence | None:
    """The divergence; where the order of calls shows that a table exchanges two norms, with that.

    What enters norm2 is the layer "attn" only if the module calls norm1 before.
    """
    departs, layers = found.first_divergence, [one.layer for one in found.layers]
    if departs is None or departs.cause != UNKNOWN or "embedding" not in layers:
        return departs
    if "blocks.0.attn" in layers[: layers.index("embedding")]:
        return replace(departs, cause="blocks.0.norm1 and blocks.0.norm2 are exchanged")
    return departs


def _with_weights(divergence: Divergence, differing: Sequence[str]) -> Divergence:
    """With the tensors that differ in the block, or the part, that ends with its layer."""
    block = block_of(divergence.layer)
    if not (others := [name for name in differing if block_of(name) == block]):
        return divergence
    held = f"it holds other numbers in {some(others)}"
    known = divergence.cause != UNKNOWN
    return replace(divergence, cause=f"{divergence.cause}; {held}" if known else held)


def build_own_model(reference: str) -> Callable[..., Any]:
    """Import a model, or call what builds it without arguments. This runs the user's code.

    Args:
        reference: "module:name", where the module is found from the working directory as well. It
            names an `nn.Module`, a class or function that returns one when it is called without
            arguments, or a function that returns a function of images.

    Raises:
        UsageError: There is none, or its code raised an error.
    """
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise UsageError(
            f"{reference!r} names no model.", hint="write it as team.models:build_vit."
        )
    # As `python -m` does: a console script has its own directory there.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:  # whatever runs as it is imported
        problem = raised_by_user(f"{module_name} cannot be imported.", error)
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            problem.hint = f"{error.name}.py, or a package, is looked for here and in PYTHONPATH."
        raise problem from error
    for name in path.split("."):
        if not hasattr(found, name):
            like = nearest(name, vars(found), 3) if hasattr(found, "__dict__") else []
            raise UsageError(
                f"{module_name} has no {path!r}.",
                evidence={"names like it": ", ".join(like) or "none"},
            )
        found = getattr(found, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UsageError(f"{reference} is neither a model nor a function that builds one.")
    try:
        built = found()
    except Exception as error:  # it may be any, since the code is not ours
        raise raised_by_user(f"{reference}() raised an error.", error) from error
    if not callable(built):
        raise UsageError(
            f"{reference}() returned no model.",
            evidence={"returned": type(built).__name__, "expected": "an nn.Module or a function"},
        )
    return cast(Callable[..., Any], built)


def load_into(model: Callable[..., Any], checkpoint: Checkpoint) -> str:
    """Give a module the tensors of a checkpoint, if it has their names; what was done, in words.

    Args:
        model: A module of the user's. It is changed.
        checkpoint: Of the same spelling, or of another: then the module keeps its weights.

    Raises:
        UsageError: The module has some of the names, or other shapes.
    """
    kept = "it keeps the weights that it was built with"
    if not isinstance(model, nn.Module):
        return f"a function: {kept}"
    names, weights = model.state_dict().keys(), checkpoint.weights
    keys, prefix = [*weights.recognised.binding.shapes], weights.recognised.prefix
    if not any(prefix + key in names for key in keys):
        prefix = ""  # of a wrapper, which the module does not have
    # What plays no part in a ViT is left out if the module has no place for it.
    tensors = {
        prefix + key: weights.read(key)
        for key in keys
        if prefix + key in names or key not in checkpoint.ledger.ignored
    }
    if not names & tensors.keys():
        return f"the checkpoint has none of its tensors' names: {kept}"
    lacking, left = sorted(names - tensors.keys()), sorted(tensors.keys() - names)
    if lacking or left:
        raise UsageError(
            "The module and the checkpoint do not have the same tensors.",
            evidence={
                "file": checkpoint.located.reference,
                **({"only in the module": some(lacking)} if lacking else {}),
                **({"only in the checkpoint": some(left)} if left else {}),
            },
            hint="if the module has names of its own, `vitconvert table --module CODE:build -o "
            "mine.toml` drafts a table of them, for --table mine.toml (in Python, table=).",
        )
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        problems = [line.strip() for line in str(error).splitlines()[1:]]
        fact = "The module does not take the tensors of the checkpoint."
        raise UsageError(fact, details=problems) from None
    return f"the {len(tensors)} tensors of the checkpoint were loaded into it, all by name"


def check_loads(model: Callable[..., Any], shapes: Mapping[str, Shape], name: str) -> None:
    """Make sure that a module of the user's loads tensors, strictly.

    Args:
        model: What the user's code built.
        shapes: Of the tensors that would be written.
        name: What messages call the module.

    Raises:
        UsageError: It is a function.
        NotRepresentable: It lacks some of the tensors, has others, or has them in other shapes.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name} builds no torch module, so tensors cannot be loaded by name.")
    own = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    lacking, left = sorted(own.keys() - shapes.keys()), sorted(shapes.keys() - own.keys())
    other = [
        f"{key}: {list(shapes[key])} here, {list(own[key])} there"
        for key in shapes
        if key in own and tuple(shapes[key]) != own[key]
    ]
    if lacking or left or other:
        raise NotRepresentable(
            "The module does not load what would be written.",
            evidence={
                "module": name,
                **({"only in the module": some(lacking, 4)} if lacking else {}),
                **({"not in the module": some(left, 4)} if left else {}),
                **({"other shapes": some(other, 3)} if other else {}),
            },
            hint=_of_other_tensors(lacking, left),
        )


def _no_place(names: Sequence[str]) -> str:
    return (
        f"the class has no place for {some(names, 4)}: it needs these layers; where they are "
        "blocks, the depth of the checkpoint."
    )


def _of_other_tensors(lacking: Sequence[str], left: Sequence[str]) -> str:
    """What to do where a class has other tensors: its sizes help if the names are the same."""
    if left:
        return _no_place(left)
    if lacking:
        return (
            f"nothing is written for {some(lacking, 4)}: the checkpoint has no such layers, or "
            "the table no rows for them; where they are blocks, build it with its depth."
        )
    return "build it with the sizes of the checkpoint."
