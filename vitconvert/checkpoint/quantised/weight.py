"""A quantised weight: which tensors of a file are one, by their names, and what is checked of each.

    M.weight, M.SCB, M.weight_format                    bitsandbytes, 8 bit
    W, W.absmax, W.quant_map,                           bitsandbytes, 4 bit
    W.quant_state.bitsandbytes__nf4 or __fp4
    W.nested_absmax, W.nested_quant_map                 with scales that are quantised themselves
    M._weight_qdata, M._weight_scale, ...               torchao, in safetensors
    W.qdata, W.scale, ...                               torchao, as its tensors are read of a pickle
    W.eight_bit_blocks                                  GGUF, as its container lists a tensor
    W, M.weight_scale                                   compressed-tensors, diffusers, ComfyUI
    W, M.weight_scale_inv                               transformers' FineGrainedFP8, DeepSeek
    W, M.scale_weight                                   ComfyUI before 2026

where W is M.weight. bitsandbytes 0.50 (nn/modules.py, functional.py), torchao 0.18
(prototype/safetensors/safetensors_support.py).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitconvert.documents import JsonObject, parse_object
from vitconvert.errors import CorruptFile, TensorMismatch
from vitconvert.formats import Container, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

Read = Callable[[str], "Tensor"]  # reads a tensor of the file
Compute = Callable[[Read], "Tensor"]

ROWS = "bitsandbytes, 8 bit"
FOUR_BIT = "bitsandbytes, 4 bit"
TORCHAO = "torchao"
GGUF = "GGUF, Q8_0"
SCALED = "8 bit with scales"
_Q8_0 = 34  # bytes of a block of 32 in GGUF (ggml-quants.c, dequantize_row_q8_0)
_COMPUTED = ("float32", "float16", "bfloat16")  # in which the libraries themselves compute them

# What follows a weight's name -> its scheme, and what the tensor is to it.
_AFTER = {
    "absmax": (FOUR_BIT, "scales"),
    "quant_map": (FOUR_BIT, "values"),
    "nested_absmax": (FOUR_BIT, "nested scales"),
    "nested_quant_map": (FOUR_BIT, "nested values"),
    "quant_state.bitsandbytes__nf4": (FOUR_BIT, "state"),
    "quant_state.bitsandbytes__fp4": (FOUR_BIT, "state"),
    "qdata": (TORCHAO, "numbers"),
    "eight_bit_blocks": (GGUF, "numbers"),
    "scale": (TORCHAO, "scales"),
    "zero_point": (TORCHAO, "zeros"),
}
# Of a module's weight.
_BESIDE = {
    "SCB": (ROWS, "scales"),
    "weight_format": (ROWS, "format"),
    **dict.fromkeys(("weight_scale", "weight_scale_inv", "scale_weight"), (SCALED, "scales")),
    **dict.fromkeys(("input_scale", "scale_input", "activation_scale"), (SCALED, "inputs")),
    "input_scale_ub": (SCALED, "inputs"),
    "comfy_quant": (SCALED, "words"),
    "weight_zero_point": (SCALED, "zeros"),
    **dict.fromkeys(("weight_scale_2", "weight_global_scale", "weight_scalar"), (SCALED, "more")),
}
_FLAT = re.compile(r"(?P<module>.*\.)?_(?P<name>[^.]+?)_(?P<part>qdata|scale|zero_point|act_\w+)")
# Without these a name says nothing: others have a `scale`, too.
_MARKS = {"scales": (ROWS, FOUR_BIT, SCALED), "state": (FOUR_BIT,), "numbers": (TORCHAO, GGUF)}


@dataclass(frozen=True, kw_only=True)
class QuantisedNames:
    """One weight.

    Attributes:
        scheme: `ROWS`, `FOUR_BIT`, `TORCHAO`, `GGUF` or `SCALED`.
        parts: What a tensor is to it -> the tensor's name in the file.
    """

    scheme: str
    parts: Mapping[str, str]


def quantised_names(names: Iterable[str]) -> dict[str, list[QuantisedNames]]:
    """Every weight that is quantised, by its name; of several schemes, if it is marked for both."""
    names = set(names)
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name in sorted(names):
        if (part := _part(name)) is not None:
            weight, scheme, role = part
            found[weight, scheme][role] = name
    weights: dict[str, list[QuantisedNames]] = defaultdict(list)
    for (weight, scheme), parts in found.items():
        if any(scheme in _MARKS.get(role, ()) for role in parts):
            own = {"numbers": weight} if weight in names else {}
            one = QuantisedNames(scheme=scheme, parts={**own, **parts})
            weights[weight].append(one)
    return dict(weights)


def _part(name: str) -> tuple[str, str, str] | None:
    """The weight that a tensor belongs to, the scheme, and what it is to the weight."""
    module, _, last = name.rpartition(".")
    if last in _BESIDE:
        return f"{module}.weight" if module else "weight", *_BESIDE[last]
    for end, (scheme, role) in _AFTER.items():
        if name.endswith(f".{end}"):
            return name.removesuffix(f".{end}"), scheme, role
    if flat := _FLAT.fullmatch(name):
        _, role = _AFTER.get(flat["part"], (TORCHAO, flat["part"]))
        return f"{flat['module'] or ''}{flat['name']}", TORCHAO, role
    return None


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
    compute: Compute


def parts_of(container: Container, name: str, found: QuantisedNames, *roles: str) -> list[str]:
    """The names of these parts of a weight, all of which must be there."""
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


def parsed(container: Container, name: str, text: bytes) -> JsonObject:
    """The words on how a weight was packed, which are JSON."""
    try:
        return parse_object(text)
    except ValueError as error:
        raise CorruptFile(
            "What says how a quantised weight is packed cannot be read.",
            evidence={"file": container.path, "of": name, "problem": str(error)[:160]},
            hint="the file is damaged or incomplete; get it again.",
        ) from None


def check_list(container: Container, key: str, dtype: str, count: int) -> None:
    """Make sure that a tensor has so many numbers in a row."""
    if container.manifest[key] != TensorInfo(dtype=dtype, shape=(count,)):
        raise unfit(container, key, f"is not {count} numbers of {dtype}")


def dtype_of(container: Container, name: str, dtype: object) -> str:
    """In which the library gives a weight, as the file says."""
    if dtype not in _COMPUTED:
        raise unfit(container, name, f"has weights of the unknown dtype {str(dtype)[:40]!r}")
    return str(dtype)


def unfit(container: Container, key: str, fact: str) -> TensorMismatch:
    """A part that cannot be understood."""
    return TensorMismatch(
        f"{key!r} {fact}.",
        evidence={"file": container.path},
        meaning="So the weights that these numbers stand for are unknown.",
        hint="convert the checkpoint that it was quantised from.",
    )


def open_gguf(container: Container, name: str, found: QuantisedNames) -> Weight:
    """A weight of llama.cpp in blocks of 32 numbers and a scale: Q8_0."""
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
