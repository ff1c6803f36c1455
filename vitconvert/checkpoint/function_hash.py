"""A name for the function of a ViT, whichever file, spelling and precision hold it.

`docs/pages/function-hash.md` defines it, so that others can compute it too.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.settings import plain_arithmetic
from vitconvert.tables.canonical import expected_tensors

if TYPE_CHECKING:
    from torch import Tensor

KIND = "vit1"  # of the hash: another rule has another
_COUNTS = ".num_batches_tracked"  # of training alone
_CHUNK = 2**21  # numbers at a time; as for `formats.hashing`, few and large


@plain_arithmetic()
def function_hash(config: ViTConfig, tensors: "Mapping[str, Tensor]") -> str:
    """Name a function: fields that decide it, and canonical tensors as float32."""
    names = (name for name in expected_tensors(config) if not name.endswith(_COUNTS))
    lines = [*_stated(config), *(_line(name, tensors[name]) for name in names)]
    text = "\n".join([KIND, *sorted(lines)])
    return f"{KIND}:{hashlib.sha256(text.encode()).hexdigest()}"


def recorded_hash(record: JsonObject, config: ViTConfig) -> str:
    """What a record names the function of a configuration that it states; "" for any other."""
    recorded = record.get("function_hash")
    known = isinstance(recorded, str) and recorded.startswith(f"{KIND}:")
    # Fields that were added since an earlier version wrote the record have their defaults.
    stated = {field.name: field.default for field in fields(config)} | record.get("config", {})
    same = all(stated[name] == value for name, value in config.to_dict().items())
    return str(recorded) if known and same else ""


def _stated(config: ViTConfig) -> Iterator[str]:
    """Fields that have an effect, but for defaults: what is added later has one, too."""
    defaults = {field.name: field.default for field in fields(config)}
    for name, value in config.function().items():
        if value != defaults[name]:
            parts = value if isinstance(value, tuple) else (value,)
            yield " ".join([name, *map(_word, parts)])


def _word(value: object) -> str:
    if isinstance(value, float):  # programs write 1e-6 in more ways than one
        return str(int(value)) if value.is_integer() else f"{value:.6g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line(name: str, tensor: "Tensor") -> str:
    import numpy as np  # whose sums, unlike torch's, leave the other cores alone
    import torch

    digest, numbers = hashlib.sha256(), tensor.reshape(-1)
    known = tensor.dtype in (torch.float32, torch.float16, torch.float64)
    room = np.empty(min(_CHUNK, len(numbers)), dtype="<f4")
    with np.errstate(all="ignore"):  # sums that overflow, and what is too large for float32
        for begin in range(0, len(numbers), _CHUNK):
            part = numbers[begin : begin + _CHUNK]
            theirs, chunk = (part if known else part.float()).numpy(), room[: len(part)]
            # In float32, where the smallest numbers of float64 are zeros: of zeros the positive.
            np.add(theirs, 0, out=chunk, dtype="f4", casting="same_kind")
            if np.isnan(chunk.sum()):
                chunk[np.isnan(chunk)] = np.nan  # of NaNs one
            digest.update(chunk.data)
    return f"{name} {'x'.join(map(str, tensor.shape))} {digest.hexdigest()}"
