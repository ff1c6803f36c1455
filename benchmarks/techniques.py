"""What each technique of the fast model is worth: its time without it, over its time with all.

    python -m benchmarks.techniques [--rounds 5] [--threads N] [--quick]

One model of random weights answers in turn with all techniques and without each of them, round
after round; a ratio compares two answers of the same round. Memory that is kept from batch to
batch is not among them: a process that has learned to keep it cannot forget it.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.inference import turn
from benchmarks.measuring import as_figures, origin, parser_of, ratios, spread, table
from benchmarks.peers import Answer, Setting, build_fast, write_weights
from vitconvert.model import fast
from vitconvert.model.fast import FastLinear, FastViT

SIZES = ("tiny", "base")
BATCHES = (1, 32)
WITH_ALL = "all of them"
# How to do without each: as torch, or as the usual model does it.
WITHOUT = {
    WITH_ALL: nullcontext(),
    "linear layers by oneDNN": patch.object(fast, "_DTYPES", ()),
    "activations in the same pass": patch.object(fast, "_POST_OPS", {}),
    "the last block for pooled tokens": patch.object(FastViT, "_pooled_tokens", None),
    "weights in oneDNN's own order": patch.object(
        FastLinear, "_ordered_weight", lambda linear: linear.weight
    ),
    "large batches in parts": patch.object(fast, "_AT_ONCE", sys.maxsize),
}

Seconds = dict[str, list[float]]  # without each technique, one for each round


def main() -> None:
    parser = parser_of("techniques", __doc__, 5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: all cores)")
    parser.add_argument("--quick", action="store_true", help="tiny alone, and small batches")
    options = parser.parse_args()
    if min(options.rounds, options.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    torch.set_num_threads(options.threads)
    sizes, batches = (("tiny",), (1, 9)) if options.quick else (SIZES, BATCHES)
    found = {}
    for size in sizes:
        model = _model(f"vit_{size}_patch16_224", options.threads)
        for batch in batches:
            images = torch.rand(batch, 3, 224, 224)
            found[f"{size}, {batch}"] = measure(model, images, options.rounds)
    show = as_figures("techniques", ("torch",), seconds=found)
    print(show if options.json else as_markdown(found, options.threads))


def _model(architecture: str, threads: int) -> Answer:
    with tempfile.TemporaryDirectory() as name:
        setting = Setting(
            folder=Path(name),
            architecture=architecture,
            device="cpu",
            dtype="float32",
            threads=threads,
        )
        write_weights(setting)
        return build_fast(setting)


@torch.inference_mode()
def measure(model: Answer, images: Tensor, rounds: int) -> Seconds:
    """One batch without each technique, in turn, as often as there are rounds."""
    seconds: Seconds = {technique: [] for technique in WITHOUT}
    for _ in range(rounds):
        for technique, absent in WITHOUT.items():
            with absent:
                seconds[technique].append(turn(model, images))
    return seconds


def as_markdown(found: Mapping[str, Seconds], threads: int) -> str:
    """The table, and what a reader needs to judge it."""
    rows = (
        [
            technique,
            *(spread(ratios(case[technique], case[WITH_ALL])) for case in found.values()),
        ]
        for technique in WITHOUT
        if technique != WITH_ALL
    )
    rounds = len(next(iter(found.values()))[WITH_ALL])
    return "\n".join(
        [
            f"Time without each technique relative to the time with all, float32, {threads}"
            f" thread{'s' * (threads > 1)}. Median (smallest..largest) of {rounds} rounds.",
            "",
            table(["without", *found], rows),
            "",
            *origin("techniques", ("torch",)),
        ]
    )


if __name__ == "__main__":
    main()
