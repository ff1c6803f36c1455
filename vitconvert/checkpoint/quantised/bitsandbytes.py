"""Weights of bitsandbytes: rows of int8, and blocks of 4 bits with scales that may have 8.

Each sum is done as the library does it, in float32 and in its order, so that the bits are the same.
Source: bitsandbytes 0.50 (`_ops.py`, `backends/default/ops.py`, `functional.py`).
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitconvert.checkpoint.quantised.weight import (
    FOUR_BIT,
    ROWS,
    Compute,
    QuantisedNames,
    Read,
    Weight,
    check_list,
    dtype_of,
    parsed,
    parts_of,
    unfit,
)
from vitconvert.errors import size_text
from vitconvert.formats import Container

if TYPE_CHECKING:
    from torch import Tensor

_BLOCKS = [2**power for power in range(5, 13)]  # 32 to 4096 weights
_PER_STEP = 7.874015718698502e-3  # 1 / 127, as bitsandbytes writes it: it multiplies
_LONGEST_STATE = 2000  # bytes; bitsandbytes writes 165


def open_rows(container: Container, name: str, found: QuantisedNames) -> Weight:
    """A matrix of int8 with a scale for each row."""
    numbers, scales, form = parts_of(container, name, found, "numbers", "scales", "format")
    manifest = container.manifest
    shape = manifest[numbers].shape
    if manifest[numbers].dtype != "int8" or len(shape) != 2:
        raise unfit(container, name, "is not a matrix of int8")
    check_list(container, scales, "float32", shape[0])
    if math.prod(manifest[form].shape) != 1:
        raise unfit(container, form, "is not one number")

    def compute(read: Read) -> "Tensor":
        if (layout := int(read(form).flatten()[0])) != 0:
            fact = f"has layout {layout} of bitsandbytes, where only 0 (by rows) is read"
            raise unfit(container, form, fact)
        # -127 to 127 of the largest number of each row: (O, I), (O,) -> (O, I)
        return read(numbers).float() * read(scales).reshape(-1, 1) * _PER_STEP

    return Weight(
        title=ROWS,
        parts=(numbers, scales, form),
        shape=shape,
        dtype="float32",
        rounds_inputs=True,
        compute=compute,
    )


def open_four_bit(container: Container, name: str, found: QuantisedNames) -> Weight:
    """A weight in blocks of 4 bits, each with a scale; the scales may be quantised themselves."""
    packed, scales, values, state = parts_of(
        container, name, found, "numbers", "scales", "values", "state"
    )
    info = container.manifest[state]
    if info.dtype != "uint8" or info.nbytes > _LONGEST_STATE:
        raise unfit(container, state, "is not a short text")
    stated = parsed(container, state, container.read(state).numpy().tobytes())
    shape = stated.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
        raise unfit(container, state, "says no shape")
    count, block = math.prod(shape), _block(container, state, stated, "blocksize")
    if container.manifest[packed].nbytes != (count + 1) // 2:
        raise unfit(container, packed, f"lacks the half bytes of {size_text(shape)} weights")
    check_list(container, values, "float32", 16)
    nested = any(key.startswith("nested") for key in (*found.parts, *stated))
    blocks = -(-count // block)
    factors = _nested_scales(container, name, found, stated, blocks) if nested else None
    if factors is None:
        check_list(container, scales, "float32", blocks)

    def compute(read: Read) -> "Tensor":
        import torch

        # nf4 and fp4: two places in a list of 16 values to a byte, high bits first. Each run of
        # `block` weights has one factor, and the last half byte may be left over.
        pairs = read(packed).contiguous().view(torch.uint8).flatten().int()
        places = torch.stack([pairs >> 4, pairs & 15], dim=1).flatten()[:count]
        factor = factors(read) if factors else read(scales)
        return (read(values)[places] * _spread(factor, block, count)).reshape(shape)

    kind = state.rpartition("__")[2]
    return Weight(
        title=f"{FOUR_BIT} ({kind}{', scales of 8 bit' if nested else ''})",
        parts=tuple(found.parts.values()),
        shape=tuple(shape),
        dtype=dtype_of(container, state, stated.get("dtype")),
        rounds_inputs=False,
        compute=compute,
    )


def _nested_scales(
    container: Container,
    name: str,
    found: QuantisedNames,
    stated: Mapping[str, object],
    blocks: int,
) -> Compute:
    places, scales, values = parts_of(
        container, name, found, "scales", "nested scales", "nested values"
    )
    state, offset = found.parts["state"], stated.get("nested_offset")
    block = _block(container, state, stated, "nested_blocksize")
    if not isinstance(offset, float) or not math.isfinite(offset):
        raise unfit(container, state, "does not say how its scales are quantised")
    check_list(container, places, "uint8", blocks)
    check_list(container, scales, "float32", -(-blocks // block))
    check_list(container, values, "float32", 256)

    def compute(read: Read) -> "Tensor":
        factors = _spread(read(scales), block, blocks)
        return read(values)[read(places).int()] * factors + offset

    return compute


def _block(container: Container, key: str, stated: Mapping[str, object], word: str) -> int:
    block = stated.get(word)
    if type(block) is not int or block not in _BLOCKS:
        raise unfit(container, key, f"says {word} = {str(block)[:40]}, which is not valid")
    return block


def _spread(scales: "Tensor", block: int, count: int) -> "Tensor":
    return scales.repeat_interleave(block)[:count]
