"""timm's ViTs of many families: narrow, saved as timm saves them, and loaded by both."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vitconvert
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.model import ViT

_NARROW = {"embed_dim": 48, "num_heads": 4, "depth": 3, "num_classes": 7}
# timm's architecture: pixels from one patch to the next, and arguments besides.
FAMILIES: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (16, {"depth": 11}),
    "deit_tiny_distilled_patch16_224": (16, {"in_chans": 1}),
    "deit3_small_patch16_224": (16, {}),
    "beit_base_patch16_224": (16, {}),
    "eva02_tiny_patch14_224": (14, {}),
    "vit_small_patch14_reg4_dinov2": (14, {}),
    "vit_small_patch16_dinov3": (16, {}),
    "vit_small_patch16_rope_mixed_224": (16, {}),
    "vit_tiny_r_s16_p8_224": (32, {}),
    "vit_base_patch16_siglip_224": (16, {}),
    "samvit_base_patch16": (16, {"window_size": 2}),
    "vit_base_patch32_clip_224": (32, {"in_chans": 4}),
    "flexivit_small": (16, {}),
    "vit_relpos_small_patch16_224": (16, {}),
    "vit_base_patch16_xp_224": (16, {}),
    "vit_small_patch16_18x2_224": (16, {}),
    "vit_so150m_patch16_reg4_gap_256": (16, {}),
}


@functools.cache
def saved(name: str) -> Path:
    """A directory that timm wrote, of random numbers."""
    pixels, arguments = FAMILIES[name]
    arguments = _NARROW | {"img_size": (4 * pixels, 3 * pixels)} | arguments
    torch.manual_seed(len(name))
    model = randomise(timm.create_model(name, **arguments))
    folder = Path(tempfile.mkdtemp()) / name
    timm.models.save_for_hf(model, str(folder), model_args=arguments, safe_serialization=True)
    return folder


def theirs(name: str, **arguments: Any) -> nn.Module:
    """timm's model."""
    return timm.create_model(f"local-dir:{saved(name)}", pretrained=True, **arguments).eval()


def ours(name: str, **arguments: Any) -> ViT:
    """The same, loaded here."""
    return vitconvert.load_model(saved(name), **arguments)


def under_our_names(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors such as gradients, named and shaped as timm's parameters, as our parameters are.

    They are read as a checkpoint of timm, so that the table of its names says what becomes of each.
    """
    from safetensors.torch import save_file

    present = load_file(saved(name) / "model.safetensors")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.json").write_bytes((saved(name) / "config.json").read_bytes())
        whole = {key: tensors.get(key, torch.zeros_like(value)) for key, value in present.items()}
        save_file({k: v.contiguous() for k, v in whole.items()}, folder / "model.safetensors")
        return {k: v.clone() for k, v in vitconvert.load_checkpoint(folder).tensors.items()}


def images(model: ViT, batch: int = 3) -> Tensor:
    """Images for a model, of the dtype of its weights."""
    size = (batch, model.config.in_channels, *model.config.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(5)).to(
        model.patch_embed.a_weight().dtype
    )
