"""Quantised weights: the file of weights that they stand for.

bitsandbytes, torchao, llama.cpp and others keep a weight as small numbers, with scales. Headers,
and the few words that say how a weight was packed, are read and checked first; a weight is computed
when it is read. What comes out is the quantised model's weights, not those that it was made from.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from vitconvert.checkpoint.quantised.bitsandbytes import open_four_bit, open_rows
from vitconvert.checkpoint.quantised.scaled import open_scaled, widened
from vitconvert.checkpoint.quantised.torchao import open_torchao, said_of_all
from vitconvert.checkpoint.quantised.weight import (
    FOUR_BIT,
    GGUF,
    ROWS,
    SCALED,
    TORCHAO,
    QuantisedNames,
    Weight,
    open_gguf,
    quantised_names,
    unfit,
)
from vitconvert.documents import JsonObject
from vitconvert.errors import UsageError
from vitconvert.facts.accounts import DEQUANTISED
from vitconvert.formats import FLOATS_OF_8_BITS, Container, TensorInfo
from vitconvert.tables.others import COMFY_MARK
from vitconvert.tables.parts import FoundViT

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = ("float32", "bfloat16")  # that quantised weights are computed in


def check_unscaled(
    container: Container, weights: Mapping[str, Weight], used: Collection[str]
) -> None:
    """Refuse a matrix of 8 bits without a scale, where the others have scales.

    ComfyUI takes 1 for a scale that is not there (comfy/ops.py, `scaled_fp8_ops`).

    Raises:
        TensorMismatch: There is one.
    """
    scaled = [name for name in used if name in weights]
    if any(part.endswith(".scale_weight") for name in scaled for part in weights[name].parts):
        return
    manifest = container.manifest
    for name in used:
        bare = name not in weights and manifest[name].dtype in FLOATS_OF_8_BITS
        if bare and scaled and len(manifest[name].shape) > 1:
            raise unfit(container, name, f"has no scale, as {scaled[0]!r} has")


def dequantised(
    container: Container, dtype: str, stated: JsonObject | None = None
) -> tuple[Container, Mapping[str, Weight]]:
    """The file of weights that a file of quantised ones stands for, and these weights by name.

    Args:
        container: The file; no more than the words on how a weight is packed is read of it.
        dtype: "float32" or "bfloat16".
        stated: The `quantization_config` of config.json.

    Raises:
        UsageError: There is no such dtype.
        TensorMismatch: A weight lacks a part, or its parts do not fit each other.
        CorruptFile: What says how it is packed cannot be read.
    """
    import torch

    if dtype not in _DTYPES:
        raise UsageError(
            f"Quantised weights are not computed in {dtype}.",
            evidence={"file": container.path},
            hint=f"choose --dtype {' or '.join(_DTYPES)}.",
        )
    said = functools.cache(partial(said_of_all, container))  # torchao's words, in a header: once
    openers: Mapping[str, Callable[[Container, str, QuantisedNames], Weight]] = {
        ROWS: open_rows,
        FOUR_BIT: open_four_bit,
        GGUF: open_gguf,
        SCALED: partial(open_scaled, stated or {}),
        TORCHAO: partial(open_torchao, said),
    }
    weights = {}
    for name, several in quantised_names(container.manifest).items():
        if len(several) > 1:
            raise unfit(container, name, "is marked as quantised in two ways")
        weights[name] = openers[several[0].scheme](container, name, several[0])
    of = {part: name for name, weight in weights.items() for part in weight.parts}
    manifest = {}
    for key, info in container.manifest.items():
        if key.rpartition(".")[2] == COMFY_MARK:
            continue
        whole = weights.get(of.get(key, ""))
        manifest[of.get(key, key)] = TensorInfo(dtype=dtype, shape=whole.shape) if whole else info

    def read(name: str) -> "Tensor":
        if name not in weights:
            return container.read(name)
        exact = weights[name].compute(container.read)
        # First in the library's own dtype, which its programs compute with.
        return exact.to(getattr(torch, weights[name].dtype)).to(getattr(torch, dtype))

    places = {name: place for name, place in container.places.items() if name not in of}
    opened = replace(container, manifest=manifest, places=places, reader=read)
    return widened(opened, dtype), weights


def describe_changes(part: FoundViT, weights: Mapping[str, Weight], dtype: str) -> tuple[str, ...]:
    """What dequantising did to the weights of a ViT, in a sentence; none if it has none of them."""
    used = [weights[name] for name in part.names.values() if name in weights]
    if not used:
        return ()
    titles = " and ".join(sorted({weight.title for weight in used}))
    count = "1 weight" if len(used) == 1 else f"{len(used)} weights"
    change = (
        f"{DEQUANTISED} {count} ({titles}) to {dtype}: the numbers are the quantised model's, not "
        "those that it was made from"
    )
    if any(weight.rounds_inputs for weight in used):
        change += "; the library also rounds their inputs, which is not done here"
    return (change,)
