"""A file with quantised weights, as the file of weights that they stand for.

bitsandbytes, torchao and llama.cpp keep a weight as small numbers, with scales. Headers, and the
few words that say how a weight was packed, are read and proved first; a weight is computed when it
is read. What comes out is the quantised model's weights, not those that it was made from.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitconvert.containers import Container, TensorInfo
from vitconvert.conversion.quantised_names import (
    FOUR_BIT,
    GGUF,
    ROWS,
    TORCHAO,
    QuantisedNames,
    quantised_names,
)
from vitconvert.documents import parse_object
from vitconvert.errors import CorruptFile, TensorMismatch, UsageError

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "bfloat16")
"""What quantised weights are computed in, by the name of `--dtype`."""

_COMPUTED = ("float32", "float16", "bfloat16")  # in which the libraries themselves compute them
_BLOCKS = [2**power for power in range(5, 13)]  # of bitsandbytes, 32 to 4096 weights
_MOST_SAID = 100  # different words on tensors; they differ where matrices have other sizes
_LONGEST_STATE = 2000  # bytes; bitsandbytes writes 165
# torchao's classes with a number for each weight. Others pack several into one, in many ways.
_PLAIN = ("Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor")
WORDS = "torchao"  # a torch container has, beside the parts, what safetensors say in the header
_Q8_0 = 34  # bytes of a block
_NUMBERS = ("int8", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A quantised weight whose parts add up.

    Attributes:
        title: How it was quantised, in words.
        parts: The names of its parts in the file.
        shape: Of the weight.
        dtype: In which the library itself gives it.
        rounds_inputs: Whether the library rounds what the weight is multiplied with, too.
        compute: Gives the weight in float32, from what reads a tensor of the file.
    """

    title: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    rounds_inputs: bool
    compute: "Callable[[Callable[[str], Tensor]], Tensor]"


@dataclass(frozen=True, kw_only=True)
class Dequantised:
    """What was computed of a file's quantised weights.

    Attributes:
        container: The file, with these weights in place of their parts.
        weights: By name.
        dtype: What they are given in.
    """

    container: Container
    weights: Mapping[str, Weight]
    dtype: str

    def description(self, names: Mapping[str, str]) -> str:
        """What was done for the tensors that are used: name in the dialect -> name in the file."""
        used = [self.weights[name] for name in names.values() if name in self.weights]
        titles = " and ".join(sorted({weight.title for weight in used}))
        count = "1 weight" if len(used) == 1 else f"{len(used)} weights"
        text = (
            f"dequantised {count} ({titles}) to {self.dtype}: the numbers are the quantised "
            "model's, not those that it was made from"
        )
        if any(weight.rounds_inputs for weight in used):
            text += "; the library also rounds what they are multiplied with, which is not done"
        return text if used else ""


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
    weights = {}
    for name, several in quantised_names(container.manifest).items():
        if len(several) > 1:
            raise _unfit(container, name, "is marked as quantised in two ways")
        weights[name] = _OPEN[several[0].scheme](container, name, several[0])
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


def _open_rows(container: Container, name: str, found: QuantisedNames) -> Weight:
    numbers, scales, form = _parts(container, name, found, "numbers", "scales", "format")
    manifest = container.manifest
    shape = manifest[numbers].shape
    if manifest[numbers].dtype != "int8" or len(shape) != 2:
        raise _unfit(container, name, "is no matrix of int8")
    _check_list(container, scales, "float32", shape[0])
    if math.prod(manifest[form].shape) != 1:
        raise _unfit(container, form, "is not one number")

    def compute(read: "Callable[[str], Tensor]") -> "Tensor":
        from vitconvert.conversion.dequantisation import whole_rows

        if (layout := int(read(form).flatten()[0])) != 0:
            fact = f"has layout {layout} of bitsandbytes, where only 0 (by rows) is read"
            raise _unfit(container, form, fact)
        return whole_rows(read(numbers), read(scales))

    return Weight(
        title=ROWS,
        parts=(numbers, scales, form),
        shape=shape,
        dtype="float32",
        rounds_inputs=True,
        compute=compute,
    )


def _open_four_bit(container: Container, name: str, found: QuantisedNames) -> Weight:
    packed, scales, values, state = _parts(
        container, name, found, "numbers", "scales", "values", "state"
    )
    said, manifest = _state(container, state), container.manifest
    shape, block = _shape(container, state, said), _block(container, state, said, "blocksize")
    count = math.prod(shape)
    if manifest[packed].nbytes != (count + 1) // 2:
        raise _unfit(container, packed, f"has not the half bytes of {_times(shape)} weights")
    _check_list(container, values, "float32", 16)
    blocks = -(-count // block)
    nested = _nested(container, name, found, said, blocks)
    if nested is None:
        _check_list(container, scales, "float32", blocks)

    def compute(read: "Callable[[str], Tensor]") -> "Tensor":
        from vitconvert.conversion.dequantisation import four_bit

        factors = nested(read) if nested else read(scales)
        return four_bit(read(packed), factors, read(values), block, shape)

    kind = state.rpartition("__")[2]
    return Weight(
        title=f"{FOUR_BIT} ({kind}{', scales of 8 bit' if nested else ''})",
        parts=tuple(found.parts.values()),
        shape=shape,
        dtype=_dtype(container, state, said.get("dtype")),
        rounds_inputs=False,
        compute=compute,
    )


def _nested(
    container: Container, name: str, found: QuantisedNames, said: Mapping[str, Any], blocks: int
) -> "Callable[[Callable[[str], Tensor]], Tensor] | None":
    """What computes the scales, where they are quantised themselves."""
    if not any(key.startswith("nested") for key in (*found.parts, *said)):
        return None
    places, scales, values = _parts(
        container, name, found, "scales", "nested scales", "nested values"
    )
    state, offset = found.parts["state"], said.get("nested_offset")
    block = _block(container, state, said, "nested_blocksize")
    if not isinstance(offset, float) or not math.isfinite(offset):
        raise _unfit(container, state, "does not say how its scales are quantised")
    _check_list(container, places, "uint8", blocks)
    _check_list(container, scales, "float32", -(-blocks // block))
    _check_list(container, values, "float32", 256)

    def compute(read: "Callable[[str], Tensor]") -> "Tensor":
        from vitconvert.conversion.dequantisation import eight_bit

        return eight_bit(read(places), read(scales), read(values), block, offset)

    return compute


def _open_torchao(container: Container, name: str, found: QuantisedNames) -> Weight:
    numbers, scales = _parts(container, name, found, "numbers", "scales")
    zeros, manifest = found.parts.get("zeros"), container.manifest
    known = ("numbers", "scales", "zeros")
    if more := [key for role, key in found.parts.items() if role not in known]:
        raise _unfit(container, more[0], "belongs to a quantised weight, and is not read here")
    said = _said_by_torchao(container, name)
    shape, each = manifest[numbers].shape, manifest[scales].shape
    if manifest[numbers].dtype not in _NUMBERS:
        raise _unfit(container, numbers, "has not whole numbers or floats of 8 bits")
    if zeros and manifest[zeros].shape != each:
        raise _unfit(container, zeros, "has not one number for each scale")
    if len(each) != len(shape) or any(not b or a % b for a, b in zip(shape, each, strict=True)):
        raise _unfit(container, scales, f"has no whole number of weights of {_times(shape)} each")
    blocks = tuple(a // b for a, b in zip(shape, each, strict=True))
    if said.blocks not in (None, _times(blocks)):
        raise _unfit(container, scales, f"has not one number for each block of {said.blocks}")

    def compute(read: "Callable[[str], Tensor]") -> "Tensor":
        from vitconvert.conversion.dequantisation import affine

        return affine(read(numbers), read(scales), read(zeros) if zeros else None, blocks)

    return Weight(
        title=f"{TORCHAO}, {said.kind}",
        parts=tuple(found.parts.values()),
        shape=shape,
        dtype=_dtype(container, name, said.dtype),
        rounds_inputs=said.rounds_inputs,
        compute=compute,
    )


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What torchao says of a tensor; of several, what it says of all."""

    kind: str
    dtype: str
    rounds_inputs: bool
    blocks: str | None


def _said_by_torchao(container: Container, name: str) -> _Said:
    """What stands in the header for a tensor, or alike for every quantised one.

    transformers 5.23 renames tensors when it saves them, and not what the header says of them.
    """
    own = container.metadata.get(name) or container.extras.get(f"{name}.{WORDS}")
    texts = [str(own)] if own else _of_all(container)[:_MOST_SAID]
    every = {_understood(container, name, text) for text in texts}
    alike = {replace(said, blocks=None) for said in every}
    if len(alike) != 1:
        raise _unfit(container, name, "is quantised by torchao, and nothing says how")
    said = (every if own else alike).pop()
    if said.kind not in _PLAIN:
        raise _unfit(container, name, f"is a {said.kind} of torchao, which is not read here")
    return said


def _of_all(container: Container) -> list[str]:
    """What the header says of quantised tensors, whatever they are called there."""
    mark = '"_tensor_data_names"'
    return list(dict.fromkeys(text for text in container.metadata.values() if mark in text))


def _understood(container: Container, name: str, text: str) -> _Said:
    said = _parsed(container, name, text.encode())
    attributes = said.get("_data")
    attributes = attributes if isinstance(attributes, dict) else {}
    dtype, blocks = attributes.get("dtype"), attributes.get("block_size")
    inputs = ("act_quant_kwargs", "activation_quantization")
    return _Said(
        kind=str(said.get("_type"))[:80],
        dtype=str(dtype.get("_data") if isinstance(dtype, dict) else dtype)[:80],
        rounds_inputs=any(attributes.get(key) for key in inputs),
        blocks="x".join(map(str, blocks)) if isinstance(blocks, list) else None,
    )


def _open_gguf(container: Container, name: str, found: QuantisedNames) -> Weight:
    (numbers,) = _parts(container, name, found, "numbers")
    info = container.manifest[numbers]
    if info.dtype != "uint8" or len(info.shape) < 2 or info.shape[-1] != _Q8_0:
        raise _unfit(container, numbers, "is not made of blocks of 32 weights")

    def compute(read: "Callable[[str], Tensor]") -> "Tensor":
        from vitconvert.conversion.dequantisation import eight_bit_blocks

        return eight_bit_blocks(read(numbers))

    return Weight(
        title=GGUF,
        parts=(numbers,),
        shape=(*info.shape[:-2], info.shape[-2] * 32),
        dtype="float32",
        rounds_inputs=True,
        compute=compute,
    )


_OPEN: Mapping[str, Callable[[Container, str, QuantisedNames], Weight]] = {
    ROWS: _open_rows,
    FOUR_BIT: _open_four_bit,
    TORCHAO: _open_torchao,
    GGUF: _open_gguf,
}


def _parts(container: Container, name: str, found: QuantisedNames, *roles: str) -> list[str]:
    if lacking := [role for role in roles if role not in found.parts]:
        raise TensorMismatch(
            "A quantised weight lacks a part.",
            evidence={
                "file": container.path,
                "weight": f"{name} ({found.scheme})",
                "has": ", ".join(found.parts.values()),
                "lacks": f"its {' and its '.join(lacking)}",
            },
            hint="the file is incomplete; get it again.",
        )
    return [found.parts[role] for role in roles]


def _state(container: Container, key: str) -> Mapping[str, Any]:
    info = container.manifest[key]
    if info.dtype != "uint8" or info.nbytes > _LONGEST_STATE:
        raise _unfit(container, key, "is no short text")
    return _parsed(container, key, container.read(key).numpy().tobytes())


def _parsed(container: Container, name: str, text: bytes) -> Mapping[str, Any]:
    try:
        return parse_object(text)
    except ValueError as error:
        raise CorruptFile(
            "What says how a quantised weight is packed cannot be read.",
            evidence={"file": container.path, "of": name, "problem": str(error)[:160]},
            hint="the file is damaged or incomplete; get it again.",
        ) from None


def _shape(container: Container, key: str, said: Mapping[str, Any]) -> tuple[int, ...]:
    sizes = said.get("shape")
    if not isinstance(sizes, list) or not sizes or not all(type(n) is int and n > 0 for n in sizes):
        raise _unfit(container, key, "says no shape")
    return tuple(sizes)


def _block(container: Container, key: str, said: Mapping[str, Any], word: str) -> int:
    block = said.get(word)
    if type(block) is not int or block not in _BLOCKS:
        raise _unfit(container, key, f"says {word} = {str(block)[:40]}, which is none")
    return block


def _check_list(container: Container, key: str, dtype: str, count: int) -> None:
    """Make sure that a tensor has so many numbers in a row."""
    if container.manifest[key] != TensorInfo(dtype=dtype, shape=(count,)):
        raise _unfit(container, key, f"is not {count} numbers of {dtype}")


def _dtype(container: Container, name: str, dtype: object) -> str:
    if dtype not in _COMPUTED:
        raise _unfit(container, name, f"says no dtype of weights, but {str(dtype)[:40]!r}")
    return str(dtype)


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _unfit(container: Container, key: str, fact: str) -> TensorMismatch:
    return TensorMismatch(
        f"{key!r} {fact}.",
        evidence={"file": container.path},
        meaning="So it is not known which weights these numbers stand for.",
        hint="convert the checkpoint that it was quantised from.",
    )
