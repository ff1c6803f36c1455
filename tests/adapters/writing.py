"""Adapters that the real PEFT makes for small models, every number of them random."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.huggingface.classes import LABELS, MLP, SIZES, Case
from tests.packages import peft
from tests.small_models import randomise_calmly

VIT = Case(name="ViTForImageClassification", dialect="hf_vit", arguments={**SIZES, **MLP, **LABELS})


def with_adapter(model: nn.Module, **config: Any) -> nn.Module:
    """A PEFT model around a copy of the weights, its adapter and saved modules random."""
    torch.manual_seed(11)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**{"r": 4, "lora_alpha": 8, **config}))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
            elif parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return adapted.eval()


def saved(model: nn.Module, tmp_path: Path, **config: Any) -> tuple[Path, Path, nn.Module]:
    """A transformers model's directory, an adapter's, and PEFT's own merge of the two."""
    randomise_calmly(model).save_pretrained(tmp_path / "base")
    adapted = with_adapter(model, **config)
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "base", tmp_path / "adapter", adapted.merge_and_unload().eval()
