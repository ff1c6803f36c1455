"""Write `weights_map/architectures.toml` anew from the installed timm and torchvision.

    python tests/tables/make_architectures.py > weights_map/architectures.toml

`test_architectures.py` compares the file with what this script finds.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import timm
import torch
import torchvision.models.vision_transformer as tv
from timm.layers import Attention, HybridEmbed, LayerNorm, Mlp, PatchEmbed
from timm.layers.activations import GELUTanh, QuickGELU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer

MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid")
ACTIVATIONS = {torch.nn.GELU: "gelu", GELUTanh: "gelu_tanh", QuickGELU: "quick_gelu"}

HEADER = """\
# Architectures that have a name, and what their tensors cannot tell. Sizes are listed too: a
# checkpoint under a name it does not fit is an error. Written by tests/tables/make_architectures.py
# from timm {timm} and torchvision; jeonsworld's from models/configs.py of its repository.
"""

# https://github.com/jeonsworld/ViT-pytorch/blob/main/models/configs.py
JEONSWORLD = {
    "ViT-B_16": {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
    "ViT-B_32": {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
    "ViT-L_16": {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_dim": 4096},
    "ViT-L_32": {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_dim": 4096},
    "ViT-H_14": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "mlp_dim": 5120},
    "R50-ViT-B_16": {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
}


def supported(model: torch.nn.Module) -> bool:
    """Whether vitconvert's ViT computes what this model computes."""
    block = model.blocks[0]
    return (
        isinstance(model, VisionTransformer)
        and type(model.patch_embed) in (PatchEmbed, HybridEmbed)
        and type(block) is Block
        and type(block.attn) is Attention
        and type(block.mlp) is Mlp
        and type(block.mlp.act) in ACTIVATIONS
        and isinstance(block.attn.norm, torch.nn.Identity)
        and isinstance(block.mlp.norm, torch.nn.Identity)
        and type(block.norm1) is LayerNorm
        and model.global_pool in ("", "token", "avg", "avgmax", "max", "map")
        and not (
            isinstance(model.norm, torch.nn.Identity)
            and isinstance(model.fc_norm, torch.nn.Identity)
        )
        and resnet_stem(model.patch_embed)
    )


def resnet_stem(patch_embed: torch.nn.Module) -> bool:
    """Hybrids: Google's ResNet v1 with GroupNorm and SAME padding, and no other backbone."""
    if type(patch_embed) is PatchEmbed:
        return True
    backbone = patch_embed.backbone
    norms = [m for m in backbone.modules() if "BatchNorm" in type(m).__name__]
    names = {name.split(".")[0] for name, _ in backbone.named_parameters()}
    return not norms and names in ({"stem", "stages"}, {"conv", "norm"})


def facts(model: VisionTransformer) -> dict[str, Any]:
    """A timm model's row."""
    block = model.blocks[0]
    embed = model.patch_embed
    found = {
        "image_size": list(embed.img_size),
        "patch_size": list(embed.proj.kernel_size),
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        "activation": ACTIVATIONS[type(block.mlp.act)],
        "norm_eps": block.norm1.eps,
        "pooling": model.global_pool or "none",
        "no_embed_class": bool(model.no_embed_class),
    }
    if not isinstance(block.ls1, torch.nn.Identity):
        found["layer_scale"] = True
    if isinstance(model, VisionTransformerDistilled):
        found["dist_token"] = True
    if isinstance(embed, HybridEmbed):
        stages = getattr(embed.backbone, "stages", [])
        found["stem"] = True
        found["stem_depths"] = [len(stage.blocks) for stage in stages]
    if model.pool_include_prefix:
        found["pool_include_prefix"] = True
    return found


def timm_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted({n for module in MODULES for n in timm.list_models(module=module)}):
        with torch.device("meta"):
            model = timm.create_model(name)
        if supported(model):
            yield name, facts(model)


def torchvision_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"):
        source = inspect.getsource(getattr(tv, name))
        numbers = ("patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim")
        found = {n: int(source.split(f"{n}=")[1].split(",")[0]) for n in numbers}
        yield (
            name,
            {
                "patch_size": [found["patch_size"]] * 2,
                "embed_dim": found["hidden_dim"],
                "depth": found["num_layers"],
                "num_heads": found["num_heads"],
                "mlp_dim": found["mlp_dim"],
            },
        )


def document() -> str:
    """The whole file."""
    lines = [HEADER.format(timm=timm.__version__)]
    sections = {
        "timm": timm_rows(),
        "torchvision": torchvision_rows(),
        "jeonsworld": sorted(JEONSWORLD.items()),
    }
    for section, rows in sections.items():
        lines.append(f"[{section}]")
        lines += [f'"{name}" = {{ {inline(row)} }}' for name, row in rows]
        lines.append("")
    return "\n".join(lines)


def inline(row: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {spell(value)}" for key, value in row.items())


def spell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    print(document(), end="")
