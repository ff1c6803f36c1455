"""Hashes of numbers: whether weights, or images, are those that somebody else had."""

import hashlib
import json
from collections.abc import Mapping

from torch import Tensor

from vitconvert.formats import bytes_of


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of tensors: of names, in order, with shapes and numbers.

    Numbers are taken in float64, which holds those of all other dtypes: weights that were stored
    in half precision, and are computed with in float32, remain the same weights.
    """
    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(json.dumps([name, "float64", list(tensor.shape)]).encode() + b"\n")
        state.update(bytes_of(tensor.detach().cpu().double()))
    return state.hexdigest()
