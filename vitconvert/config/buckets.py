"""Which learned position a patch has, where its place is a share of the side of its image."""

import functools
import math
import struct
from bisect import bisect_right

_LANES = 8  # of float32, in torch's vectors


@functools.cache
def buckets(own: int, count: int) -> tuple[int, ...]:
    """For each of `count` patches along a side, which of `own` positions it has.

    transformers 5.24, `Idefics2VisionEmbeddings`: i/count in buckets that end at multiples of
    1/own, in float32. Rounding decides where the two meet, so it is that of torch 2.14 on x86.
    """
    step, last = _float32(1.0 / count), _float32(1.0 - 1e-6)
    ends = _multiples(1 / own)
    return tuple(bisect_right(ends, min(_float32(i * step), last)) for i in range(count))


def _multiples(step: float) -> list[float]:
    """`torch.arange(step, 1.0, step)`: RangeFactoriesKernel.cpp, and `vectorized_loop` of Loops.h.

    Two vectors at a time begin at a rounded number; what is left is computed one by one.
    """
    count = math.ceil((1.0 - step) / step)
    in_vectors = count // (2 * _LANES) * (2 * _LANES)
    starts = [k // _LANES * _LANES if k < in_vectors else None for k in range(count)]
    return [
        _float32(
            step + k * step if start is None else _float32(step + start * step) + (k - start) * step
        )
        for k, start in enumerate(starts)
    ]


def _float32(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
