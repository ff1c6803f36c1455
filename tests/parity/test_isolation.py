"""Verifying depends on no global state, and leaves it as it was."""

import random
import warnings

import numpy as np
import torch

from tests.packages import transformers
from vitconvert.api import verify

STATED = {"num_heads": 3}


def test_global_state_does_not_matter(plain):
    wanted = verify(plain, overrides=STATED).to_json()
    torch.manual_seed(99)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            assert verify(plain, overrides=STATED).to_json() == wanted
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_num_threads() == 2
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)


def test_generators_and_gradients_stay(torchvision_file):  # whose class draws its own weights
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    verify(torchvision_file, overrides=STATED)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
    assert torch.is_grad_enabled()


def test_nothing_is_printed_or_warned(huggingface_checkpoint, capfd, caplog):
    path = huggingface_checkpoint(transformers.ViTConfig, transformers.ViTModel)
    capfd.readouterr()
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert verify(path).ok
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")
    assert caught == []
    assert caplog.records == []
