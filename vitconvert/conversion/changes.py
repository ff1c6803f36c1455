"""Changes of a model on its way: those that are asked for, and the steps that a target needs.

Each is in the ledger, with what it does to the outputs. A plan does the same without numbers, on
tensors that have a dtype and a shape only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.weights import Explained
from vitconvert.config import ViTConfig
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.steps import Step
from vitconvert.documents import JsonObject
from vitconvert.errors import ParityFailed, UsageError, as_typed
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.tables.canonical import expected_shapes

if TYPE_CHECKING:
    import torch

    from vitconvert.comparison import Comparison

_BATCH = 4  # images of each kind, on which a lossy step is measured


def changed(checkpoint: Checkpoint, options: WriteOptions, *, measured: bool) -> Checkpoint:
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
    from vitconvert.model.resizing import resize

    sizes = {"image_size": options.image_size, "patch_size": options.patch_size}
    tensors, config, texts = resize(
        checkpoint.tensors, checkpoint.config, **sizes, doubt=checkpoint.resampling_doubt
    )
    labels, text, problem = checkpoint.own_labels, checkpoint.text, checkpoint.text_problem
    ledger = checkpoint.ledger
    channels = options.in_channels
    if channels is not None and channels != config.in_channels:
        tensors, config, change = surgery.change_channels(tensors, config, channels)
        texts = (*texts, change)
    if options.num_classes is not None:
        tensors, config, change = surgery.replace_head(tensors, config, options.num_classes)
        texts, labels = (*texts, change), None
    if options.classes is not None:
        named = checkpoint.labels
        indices = [_index(name, named) for name in options.classes]
        tensors, config, change = surgery.select_classes(tensors, config, indices)
        texts, origin = (*texts, change), named.origin if named else ""
        if named and named.assumed:  # what is kept of them is written down, and stays an assumption
            origin = f"assumed: {origin}"
            ledger = replace(ledger, assumed={**ledger.assumed, "labels": f"of {origin}"})
        labels = Labels((named[index] for index in indices), origin=origin) if named else None
    if text and (options.num_classes is not None or options.classes is not None):
        text, problem = None, "what leads from images to the space of texts was changed"
    after = replace(
        checkpoint,
        tensors=tensors,
        config=config,
        preprocessing=preprocessing_for(checkpoint.preprocessing, checkpoint.config, config),
        own_labels=labels,
        text=text,
        text_problem=problem,
        ledger=ledger.with_changes(texts),
    )
    return after if options.dtype is None else _cast(after, options.dtype, measured=measured)


def preprocessing_for(
    known: Preprocessing | None, before: ViTConfig, after: ViTConfig
) -> Preprocessing | None:
    """How an image becomes the input of a model of other sizes or channels; None: not known."""
    if known and after.image_size != before.image_size:
        known = known.at_size(after.image_size)
    channels = after.in_channels
    if known is None or channels == before.in_channels:
        return known
    if channels not in (1, 3):
        return None  # image files have no such channels
    count = known.channels
    if count == channels:
        return known
    return replace(  # every channel has the average, as for grey images
        known,
        mean=(sum(known.mean) / count,) * channels,
        std=(sum(known.std) / count,) * channels,
        origin=f"{known.origin}, for {channels} channels",
    )


def at_size(checkpoint: Checkpoint, image_size: tuple[int, int] | None) -> Checkpoint:
    """The checkpoint with its positions resampled, and images prepared, for a size; None: as it is.

    Raises:
        UsageError, ConflictingFact, MissingFact: As `model.resizing.resize`.
    """
    return changed(checkpoint, WriteOptions(image_size=image_size), measured=False)


def _index(name: int | str, labels: Labels | None) -> int:
    if isinstance(name, int) or name.isdecimal():
        return int(name)
    if labels is not None and name in labels:
        return labels.index(name)
    hint = "name classes by their index."
    if whole := next((label for label in labels or () if name in label.split(", ")), None):
        quoted = as_typed(f'"{whole}"')
        hint = (
            f"the whole name is {whole!r}: --classes {quoted}, where the inner quotes keep commas."
        )
    raise UsageError(
        f"No class is called {name!r}.",
        evidence={"classes": ", ".join((labels or ())[:5]) or "have no names"},
        hint=hint,
    )


def _cast(checkpoint: Checkpoint, dtype: "torch.dtype", *, measured: bool) -> Checkpoint:
    from vitconvert.facts.surgery import cast

    tensors, change = cast(checkpoint.tensors, dtype)
    text = checkpoint.text and replace(checkpoint.text, dtype=dtype)
    after = replace(checkpoint, tensors=tensors, text=text)
    if measured:
        change += f"; logits change by {effect_on_noise(checkpoint, after).relative:.1e}"
    return replace(after, ledger=checkpoint.ledger.with_changes([change]))


def without_numbers(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with tensors that have a dtype and a shape only."""
    if not checkpoint.as_read:
        return checkpoint  # changed here, and so on the meta device already
    return replace(checkpoint, tensors=empty_tensors(checkpoint.weights))


def empty_tensors(file: Explained) -> "dict[str, torch.Tensor]":
    """The tensors of a file under our names, which have a dtype and a shape only."""
    import torch

    from vitconvert.facts.materialise import materialise

    def read(key: str) -> torch.Tensor:
        info = file.container.manifest[file.prefix + key]
        return torch.empty(info.shape, dtype=getattr(torch, info.dtype))

    # Constants are compared by their values, and there are none.
    with torch.device("meta"):
        return materialise(replace(file.plan, constants={}), read)


def with_steps(checkpoint: Checkpoint, steps: Sequence[Step], *, measured: bool) -> Checkpoint:
    """The checkpoint after steps that a target needs, each checked or measured by numbers.

    Args:
        checkpoint: The model.
        steps: What to take, in this order.
        measured: Whether there are numbers; otherwise, only shapes follow from the step.

    Raises:
        ParityFailed: A step is exact in real arithmetic, but not in floating point here.
    """
    for step in steps:
        checkpoint = _taken(checkpoint, step) if measured else _taken_in_shape(checkpoint, step)
    return checkpoint


def _taken(before: Checkpoint, step: Step) -> Checkpoint:
    tensors = step.tensors(before.tensors, before.config)
    after = replace(before, tensors=tensors, config=step.becomes(before.config))
    if step.lossy:
        effects = effects_of(before, after)
        ledger = before.ledger.with_changes(_sentences(step, effects))
        told = (_told(step, effect) for effect in effects)
        return replace(after, ledger=replace(ledger, measured=(*ledger.measured, *told)))
    effect = effect_on_noise(before, after)
    if not effect.ok:
        meaning = "A matrix that the step divides by is nearly singular."
        hint = "nothing was written. Choose a target that needs no such step."
        dtypes = {str(t.dtype).removeprefix("torch.") for t in before.tensors.values()}
        if half := sorted(dtypes & {"float16", "bfloat16"}):
            meaning = f"The weights are {' and '.join(half)}, so the sums are rounded to that."
            hint = "nothing was written. --dtype float32 avoids that rounding."
        raise ParityFailed(
            f"{step.name} changes the logits of these weights by more than rounding.",
            evidence={
                "relative difference": f"{effect.relative:.3g}",
                "tolerance": effect.tolerance,
            },
            meaning=meaning,
            hint=hint,
        )
    compared = "what is left of the outputs changes" if step.narrows else "logits change"
    change = f"{step.name}: {step.change}; {compared} by {effect.relative:.1e}"
    return replace(after, ledger=before.ledger.with_changes([change]))


def _taken_in_shape(before: Checkpoint, step: Step) -> Checkpoint:
    import torch

    before = without_numbers(before)
    config, dtype = step.becomes(before.config), next(iter(before.tensors.values())).dtype
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        if name not in before.tensors or before.tensors[name].shape != shape
        else before.tensors[name]
        for name, shape in expected_shapes(config).items()
    }
    ledger = before.ledger.with_changes([f"{step.name}: {step.change}"])
    return replace(before, tensors=tensors, config=config, ledger=ledger)


def effect_on_noise(before: Checkpoint, after: Checkpoint) -> "Comparison":
    """How far two checkpoints are apart on two random images."""
    from vitconvert.programs.opening import random_images

    (found,) = _compared(before, after, {"noise": random_images(before.config)})
    return found


def effects_of(before: Checkpoint, after: Checkpoint) -> "list[Comparison]":
    """How far two checkpoints are apart on noise and on a photograph."""
    from vitconvert.preprocessing.sample_images import sampled_images

    config, taken = before.config, before.preprocessing
    size, channels = config.image_size, config.in_channels
    drawn = sampled_images(size, channels, taken, seed=0, batch=_BATCH, frames=config.frames)
    return _compared(before, after, drawn)


def _compared(
    before: Checkpoint, after: Checkpoint, images: "Mapping[str, torch.Tensor]"
) -> "list[Comparison]":
    """What vitconvert's ViT computes of two checkpoints, in float32 on a CPU.

    Outputs that are gone afterwards are not compared.
    """
    import torch

    from vitconvert.comparison import TOLERANCE, compare_outputs

    models = [build_model(each, dtype=torch.float32) for each in (before, after)]
    found = []
    for kind, batch in images.items():
        with torch.inference_mode():
            old, new = (model(batch.float()).double() for model in models)
        if new.ndim > old.ndim:  # all tokens, of which the first was pooled
            new = new[:, 0]
        kept = old[:, : new.shape[1]]
        compared = compare_outputs(new, kept, images=kind, dtype="float32", tolerance=TOLERANCE)
        found.append(compared)
    return found


def _sentences(step: Step, effects: "Sequence[Comparison]") -> list[str]:
    """A lossy step and its largest effect, absolute and relative, by images."""
    texts = [f"{step.name} (lossy): {step.change}"]
    for effect in effects:
        absolute, relative = (
            f"{size:.1e}" if math.isfinite(size) else "no finite number"
            for size in (effect.absolute, effect.relative)
        )
        texts.append(
            f"{step.name}: on {effect.images}, outputs change by {absolute} at most (relative "
            f"{relative}), argmax kept in {effect.agreed} of {effect.rows}"
        )
    return texts


def _told(step: Step, effect: "Comparison") -> JsonObject:
    """The effect of a step, in JSON, which has no number that is not finite."""
    return {
        "step": step.name,
        "images": effect.images,
        "absolute": effect.absolute if math.isfinite(effect.absolute) else None,
        "relative": effect.relative if math.isfinite(effect.relative) else None,
        "argmax_kept": effect.agreed,
        "rows": effect.rows,
    }
