"""Changes of a model on its way: those that are asked for, and the steps that a target needs.

Each is in the ledger, with what it does to the outputs. A plan does the same without numbers, on
tensors that have a dtype and a shape only.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.steps import Step
from vitconvert.errors import ParityFailed, UsageError
from vitconvert.facts.accounts import Ledger
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.tables.canonical import expected_shapes

if TYPE_CHECKING:
    import torch

_BATCH = 4  # images of each kind, on which a lossy step is measured


def changed(checkpoint: Checkpoint, options: WriteOptions, *, measured: bool = True) -> Checkpoint:
    """The checkpoint after all changes, each of them in its ledger.

    Args:
        checkpoint: The model.
        options: What is asked for.
        measured: Whether to measure what a cast does to the outputs.

    Raises:
        UsageError: A change makes no sense for this model.
    """
    if not options.changes:
        return checkpoint
    from vitconvert.facts import surgery

    checkpoint = _resized(checkpoint, options)
    tensors, config = checkpoint.tensors, checkpoint.config
    if options.in_channels not in (None, config.in_channels):
        after = surgery.change_channels(tensors, config, options.in_channels)
        preprocessing = _in_channels(checkpoint.preprocessing, options.in_channels)
        checkpoint = replace(_after(checkpoint, *after), preprocessing=preprocessing)
    if options.num_classes is not None:
        after = surgery.replace_head(checkpoint.tensors, checkpoint.config, options.num_classes)
        checkpoint = replace(_after(checkpoint, *after), own_labels=None)
    if options.classes is not None:
        checkpoint = _with_classes(checkpoint, options.classes)
    if checkpoint.text and (options.num_classes, options.classes) != (None, None):
        problem = "what leads from images to the space of texts was changed"
        checkpoint = replace(checkpoint, text=None, text_problem=problem)
    if options.dtype is not None:
        checkpoint = _with_dtype(checkpoint, options.dtype, measured=measured)
    return checkpoint


def without_numbers(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with tensors that have a dtype and a shape only."""
    import torch

    from vitconvert.facts.materialise import materialise

    if not checkpoint.as_read:
        return checkpoint  # changed here, and so on the meta device already
    weights = checkpoint.weights
    manifest, prefix = weights.container.manifest, weights.recognised.prefix

    def read(name: str) -> torch.Tensor:
        info = manifest[prefix + name]
        return torch.empty(info.shape, dtype=getattr(torch, info.dtype))

    with torch.device("meta"):
        tensors = materialise(replace(weights.plan, constants={}), read)
    return replace(checkpoint, tensors=tensors)


def with_effect_of_merge(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a line in its ledger on what merging an adapter did to the numbers."""
    if checkpoint.merge is None:
        return checkpoint
    ledger = checkpoint.ledger.with_changes([checkpoint.merge.measured()])
    return replace(checkpoint, ledger=ledger)


def _after(checkpoint: Checkpoint, tensors: Any, config: Any, *changes: str) -> Checkpoint:
    ledger = checkpoint.ledger.with_changes(changes)
    return replace(checkpoint, tensors=tensors, config=config, ledger=ledger)


def _resized(checkpoint: Checkpoint, options: WriteOptions) -> Checkpoint:
    from vitconvert.facts.surgery import resize

    tensors, config, descriptions = resize(
        checkpoint.tensors,
        checkpoint.config,
        image_size=options.image_size,
        patch_size=options.patch_size,
        doubt=checkpoint.resampling_doubt,
    )
    preprocessing = checkpoint.preprocessing
    if preprocessing and config.image_size != checkpoint.config.image_size:
        preprocessing = preprocessing.at_size(config.image_size)
    after = _after(checkpoint, tensors, config, *descriptions)
    return replace(after, preprocessing=preprocessing)


def _in_channels(preprocessing: Preprocessing | None, channels: int) -> Preprocessing | None:
    """Give every channel the average mean and deviation, as for grey images."""
    if preprocessing is None or channels not in (1, 3):  # image files have no such channels
        return None
    count = preprocessing.channels
    if count == channels:
        return preprocessing
    return replace(
        preprocessing,
        mean=(sum(preprocessing.mean) / count,) * channels,
        std=(sum(preprocessing.std) / count,) * channels,
        origin=f"{preprocessing.origin}, for {channels} channels",
    )


def _with_classes(checkpoint: Checkpoint, classes: Sequence[int | str]) -> Checkpoint:
    from vitconvert.facts.surgery import select_classes

    labels = checkpoint.labels
    indices = [_index(name, labels) for name in classes]
    after = _after(checkpoint, *select_classes(checkpoint.tensors, checkpoint.config, indices))
    if labels and labels.assumed:  # what is kept of them is written down, and stays an assumption
        labels = Labels(labels, origin=f"assumed: {labels.origin}")
        assumed = {**after.ledger.assumed, "labels": f"of {labels.origin}"}
        after = replace(after, ledger=replace(after.ledger, assumed=assumed))
    kept = labels and Labels((labels[index] for index in indices), origin=labels.origin)
    return replace(after, own_labels=kept)


def _index(name: int | str, labels: Labels | None) -> int:
    if isinstance(name, int) or name.isdecimal():
        return int(name)
    if labels is not None and name in labels:
        return labels.index(name)
    hint = "name classes by their index."
    if whole := next((label for label in labels or () if name in label.split(", ")), None):
        quoted = shlex.quote(f'"{whole}"')
        hint = (
            f"the whole name is {whole!r}: --classes {quoted}, where the inner quotes keep commas."
        )
    raise UsageError(
        f"No class is called {name!r}.",
        evidence={"classes": ", ".join((labels or ())[:5]) or "have no names"},
        hint=hint,
    )


def _with_dtype(checkpoint: Checkpoint, dtype: "torch.dtype", *, measured: bool) -> Checkpoint:
    from vitconvert.facts.surgery import cast

    tensors, change = cast(checkpoint.tensors, dtype)
    text = checkpoint.text and replace(checkpoint.text, dtype=dtype)
    after = replace(checkpoint, tensors=tensors, text=text)
    effect = f"; logits change by {effect_on_logits(checkpoint, after):.1e}" if measured else ""
    return replace(after, ledger=checkpoint.ledger.with_changes([change + effect]))


def with_steps(
    checkpoint: Checkpoint, steps: Sequence[Step], *, measured: bool = True
) -> Checkpoint:
    """The checkpoint after steps that a target needs, each checked or measured by numbers.

    Args:
        checkpoint: The model.
        steps: What to take, in this order.
        measured: Whether there are numbers; otherwise, only shapes follow from the step.

    Raises:
        ParityFailed: A step is exact in real arithmetic, but not in floating point here.
    """
    take = _taken if measured else _taken_in_shape
    for step in steps:
        checkpoint = take(checkpoint, step)
    return checkpoint


def _taken(before: Checkpoint, step: Step) -> Checkpoint:
    from vitconvert.comparison import TOLERANCE

    config = step.config(before.config)
    assert config is not None
    after = replace(before, tensors=step.tensors(before.tensors, before.config), config=config)
    if step.lossy:
        return replace(after, ledger=_with_effect(before, after, step))
    effect = effect_on_logits(before, after)
    if not effect <= TOLERANCE:
        raise ParityFailed(
            f"{step.name} changes the logits of these weights by more than rounding.",
            evidence={"relative difference": f"{effect:.3g}", "tolerance": TOLERANCE},
            **_why_inexact(before),
        )
    change = f"{step.name}: {step.change}; logits change by {effect:.1e}"
    return replace(after, ledger=before.ledger.with_changes([change]))


def _taken_in_shape(before: Checkpoint, step: Step) -> Checkpoint:
    import torch

    before = without_numbers(before)
    config = step.config(before.config)
    assert config is not None
    dtype = next(iter(before.tensors.values())).dtype
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        if name not in before.tensors or before.tensors[name].shape != shape
        else before.tensors[name]
        for name, shape in expected_shapes(config).items()
    }
    return _after(before, tensors, config, f"{step.name}: {step.change}")


def _why_inexact(checkpoint: Checkpoint) -> dict[str, str]:
    dtypes = {str(t.dtype).removeprefix("torch.") for t in checkpoint.tensors.values()}
    if half := sorted(dtypes & {"float16", "bfloat16"}):
        return {
            "meaning": f"The weights are {' and '.join(half)}, so the sums are rounded to that.",
            "hint": "nothing was written. --dtype float32 avoids that rounding.",
        }
    return {
        "meaning": "A matrix that the step divides by is nearly singular.",
        "hint": "nothing was written. Choose a target that needs no such step.",
    }


def effect_on_logits(before: Checkpoint, after: Checkpoint) -> float:
    """Largest difference of the outputs for two random images, over the largest output.

    Both are computed in float32 on a CPU, from the weights as they are. Outputs that are gone
    afterwards are not compared.
    """
    import torch

    from vitconvert.comparison import relative_difference
    from vitconvert.programs.opening import random_images

    images = random_images(before.config)
    with torch.inference_mode():
        old, new = (build_model(c, dtype=torch.float32)(images).double() for c in (before, after))
    if new.ndim > old.ndim:  # all tokens, of which the first was pooled
        new = new[:, 0]
    return relative_difference(new, old[:, : new.shape[1]])


def _with_effect(before: Checkpoint, after: Checkpoint, step: Step) -> Ledger:
    """The ledger with a lossy step and its largest effect, absolute and relative, by images."""
    effects = measured_effects(before, after)
    texts = [f"{step.name} (lossy): {step.change}"]
    for effect in effects:
        absolute, relative = (
            "no finite number" if effect[name] is None else f"{effect[name]:.1e}"
            for name in ("absolute", "relative")
        )
        texts.append(
            f"{step.name}: on {effect['images']}, outputs change by {absolute} at most (relative "
            f"{relative}), argmax kept in {effect['argmax_kept']} of {effect['rows']}"
        )
    measured = ({"step": step.name, **effect} for effect in effects)
    ledger = before.ledger.with_changes(texts)
    return replace(ledger, measured=(*ledger.measured, *measured))


def measured_effects(before: Checkpoint, after: Checkpoint) -> list[dict[str, Any]]:
    """How far two checkpoints are apart on noise and on an image.

    Both are computed by vitconvert's ViT in float32 on a CPU, from the weights as they are.

    Returns:
        For each kind of images, the largest difference (`absolute`), the same over the largest
        output of `before` (`relative`), and in how many of `rows` the largest entry stayed
        (`argmax_kept`). None stands for a number that is not finite.
    """
    import torch

    from vitconvert.comparison import compare_outputs
    from vitconvert.preprocessing.sample_images import sampled_images

    config = before.config
    size, channels, taken = config.image_size, config.in_channels, before.preprocessing
    images = sampled_images(size, channels, taken, seed=0, batch=_BATCH)
    old, new = (build_model(each, dtype=torch.float32) for each in (before, after))
    effects = []
    for kind, batch in images.items():
        with torch.inference_mode():
            outputs = (new(batch.float()), old(batch.float()))
        found = compare_outputs(*outputs, images=kind, dtype="float32", tolerance=0.0)
        sizes = {"absolute": found.absolute, "relative": found.relative}
        finite = {name: value if math.isfinite(value) else None for name, value in sizes.items()}
        effects.append({"images": kind, **finite, "argmax_kept": found.agreed, "rows": found.rows})
    return effects
