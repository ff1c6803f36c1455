"""The benchmark of techniques does without each of them in turn, and prints what that costs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import techniques
from benchmarks.techniques import WITH_ALL, measure
from vitconvert.api import load_model
from vitconvert.demo.demonstration import DIGITS
from vitconvert.model import fast
from vitconvert.model.fast import FastLinear

LINEAR = "mkldnn._linear_pointwise.default"
IMAGES = 9
# What can be seen of the fast model, and what changes without each technique.
SEEN = {"oneDNN": True, "own GELU": False, "one token": True, "packed": True, "all images": False}
CHANGED = {
    WITH_ALL: {},
    "linear layers by oneDNN": {"oneDNN": False, "own GELU": True, "packed": False}
    | {"one token": False},
    "activations in the same pass": {"own GELU": True},
    "the last block for pooled tokens": {"one token": False},
    "weights in oneDNN's own order": {"packed": False},
    "large batches in parts": {"all images": True},
}


class Operations(TorchDispatchMode):
    """Names of the operations that ran, and of linear layers the input and the weight."""

    def __init__(self):
        super().__init__()
        self.names, self.linears = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        if str(func) == LINEAR:
            self.linears.append(args[:2])
        return func(*args, **(kwargs or {}))


def _seen(model, images):
    with Operations() as ran:
        model(images)
    return {
        "oneDNN": bool(ran.linears),
        "own GELU": any("gelu" in name for name in ran.names),
        "one token": any(x.ndim == 3 and x.shape[1] == 1 for x, _ in ran.linears),
        "packed": any(weight.is_mkldnn for _, weight in ran.linears),
        "all images": any(len(x) == IMAGES for x, _ in ran.linears),
    }


@pytest.mark.skipif(not fast._DTYPES, reason="this torch has no oneDNN")
def test_each_technique_is_done_without_and_comes_back(monkeypatch):
    monkeypatch.setattr(techniques, "turn", _seen)
    monkeypatch.setattr(fast, "_COMPARES", False)  # torch's own product may be measured as faster
    model, images = load_model(DIGITS, fast=True), torch.rand(IMAGES, 3, 32, 32)
    config = model.config
    tokens = config.num_patches + config.num_prefix_tokens
    widest = max(config.mlp_dim, 3 * config.num_heads * config.head_dim)
    monkeypatch.setattr(fast, "_AT_ONCE", 8 * 4 * tokens * widest)  # images, bytes
    for module in model.modules():
        if isinstance(module, FastLinear):
            module.packs_after = 0
    wanted = {technique: [{**SEEN, **changed}] * 2 for technique, changed in CHANGED.items()}
    assert measure(model, images, 2) == wanted
