"""Tiny files of every kind that an entry point takes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.small_models import randomise

PIXELS = {"mean": [0.4, 0.5, 0.6], "std": [0.3, 0.2, 0.25], "interpolation": "bicubic"}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two ViTs of timm (`vit`, `other`), one pickled whole (`whole`), and images."""
    import timm
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    sizes = {"img_size": [12, 8], "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}
    model = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=5, **sizes))
    described = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": sizes}
    pixels = {"input_size": [3, 12, 8], "crop_pct": 1.0, **PIXELS}
    for name in ("vit", "other", "whole"):
        (folder / name).mkdir()
        stated = {**described, "pretrained_cfg": pixels, "label_names": list("abcde")}
        (folder / name / "config.json").write_text(json.dumps(stated))
    save_file(model.state_dict(), folder / "vit" / "model.safetensors")
    torch.save(model, folder / "whole" / "pytorch_model.bin")
    save_file(randomise(model).state_dict(), folder / "other" / "model.safetensors")
    (folder / "images" / "more").mkdir(parents=True)
    for place in ("1.png", "2.png", "more/3.png"):
        pixels_of = np.random.default_rng(len(place)).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels_of).save(folder / "images" / place)
    return folder
