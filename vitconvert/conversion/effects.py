"""What a lossy step does to the outputs, in numbers."""

import math
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.facts.accounts import Ledger

if TYPE_CHECKING:
    from vitconvert.facts.gauges import Gauge

_BATCH = 4  # images of each kind


def with_effect(before: Checkpoint, after: Checkpoint, gauge: "Gauge") -> Ledger:
    """The ledger with a lossy step and its largest effect, absolute and relative, by images."""
    from dataclasses import replace

    effects = measured_effects(before, after)
    texts = [f"{gauge.name} (lossy): {gauge.change}", *map(_in_words, effects)]
    ledger = before.ledger.with_changes([texts[0], *(f"{gauge.name}: {t}" for t in texts[1:])])
    measured = ({"step": gauge.name, **effect} for effect in effects)
    return replace(ledger, measured=(*ledger.measured, *measured))


def measured_effects(before: Checkpoint, after: Checkpoint) -> list[dict[str, Any]]:
    """How far two checkpoints are apart on noise and on a photograph.

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


def _in_words(effect: dict[str, Any]) -> str:
    absolute, relative = (
        "no finite number" if effect[name] is None else f"{effect[name]:.1e}"
        for name in ("absolute", "relative")
    )
    return (
        f"on {effect['images']}, outputs change by {absolute} at most (relative {relative}), "
        f"argmax kept in {effect['argmax_kept']} of {effect['rows']}"
    )
