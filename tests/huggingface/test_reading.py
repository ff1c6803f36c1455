"""A directory that `save_pretrained` wrote needs no further word to be read."""

import pytest
import torch
from safetensors import safe_open

from tests.huggingface.classes import CLASSES, outputs
from tests.small_models import relative
from vitconvert import load_checkpoint, load_model

# Convolution against linear layer, or another kernel of attention.
ROUNDING = 2e-5


@pytest.mark.parametrize("disk", [True, False], ids=["on disk", "in memory"])
@torch.no_grad()
def test_every_fact_is_found_and_it_computes_what_transformers_does(case, disk, save):
    folder, theirs = save(case, disk=disk)
    checkpoint = load_checkpoint(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    ledger = checkpoint.ledger
    assert checkpoint.dialect == case.dialect
    assert set(ledger.used) | set(ledger.ignored) == names
    assert all(name.startswith(case.ignored or ("nothing",)) for name in ledger.ignored)
    found = {name: getattr(checkpoint.config, name) for name in case.expected}
    assert found == dict(case.expected)
    assert checkpoint.config.num_heads == 3
    assert ledger.notes == ()
    ours = load_model(checkpoint)
    torch.manual_seed(1)
    images = torch.randn(2, 3, *ours.config.image_size)
    final, tokens = outputs(theirs, images)
    assert relative(ours.forward_features(images), tokens) <= ROUNDING
    if final is not None or ours.config.pooling == "none":
        assert relative(ours(images), tokens if final is None else final) <= ROUNDING


def test_both_spellings_give_the_same_tensors(tmp_path):
    model = CLASSES["DINOv2, SwiGLU"].model()
    for name, disk in (("disk", True), ("memory", False)):
        model.save_pretrained(tmp_path / name, save_original_format=disk)
    disk, memory = (load_checkpoint(tmp_path / name) for name in ("disk", "memory"))
    assert disk.ledger.used != memory.ledger.used
    assert disk.tensors.keys() == memory.tensors.keys()
    assert all(torch.equal(tensor, memory.tensors[name]) for name, tensor in disk.tensors.items())
