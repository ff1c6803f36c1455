"""The arithmetic of quantised weights: small numbers and scales become the weights they stand for.

Each sum is done as the library does it, in float32 and in its order, so that the bits are the same.

Sources: bitsandbytes 0.50 (`_ops.py`, `backends/default/ops.py`, `functional.py`); torchao 0.18
(`quantization/quant_primitives.py`, `dequantize_affine` and `_dequantize_affine_float8`); ggml
(`ggml-quants.c`, `dequantize_row_q8_0`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_PER_STEP = 7.874015718698502e-3  # 1 / 127, as bitsandbytes writes it: it multiplies


def whole_rows(numbers: Tensor, largest: Tensor) -> Tensor:
    """bitsandbytes' int8: -127 to 127 of the largest number of each row. (O, I), (O,) -> (O, I)."""
    return numbers.float() * largest.reshape(-1, 1) * _PER_STEP


def four_bit(
    packed: Tensor, scales: Tensor, values: Tensor, block: int, shape: Sequence[int]
) -> Tensor:
    """bitsandbytes' nf4 and fp4: two places in a list of 16 values to a byte, high bits first.

    Args:
        packed: The bytes; the dtype does not matter.
        scales: One factor for each run of `block` weights.
        values: The list.
        block: Weights that share a factor.
        shape: Of the result; the last half byte may be left over.
    """
    pairs = packed.contiguous().view(torch.uint8).flatten().int()
    places = torch.stack([pairs >> 4, pairs & 15], dim=1).flatten()
    count = torch.Size(shape).numel()
    return (values[places[:count]] * _spread(scales, block, count)).reshape(tuple(shape))


def eight_bit(places: Tensor, scales: Tensor, values: Tensor, block: int, offset: float) -> Tensor:
    """bitsandbytes' scales that are quantised themselves: places in a list of 256 values."""
    return values[places.int()] * _spread(scales, block, places.numel()) + offset


def _spread(scales: Tensor, block: int, count: int) -> Tensor:
    return scales.repeat_interleave(block)[:count]


def affine(numbers: Tensor, scales: Tensor, zeros: Tensor | None, blocks: Sequence[int]) -> Tensor:
    """torchao's: (number - zero) * scale, with one zero and one scale for each block.

    Args:
        numbers: Whole numbers, or floating-point numbers of 8 bits.
        scales, zeros: As many along each axis as there are blocks.
        blocks: The sides of a block.
    """
    found = numbers.float()
    if zeros is not None:
        found = found - _over(zeros.float(), blocks)
    return found * _over(scales.float(), blocks)


def eight_bit_blocks(packed: Tensor) -> Tensor:
    """GGUF's Q8_0: a float16 factor, then 32 whole numbers. (..., B, 34) uint8 -> (..., B * 32)."""
    scales = packed[..., :2].contiguous().view(torch.float16).float()
    return (packed[..., 2:].contiguous().view(torch.int8).float() * scales).flatten(-2)


def _over(each: Tensor, blocks: Sequence[int]) -> Tensor:
    for axis, side in enumerate(blocks):
        each = each.repeat_interleave(side, dim=axis)
    return each
