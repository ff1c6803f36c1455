"""Checkpoints as the real packages write them, with every parameter random."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Noise around 0, around 1 for factors, so that no row or norm can hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            factor = parameter.ndim == 1 and name.endswith(("weight", "gamma"))
            # Kernels of a stem come one after the other, and nothing there keeps signals small.
            if parameter.ndim == 4:
                parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
                continue
            parameter.normal_(std=0.2, generator=generator).add_(1.0 if factor else 0.05)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.2, generator=generator)
                module.running_var.uniform_(0.5, 2.0, generator=generator)
                module.num_batches_tracked.fill_(9)
    return model.eval()


@pytest.fixture
def timm_directory(tmp_path: Path) -> Callable[..., Path]:
    """A directory as timm saves it for the Hub."""
    import timm
    from timm.models import save_for_hf

    def make(name: str = "vit_tiny_patch16_224", **arguments: Any) -> Path:
        directory = tmp_path / "timm-model"
        model = fill(timm.create_model(name, pretrained=False, **arguments))
        save_for_hf(model, str(directory), model_args=arguments or None, safe_serialization=True)
        return directory

    return make


@pytest.fixture
def huggingface_directory(tmp_path: Path) -> Callable[..., Path]:
    """A directory as transformers saves it."""
    import transformers

    def make(name: str = "ViTForImageClassification", **settings: Any) -> Path:
        config_class = {"ViT": "ViTConfig", "Dei": "DeiTConfig", "IJe": "IJepaConfig"}[name[:3]]
        config = getattr(transformers, config_class)(**(_SMALL | settings))
        directory = tmp_path / "huggingface-model"
        fill(getattr(transformers, name)(config)).save_pretrained(directory)
        return directory

    return make


_SMALL = {
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 52,
    "image_size": 24,
    "patch_size": 8,
    "num_labels": 7,
}
