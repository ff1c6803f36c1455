"""Another image size, by the rule of each class."""

import pytest
import torch

from tests.huggingface.classes import CLASSES, encoder, inputs
from vitconvert import load_model

ROUNDING = 2e-5
ASKED = {"interpolate_pos_encoding": True}
NAMES = {
    "DINOv2": {},
    "DINOv2, registers": {},
    "DINOv3": {},
    "BEiT": ASKED,
    "BEiT, shared": ASKED,
    "Data2Vec, classes": ASKED,
    "BEiT, absolute, token": ASKED,
    "CLIP, both towers": ASKED,
    "SigLIP": ASKED,
    "SigLIP 2": {},
    "AIMv2, pooled, native, biases": {},
}


@pytest.mark.parametrize(("name", "options"), NAMES.items(), ids=NAMES)
@pytest.mark.parametrize("size", [(40, 40), (16, 32)], ids=["up", "across"])
@torch.no_grad()
def test_resampled_as_transformers_does(name, options, size, save):
    folder, theirs = save(CLASSES[name])
    ours = load_model(folder, image_size=size)
    torch.manual_seed(1)
    images = torch.randn(2, 3, *size)
    wanted = encoder(theirs)(**inputs(theirs, images), **options).last_hidden_state
    found = ours.forward_features(images)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= ROUNDING * wanted.abs().max()
