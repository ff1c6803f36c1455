"""timm's ViTs by family, and how far a loaded model is from timm's own."""

import re
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf

import vitconvert
from vitconvert.tables.architectures import named

MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid", "eva", "beit")
# Entry points of these modules that are no ViT of a paper or a project.
NOT_VITS = re.compile(r"test_vit|naflex")
ARCHITECTURES = tuple(
    sorted(
        name
        for module in MODULES
        for name in timm.list_models(module=module)
        if not NOT_VITS.match(name)
    )
)
_FAMILIES = (
    *("sapiens2", "lingbot", "dinov3", "tipsv2", "radio", "intern", "pe_core", "pe_lang"),
    *("pe_spatial", "rope_mixed_ape", "rope_mixed", "rope_ape", "rope_reg", "_rope", "eva02"),
    *("eva_giant", "eva_large", "beitv2", "beit3", "beit_", "deit3", "deit", "aimv2", "dinov2"),
    *("flexivit", "siglip_gap", "siglip", "clip_quickgelu", "clip", "18x2", "36x1", "rpn", "xp"),
    *("plus", "so150m", "so400m", "giantopt", "pwee", "dpwee", "dwee", "dlittle", "wee", "mci"),
    *("resnet", "_r26_", "_r50_", "_r_s16", "reg", "gap"),
)


def family_of(name: str) -> str:
    """The family a name belongs to, for the README's table."""
    found = next((family for family in _FAMILIES if family in name), "vit")
    return found.strip("_")


def random_model(name: str, **arguments: Any) -> torch.nn.Module:
    """timm's model with every parameter random; norms and factors around one."""
    torch.manual_seed(3)
    model = timm.create_model(name, depth=2, **arguments)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            factor = parameter.ndim == 1 and key.endswith(("weight", "gamma"))
            scale = 0.2 if parameter.ndim < 2 else 1.0 / parameter[0].numel() ** 0.5
            parameter.normal_(std=scale).add_(1.0 if factor else 0.0)
    return model.eval()


def relative_difference(name: str, folder: Path, *, small: bool = False) -> float:
    """max |difference| over max |output| between timm's model and ours, loaded from its files."""
    arguments: dict[str, Any] = {"num_classes": 5} if small else {}
    if "sapiens2" in name:  # theirs has a number for each block
        heads = named("timm")[name]["num_heads"]
        arguments["num_kv_heads"] = [heads // 2, heads]
    model = random_model(name, **arguments)
    save_for_hf(model, str(folder), model_args={"depth": 2, **arguments}, safe_serialization=True)
    ours = vitconvert.load_model(folder)
    images = torch.randn(1, 3, *ours.config.image_size)
    with torch.inference_mode():
        expected, found = model(images), ours(images)
    return ((expected - found).abs().max() / expected.abs().max()).item()


def supported(name: str) -> bool:
    """Whether vitconvert's ViT computes what this architecture computes."""
    return name in named("timm")
