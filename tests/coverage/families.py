"""timm's ViTs by family, and how far a loaded model is from timm's own."""

from pathlib import Path
from typing import Any

import torch

import vitconvert
from tests.packages import timm
from vitconvert.config.properties import stem_stride
from vitconvert.model.fast import FastLinear
from vitconvert.tables.architectures import named

ARCHITECTURES = tuple(sorted(named("timm")))
_FAMILIES = (
    *(
        "test_vit",
        "samvit",
        "srelpos",
        "relpos",
        "parfac",
        "naflexvit",
        "_align",
        "_merge",
        "_enc",
        "deepseek",
        "qwen3",
        "gemma4",
    ),
    *("sapiens2", "lingbot", "dinov3", "tipsv2", "radio", "intern", "pe_core", "pe_lang"),
    *("pe_spatial", "rope_mixed_ape", "rope_mixed", "rope_ape", "rope_reg", "_rope", "eva02"),
    *("eva_giant", "eva_large", "beitv2", "beit3", "beit_", "deit3", "deit", "aimv2", "dinov2"),
    *("flexivit", "siglip_gap", "siglip", "clip_quickgelu", "clip", "18x2", "36x1", "rpn", "xp"),
    *("plus", "so150m", "so400m", "giantopt", "dpwee", "pwee", "dwee", "dlittle", "wee", "mci"),
    *("resnet", "_r26_", "_r50_", "_r_s16", "reg", "gap"),
)


def family_of(name: str) -> str:
    """The family a name belongs to, for the README's table."""
    found = next((family for family in _FAMILIES if family in name), "vit")
    return found.strip("_")


def supported(name: str) -> bool:
    """Whether vitconvert's ViT computes what this architecture computes."""
    return name in named("timm")


def smallest_of_each_family() -> list[str]:
    """One supported architecture for each family: the narrowest."""
    found: dict[str, str] = {}
    for name in sorted(filter(supported, ARCHITECTURES), key=_width):
        found.setdefault(family_of(name), name)
    return sorted(found.values())


def _width(name: str) -> int:
    width: int = named("timm")[name]["embed_dim"]
    return width


def small_arguments(name: str) -> dict[str, Any]:
    """4 patches down and 3 across, 5 classes; all else as the architecture has it.

    Grids of Qwen 3 and Gemma 4 are whole squares of patches; what comes after the blocks is small.
    """
    row = named("timm")[name]
    style, depths = row.get("stem_style", "timm"), row.get("stem_depths", ())
    stride = stem_stride(style, depths) if row.get("stem") else 1
    down, across = (side * stride for side in row["patch_size"])
    grid = {"qwen3": (4, 2), "gemma4": (6, 3)}.get(name.split("_")[0], (4, 3))
    few: dict[str, Any] = {"position_embedding_size": 7} if "gemma4" in name else {}
    few |= {"out_features": 48} if row.get("merge_size") and "gemma4" not in name else {}
    few |= {} if name.endswith("_enc") else {"num_classes": 5}
    few |= {"window_size": 3} if name.startswith("samvit") else {}
    return {"img_size": [grid[0] * down, grid[1] * across], **few}


def random_model(name: str, **arguments: Any) -> torch.nn.Module:
    """timm's model with every parameter and statistic random; factors around one."""
    torch.manual_seed(3)
    model = timm.create_model(name, **arguments)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            factor = parameter.ndim == 1 and key.endswith(("weight", "gamma"))
            scale = 0.2 if parameter.ndim < 2 else 1.0 / parameter[0].numel() ** 0.5
            parameter.normal_(std=scale).add_(1.0 if factor else 0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.2)
                module.running_var.uniform_(0.5, 2.0)
                module.num_batches_tracked.fill_(7)
        for key, buffer in model.named_buffers():
            if key.endswith(("put_min", "put_max", "std_bias", "std_scale")):  # of Gemma 4
                size = torch.rand_like(buffer) + 0.7
                buffer.copy_(-size if key.endswith("min") else size)
    return model.eval()


def relative_difference(name: str, folder: Path, **arguments: Any) -> float:
    """max |difference| over max |output| between timm's model and ours, loaded from its files."""
    arguments["depth"] = 2
    if "sapiens2" in name:  # timm's has a number of key heads for each block
        heads = named("timm")[name]["num_heads"]
        arguments["num_kv_heads"] = [heads // 2, heads]
    if name.startswith("samvit"):
        arguments["global_attn_indexes"] = [1]
    model = random_model(name, **arguments)
    timm.models.save_for_hf(model, str(folder), model_args=arguments, safe_serialization=True)
    ours = vitconvert.load_model(folder)
    images = torch.randn(1, 3, *ours.config.image_size)
    with torch.inference_mode():
        expected, found = model(images), ours(images)
    assert expected.isfinite().all() and expected.std() > 0
    return ((expected - found).abs().max() / expected.abs().max()).item()


def errors_of_arithmetic(folder: Path) -> tuple[float, float]:
    """max |difference| from float64 over max |output|: of fast arithmetic, of the usual one.

    The former is the worse of a first call and of those with weights in oneDNN's own order.
    """
    usual, fast = vitconvert.load_model(folder), vitconvert.load_model(folder, fast=True)
    images = torch.randn(2, 3, *usual.config.image_size)
    with torch.inference_mode():
        first = fast(images)
        for module in fast.modules():
            if isinstance(module, FastLinear):
                module.packs_after = 0
        outputs = first, fast(images), usual(images)
        truth = usual.double()(images.double())
    scale = truth.abs().max()
    at_first, later, usually = (((out - truth).abs().max() / scale).item() for out in outputs)
    return max(at_first, later), usually
