"""A file with quantised weights, as the file of weights that they stand for.

bitsandbytes, torchao and llama.cpp keep a weight as small numbers, with scales. Headers, and the
few words that say how a weight was packed, are read and proved first; a weight is computed when it
is read. What comes out is the quantised model's weights, not those that it was made from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint.quantised import torchao
from vitconvert.checkpoint.quantised.bitsandbytes import open_four_bit, open_rows
from vitconvert.checkpoint.quantised.gguf import open_gguf
from vitconvert.checkpoint.quantised.weight import (
    FOUR_BIT,
    GGUF,
    ROWS,
    TORCHAO,
    QuantisedNames,
    Weight,
    quantised_names,
    unfit,
)
from vitconvert.errors import UsageError
from vitconvert.facts.accounts import DEQUANTISED
from vitconvert.formats import Container, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DTYPES", "Dequantised", "Weight", "dequantised"]

DTYPES = ("float32", "bfloat16")
"""The dtypes of `--dtype` that quantised weights are computed in."""


@dataclass(frozen=True, kw_only=True)
class Dequantised:
    """A file with its quantised weights computed.

    Attributes:
        container: The file, with these weights in place of their parts.
        weights: By name.
        dtype: What they are given in.
    """

    container: Container
    weights: Mapping[str, Weight]
    dtype: str

    def description(self, names: Mapping[str, str]) -> str:
        """One sentence on the tensors that are used: name in the dialect -> name in the file."""
        used = [self.weights[name] for name in names.values() if name in self.weights]
        titles = " and ".join(sorted({weight.title for weight in used}))
        count = "1 weight" if len(used) == 1 else f"{len(used)} weights"
        text = (
            f"{DEQUANTISED} {count} ({titles}) to {self.dtype}: the numbers are the quantised "
            "model's, not those that it was made from"
        )
        if any(weight.rounds_inputs for weight in used):
            text += "; the library also rounds what they are multiplied with, which is not done"
        return text if used else ""


_OPEN: Mapping[str, Callable[[Container, str, QuantisedNames], Weight]] = {
    ROWS: open_rows,
    FOUR_BIT: open_four_bit,
    GGUF: open_gguf,
}


def dequantised(container: Container, dtype: str) -> Dequantised:
    """The file of weights that a file of quantised ones stands for.

    Args:
        container: The file; no more than the words on how a weight is packed is read of it.
        dtype: One of `DTYPES`.

    Raises:
        UsageError: There is no such dtype.
        TensorMismatch: A weight lacks a part, or its parts do not fit each other.
        CorruptFile: What says how it is packed cannot be read.
    """
    if dtype not in DTYPES:
        raise UsageError(
            f"Quantised weights are not computed in {dtype}.",
            evidence={"file": container.path},
            hint=f"choose --dtype {' or '.join(DTYPES)}.",
        )
    weights, openers = {}, {**_OPEN, TORCHAO: torchao.opener(container)}
    for name, several in quantised_names(container.manifest).items():
        if len(several) > 1:
            raise unfit(container, name, "is marked as quantised in two ways")
        weights[name] = openers[several[0].scheme](container, name, several[0])
    laid = _laid_over(container, weights, dtype)
    return Dequantised(container=laid, weights=weights, dtype=dtype)


def _laid_over(container: Container, weights: Mapping[str, Weight], dtype: str) -> Container:
    import torch

    of = {part: name for name, weight in weights.items() for part in weight.parts}
    manifest = {}
    for key, info in container.manifest.items():
        name = of.get(key, key)
        shape = weights[name].shape if key in of else info.shape
        manifest[name] = TensorInfo(dtype=dtype if key in of else info.dtype, shape=shape)

    def read(name: str) -> "Tensor":
        if name not in weights:
            return container.read(name)
        exact = weights[name].compute(container.read)
        # First in the library's own dtype, which its programs compute with.
        return exact.to(getattr(torch, weights[name].dtype)).to(getattr(torch, dtype))

    return replace(
        container,
        manifest=manifest,
        places={name: place for name, place in container.places.items() if name not in of},
        reader=read,
    )
