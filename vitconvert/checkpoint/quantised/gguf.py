"""Weights of llama.cpp in blocks of 32 that share a scale: Q8_0.

Source: ggml (`ggml-quants.c`, `dequantize_row_q8_0`).
"""

from typing import TYPE_CHECKING

from vitconvert.checkpoint.quantised.weight import (
    GGUF,
    QuantisedNames,
    Read,
    Weight,
    parts_of,
    unfit,
)
from vitconvert.formats import Container

if TYPE_CHECKING:
    from torch import Tensor

_Q8_0 = 34  # bytes of a block


def open_gguf(container: Container, name: str, found: QuantisedNames) -> Weight:
    """A weight in blocks of 32 numbers and a scale."""
    (numbers,) = parts_of(container, name, found, "numbers")
    info = container.manifest[numbers]
    if info.dtype != "uint8" or len(info.shape) < 2 or info.shape[-1] != _Q8_0:
        raise unfit(container, numbers, "is not made of blocks of 32 weights")

    def compute(read: Read) -> "Tensor":
        import torch

        # A float16 factor, then 32 whole numbers: (..., B, 34) uint8 -> (..., B * 32)
        packed = read(numbers)
        scales = packed[..., :2].contiguous().view(torch.float16).float()
        return (packed[..., 2:].contiguous().view(torch.int8).float() * scales).flatten(-2)

    return Weight(
        title=GGUF,
        parts=(numbers,),
        shape=(*info.shape[:-2], info.shape[-2] * 32),
        dtype="float32",
        rounds_inputs=True,
        compute=compute,
    )
