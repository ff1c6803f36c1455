"""Small models of twelve of timm's families, every number random, in the directories of timm."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.packages import timm
from tests.small_models import randomise_calmly

NAMES = ("ant", "bee", "cow", "dog", "eel")  # of the classes
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vit_tiny_patch16_224", {"depth": 11}),
    "one channel": ("vit_tiny_patch16_224", {"in_chans": 1, "img_size": (48, 32)}),
    "four channels": ("vit_base_patch16_224", {"in_chans": 4, "num_heads": 5, "embed_dim": 30}),
    "registers": ("vit_base_patch14_reg4_dinov2", {"img_size": 28, "init_values": 0.1}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "pooled by attention": ("vit_base_patch16_siglip_224", {}),
    "mean": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "norm before": ("vit_base_patch16_clip_224", {}),
    "EVA-02": ("eva02_tiny_patch14_224", {"img_size": 28}),
    "BEiT": ("beit_base_patch16_224", {}),
    "relative positions": ("vit_srelpos_small_patch16_224", {}),
    "hybrid": ("vit_tiny_r_s16_p8_224", {}),
}


def timm_model(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """A model of a family, and the arguments that it was made with."""
    name, arguments = FAMILIES[family]
    small = {"depth": 2, "img_size": 32, "embed_dim": 36, "num_heads": 3, **arguments}
    torch.manual_seed(5)
    return randomise_calmly(timm.create_model(name, num_classes=len(NAMES), **small)), small


def save_timm(folder: Path, family: str = "plain") -> Path:
    """A directory as `timm.models.save_for_hf` writes it, with names of the classes."""
    model, arguments = timm_model(family)
    named = {"label_names": list(NAMES)}
    timm.models.save_for_hf(
        model, str(folder), model_args=arguments, model_config=named, safe_serialization=True
    )
    return folder
