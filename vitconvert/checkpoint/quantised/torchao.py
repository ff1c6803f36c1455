"""Weights of torchao that have a number for each, in blocks that share a scale.

Source: torchao 0.18 (`quantization/quant_primitives.py`, `dequantize_affine` and
`_dequantize_affine_float8`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from vitconvert.checkpoint.quantised.weight import (
    TORCHAO,
    QuantisedNames,
    Read,
    Weight,
    dtype_of,
    parsed,
    parts_of,
    unfit,
)
from vitconvert.errors import size_text
from vitconvert.formats import Container

if TYPE_CHECKING:
    from torch import Tensor

WORDS = "torchao"  # a torch container has, beside the parts, what safetensors say in the header
_MOST_SAID = 100  # different words on tensors; they differ where matrices have other sizes
# torchao's classes with a number for each weight. Others pack several into one, in many ways.
_PLAIN = ("Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor")
_NUMBERS = ("int8", "float8_e4m3fn", "float8_e5m2")


def open_torchao(
    of_all: "Callable[[], set[_Said]]", container: Container, name: str, found: QuantisedNames
) -> Weight:
    """A weight of 8 bits, of whole numbers or floats; `of_all` is what `said_of_all` gives."""
    numbers, scales = parts_of(container, name, found, "numbers", "scales")
    zeros, manifest = found.parts.get("zeros"), container.manifest
    known = ("numbers", "scales", "zeros")
    if more := [key for role, key in found.parts.items() if role not in known]:
        raise unfit(container, more[0], "belongs to a quantised weight, and is not read here")
    # transformers 5.23 renames tensors when it saves them, and not what the header says of them: so
    # the words count that are on this tensor, or else alike on every quantised one.
    own = container.metadata.get(name) or container.extras.get(f"{name}.{WORDS}")
    alike = {_understood(container, name, str(own))} if own else of_all()
    if len(alike) != 1:
        raise unfit(container, name, "is quantised by torchao in an unknown way")
    (stated,) = alike
    if stated.kind not in _PLAIN:
        raise unfit(container, name, f"is a {stated.kind} of torchao, which is not read here")
    shape, each = manifest[numbers].shape, manifest[scales].shape
    if manifest[numbers].dtype not in _NUMBERS:
        raise unfit(container, numbers, "does not have integers or floats of 8 bits")
    if zeros and manifest[zeros].shape != each:
        raise unfit(container, zeros, "does not have one number for each scale")
    if len(each) != len(shape) or any(not b or a % b for a, b in zip(shape, each, strict=True)):
        raise unfit(container, scales, f"does not divide into weights of {size_text(shape)} each")
    blocks = tuple(a // b for a, b in zip(shape, each, strict=True))
    if stated.blocks not in (None, size_text(blocks)):
        raise unfit(container, scales, f"lacks one number for each block of {stated.blocks}")

    def compute(read: Read) -> "Tensor":
        found = read(numbers).float()
        if zeros:
            found = found - _over(read(zeros).float(), blocks)
        return found * _over(read(scales).float(), blocks)

    return Weight(
        title=f"{TORCHAO}, {stated.kind}",
        parts=tuple(found.parts.values()),
        shape=shape,
        dtype=dtype_of(container, name, stated.dtype),
        rounds_inputs=stated.rounds_inputs,
        compute=compute,
    )


@dataclass(frozen=True, kw_only=True)
class _Said:
    """torchao's words on a tensor, or alike on several."""

    kind: str
    dtype: str
    rounds_inputs: bool
    blocks: str | None


def said_of_all(container: Container) -> set[_Said]:
    """The words of the header on all quantised tensors, by whatever name."""
    mark = '"_tensor_data_names"'
    texts = dict.fromkeys(text for text in container.metadata.values() if mark in text)
    every = (_understood(container, "the header", text) for text in islice(texts, _MOST_SAID))
    return {replace(stated, blocks=None) for stated in every}


def _understood(container: Container, name: str, text: str) -> _Said:
    stated = parsed(container, name, text.encode())
    attributes = stated.get("_data")
    attributes = attributes if isinstance(attributes, dict) else {}
    dtype, blocks = attributes.get("dtype"), attributes.get("block_size")
    inputs = ("act_quant_kwargs", "activation_quantization")
    return _Said(
        kind=str(stated.get("_type"))[:80],
        dtype=str(dtype.get("_data") if isinstance(dtype, dict) else dtype)[:80],
        rounds_inputs=any(attributes.get(key) for key in inputs),
        blocks="x".join(map(str, blocks)) if isinstance(blocks, list) else None,
    )


def _over(each: "Tensor", blocks: tuple[int, ...]) -> "Tensor":
    for axis, side in enumerate(blocks):
        each = each.repeat_interleave(side, dim=axis)
    return each
