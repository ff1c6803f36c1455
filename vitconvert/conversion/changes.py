"""Requested changes to a model on its way, and their effect on the logits."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.conversion.effects import with_effect
from vitconvert.errors import ParityFailed, UsageError
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing

if TYPE_CHECKING:
    import torch

    from vitconvert.facts.gauges import Gauge


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What to change; None leaves it unchanged.

    Attributes:
        image_size: Resample the positions to this size.
        patch_size: Resize the kernel of the patches, and resample the positions.
        in_channels: Adapt to images of this many channels.
        num_classes: A new head of zeros for this many classes; 0 removes the head.
        classes: Keep these classes of the head, by index or by name, in this order.
        dtype: Cast the weights.
    """

    image_size: int | tuple[int, int] | None = None
    patch_size: int | tuple[int, int] | None = None
    in_channels: int | None = None
    num_classes: int | None = None
    classes: Sequence[int | str] | None = None
    dtype: "torch.dtype | None" = None


NO_CHANGES = Changes()


def changed(checkpoint: Checkpoint, changes: Changes) -> Checkpoint:
    """The checkpoint after all changes, each of them in its ledger.

    Raises:
        UsageError: A change makes no sense for this model.
    """
    if changes == NO_CHANGES:
        return checkpoint
    if changes.num_classes is not None and changes.classes is not None:
        raise UsageError("num_classes replaces the head, classes keeps a part: give only one.")
    checkpoint = _resized(checkpoint, changes)
    if changes.in_channels not in (None, checkpoint.config.in_channels):
        checkpoint = _with_channels(checkpoint, changes.in_channels)
    if changes.num_classes is not None:
        checkpoint = _with_head(checkpoint, changes.num_classes)
    if changes.classes is not None:
        checkpoint = _with_classes(checkpoint, changes.classes)
    if checkpoint.text and (changes.num_classes, changes.classes) != (None, None):
        problem = "what leads from images to the space of texts was changed"
        checkpoint = replace(checkpoint, text=None, text_problem=problem)
    if changes.dtype is not None:
        checkpoint = _with_dtype(checkpoint, changes.dtype)
    return checkpoint


def with_effect_of_merge(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a line in its ledger on what merging an adapter did to the numbers."""
    if checkpoint.merge is None:
        return checkpoint
    ledger = checkpoint.ledger.with_changes([checkpoint.merge.measured()])
    return replace(checkpoint, ledger=ledger)


def _resized(checkpoint: Checkpoint, changes: Changes) -> Checkpoint:
    from vitconvert.facts.surgery import resize

    tensors, config, descriptions = resize(
        checkpoint.tensors,
        checkpoint.config,
        image_size=changes.image_size,
        patch_size=changes.patch_size,
        doubt=checkpoint.resampling_doubt,
    )
    preprocessing = checkpoint.preprocessing
    if preprocessing and config.image_size != checkpoint.config.image_size:
        preprocessing = preprocessing.at_size(config.image_size)
    return replace(
        checkpoint,
        tensors=tensors,
        config=config,
        ledger=checkpoint.ledger.with_changes(descriptions),
        preprocessing=preprocessing,
    )


def _with_channels(checkpoint: Checkpoint, channels: int) -> Checkpoint:
    from vitconvert.facts.surgery import change_channels

    tensors, config, change = change_channels(checkpoint.tensors, checkpoint.config, channels)
    return replace(
        checkpoint,
        tensors=tensors,
        config=config,
        ledger=checkpoint.ledger.with_changes([change]),
        preprocessing=_in_channels(checkpoint.preprocessing, channels),
    )


def _in_channels(preprocessing: Preprocessing | None, channels: int) -> Preprocessing | None:
    """Give every channel the average mean and deviation, as for grey photographs."""
    if preprocessing is None or channels not in (1, 3):  # photographs have no such channels
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


def _with_head(checkpoint: Checkpoint, num_classes: int) -> Checkpoint:
    from vitconvert.facts.surgery import replace_head

    tensors, config, change = replace_head(checkpoint.tensors, checkpoint.config, num_classes)
    ledger = checkpoint.ledger.with_changes([change])
    return replace(checkpoint, tensors=tensors, config=config, ledger=ledger, own_labels=None)


def _with_classes(checkpoint: Checkpoint, classes: Sequence[int | str]) -> Checkpoint:
    from vitconvert.facts.surgery import select_classes

    labels = checkpoint.labels
    indices = [_index(name, labels) for name in classes]
    tensors, config, change = select_classes(checkpoint.tensors, checkpoint.config, indices)
    ledger = checkpoint.ledger.with_changes([change])
    if labels and labels.assumed:  # what is kept of them is written down, and stays an assumption
        labels = Labels(labels, origin=f"assumed: {labels.origin}")
        ledger = replace(ledger, assumed={**ledger.assumed, "labels": f"of {labels.origin}"})
    return replace(
        checkpoint,
        tensors=tensors,
        config=config,
        ledger=ledger,
        own_labels=labels and Labels((labels[index] for index in indices), origin=labels.origin),
    )


def _index(name: int | str, labels: Labels | None) -> int:
    if isinstance(name, int) or name.isdecimal():
        return int(name)
    if labels is None or name not in labels:
        raise UsageError(
            f"No class is called {name!r}.",
            evidence={"classes": ", ".join((labels or ())[:5]) or "have no names"},
            hint=_hint_on_class(name, labels or ()),
        )
    return labels.index(name)


def _hint_on_class(name: str, labels: Sequence[str]) -> str:
    whole = next((label for label in labels if name in label.split(", ")), None)
    if whole is None:
        return "name classes by their index."
    quoted = shlex.quote(f'"{whole}"')
    return f"the whole name is {whole!r}: --classes {quoted}, where the inner quotes keep commas."


def _with_dtype(checkpoint: Checkpoint, dtype: "torch.dtype") -> Checkpoint:
    from vitconvert.facts.surgery import cast

    tensors, change = cast(checkpoint.tensors, dtype)
    text = checkpoint.text and replace(checkpoint.text, dtype=dtype)
    after = replace(checkpoint, tensors=tensors, text=text)
    effect = effect_on_logits(checkpoint, after)
    ledger = checkpoint.ledger.with_changes([f"{change}; logits change by {effect:.1e}"])
    return replace(after, ledger=ledger)


def gauged(checkpoint: Checkpoint, gauges: Sequence["Gauge"]) -> Checkpoint:
    """The checkpoint after steps that a target needs, each checked or measured by numbers.

    Raises:
        ParityFailed: A step is exact in real arithmetic, but not in floating point here.
    """
    from vitconvert.comparison import TOLERANCE

    for gauge in gauges:
        config = gauge.config(checkpoint.config)
        assert config is not None
        tensors = gauge.tensors(checkpoint.tensors, checkpoint.config)
        after = replace(checkpoint, tensors=tensors, config=config)
        if gauge.lossy:
            checkpoint = replace(after, ledger=with_effect(checkpoint, after, gauge))
            continue
        effect = effect_on_logits(checkpoint, after)
        if not effect <= TOLERANCE:
            raise ParityFailed(
                f"{gauge.name} changes the logits of these weights by more than rounding.",
                evidence={"relative difference": f"{effect:.3g}", "tolerance": TOLERANCE},
                **_why_inexact(checkpoint),
            )
        change = f"{gauge.name}: {gauge.change}; logits change by {effect:.1e}"
        checkpoint = replace(after, ledger=checkpoint.ledger.with_changes([change]))
    return checkpoint


def _why_inexact(checkpoint: Checkpoint) -> dict[str, str]:
    """Why a step is inexact, and what to do."""
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

    Both are computed in float32 on a CPU, from the weights as they are. Of outputs that are gone
    afterwards, nothing is said.
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
