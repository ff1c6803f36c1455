"""Floats of 8 bits, with scales or without.

A scale stands for the whole matrix, for each row, or for each block, and multiplies it:
compressed-tensors 0.20 (`quantization/lifecycle/forward.py`, `dequantize`), transformers 5.24
(`integrations/finegrained_fp8.py`, `_dequantize_fp8_weight`; `integrations/fbgemm_fp8.py`), ComfyUI
(`QUANTIZATION.md`). The name `weight_scale_inv` says otherwise, and means the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint.quantised.weight import (
    QuantisedNames,
    Read,
    Weight,
    parts_of,
    unfit,
)
from vitconvert.errors import size_text
from vitconvert.formats import FLOATS_OF_8_BITS, Container, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

_SCALES = ("float32", "float16", "bfloat16")
_USUAL_BLOCK = 128  # a side, of DeepSeek's and transformers' blocks
_NO_ROUNDING = ("compressed-tensors", None)  # which say of inputs apart


def open_scaled(
    stated: Mapping[str, object], container: Container, name: str, found: QuantisedNames
) -> Weight:
    """A matrix of 8 bits whose scales multiply it.

    Args:
        stated: The `quantization_config` of config.json.
        container, name, found: The file, and the weight in it.
    """
    numbers, scales = parts_of(container, name, found, "numbers", "scales")
    manifest = container.manifest
    if stated.get("transform_config"):
        raise unfit(container, numbers, "was rotated before it was quantised (transform_config)")
    if more := found.parts.get("more"):
        raise unfit(container, more, "is a second scale, which is not supported")
    # Whole numbers under the second name are pairs of 4 bits, and nothing is known of the third.
    whole = manifest[numbers].dtype == "int8" and scales.endswith(".weight_scale")
    if manifest[numbers].dtype not in FLOATS_OF_8_BITS and not whole:
        raise unfit(container, numbers, f"is {manifest[numbers].dtype}, not floats of 8 bits")
    if manifest[scales].dtype not in _SCALES:
        raise unfit(container, scales, f"is {manifest[scales].dtype}, not a supported scale")
    shape, each = manifest[numbers].shape, manifest[scales].shape
    zeros = found.parts.get("zeros")
    if zeros and manifest[zeros].shape != each:
        raise unfit(container, zeros, "does not have one number for each scale")
    blocks = _blocks(container, scales, shape, each, _stated_blocks(stated))

    def compute(read: Read) -> "Tensor":
        weight = read(numbers).float()
        if zeros:
            weight = weight - _over(read(zeros).float(), shape, blocks)
        return weight * _over(read(scales).float(), shape, blocks)

    return Weight(
        title=f"{manifest[numbers].dtype} with scales",
        parts=tuple(found.parts.values()),
        shape=shape,
        dtype=manifest[scales].dtype,
        rounds_inputs="inputs" in found.parts or _rounds_inputs(stated),
        compute=compute,
    )


def _blocks(
    container: Container,
    key: str,
    shape: tuple[int, ...],
    each: tuple[int, ...],
    stated: tuple[int, ...],
) -> tuple[int, ...]:
    """How many steps of each axis of a weight share a scale."""
    if len(each) < len(shape) and all(number == 1 for number in each[1:]):
        each = (each[0] if each else 1, *(1 for _ in shape[1:]))  # for all, or for each row
    blocks: list[int] = []
    if len(each) != len(shape) or len(stated or shape) != len(shape):
        raise unfit(container, key, f"has other axes than a weight of {size_text(shape)}")
    for side, count, block in zip(shape, each, stated or (0,) * len(shape), strict=True):
        # Of stated blocks, and of those that are usual, the last one may be cut.
        options = {side // count} if count and side % count == 0 else set()
        if count > 1 and count != side:
            options |= {_USUAL_BLOCK} if -(-side // _USUAL_BLOCK) == count else set()
            options = {block} if block and -(-side // block) == count else options
        if len(options) != 1:
            known = f"is {size_text(each)} scales for a weight of {size_text(shape)}"
            raise unfit(container, key, f"{known}, and the size of its blocks is unknown")
        blocks += options
    return tuple(blocks)


def _over(each: "Tensor", shape: tuple[int, ...], blocks: tuple[int, ...]) -> "Tensor":
    """Scales, one for each number: of the last blocks as much as the weight has."""
    sides = [-(-side // block) for side, block in zip(shape, blocks, strict=True)]
    each = each.reshape(sides)
    for axis, (side, block) in enumerate(zip(shape, blocks, strict=True)):
        each = each.repeat_interleave(block, dim=axis).narrow(axis, 0, side)
    return each


def _stated_blocks(stated: Mapping[str, object]) -> tuple[int, ...]:
    """The sides of blocks that a `quantization_config` states; () if it states none."""
    sizes = [stated.get("weight_block_size")]
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        sizes.append(weights.get("block_structure") if isinstance(weights, Mapping) else None)
    lists = {tuple(size) for size in sizes if isinstance(size, list)}
    known = [size for size in lists if all(type(side) is int and side > 0 for side in size)]
    return known[0] if len(known) == 1 else ()


def _rounds_inputs(stated: Mapping[str, object]) -> bool:
    """Whether a `quantization_config` says that inputs are rounded too."""
    groups = stated.get("config_groups")
    if isinstance(groups, Mapping):
        every = [group for group in groups.values() if isinstance(group, Mapping)]
        return any(group.get("input_activations") for group in every)
    return stated.get("quant_method") not in _NO_ROUNDING


def widened(container: Container, dtype: str) -> Container:
    """The same with floats of 8 bits in a larger dtype, which holds each of them exactly."""
    import torch

    small = {name for name, info in container.manifest.items() if info.dtype in FLOATS_OF_8_BITS}
    manifest = {
        name: TensorInfo(dtype=dtype, shape=info.shape) if name in small else info
        for name, info in container.manifest.items()
    }

    def read(name: str) -> "Tensor":
        found = container.read(name)
        return found.to(getattr(torch, dtype)) if name in small else found

    places = {name: place for name, place in container.places.items() if name not in small}
    return replace(container, manifest=manifest, places=places, reader=read)
