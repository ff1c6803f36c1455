"""Write `weights_map/architectures.toml` anew from the installed timm and torchvision.

    python -m tests.tables.make_architectures > weights_map/architectures.toml

`test_architectures.py` compares the file with what this script finds.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import timm
import torch
import torchvision.models.vision_transformer as tv
from timm.layers import (
    Attention,
    HybridEmbed,
    LayerNorm,
    PatchEmbed,
    RmsNorm,
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    SwiGLUPacked,
)
from timm.layers.activations import GELUTanh, QuickGELU
from timm.layers.diff_attention import DiffAttention
from timm.models.beit import Attention as BeitAttention
from timm.models.beit import Beit
from timm.models.beit import Block as BeitBlock
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import (
    Block,
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from timm.models.vision_transformer_hybrid import ConvStem

from tests.tables import facts_of_grids, facts_of_windows
from vitconvert.config import ViTConfig
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import find_tables

OWN_FACTS = (facts_of_grids, facts_of_windows)
MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid", "eva", "beit")
ROPES = {
    RotaryEmbeddingCat: "axial",
    RotaryEmbeddingDinoV3: "dinov3",
    RotaryEmbeddingMixed: "mixed",
}
POST_NORM = ("ResPostBlock", "EvaBlockPostNorm")
PARALLEL = ("ParallelScalingBlock", "DiffParallelScalingBlock")
# Rows say only what differs; the others are ViTConfig's defaults, or what tensors show.
USUAL = (
    *("class_token", "num_registers", "position_embedding", "pre_norm", "qkv_bias", "proj_bias"),
    *("mlp_bias", "qk_norm", "differential", "attention_norm", "mlp_norm", "norm", "fc_norm"),
    *("pool_include_prefix", "final_norm", "gated_mlp", "layer_scale", "block_order", "branches"),
    *("relative_positions", "dist_token", "pool_heads", "rope_offset", "rope_half", "v_norm"),
    *("rope_indexing", "centred_pixels", "clipped_linears", "position_square", "merge_size"),
    *("window_size", "neck_dim", "bare_fc_norm"),
)
DEFAULTS = {f.name: f.default for f in dataclasses.fields(ViTConfig) if f.name in USUAL}
DEFAULTS["stem_style"] = "timm"
ACTIVATIONS = {torch.nn.GELU: "gelu", GELUTanh: "gelu_tanh", QuickGELU: "quick_gelu"}

HEADER = """\
# Architectures that have a name, and what their tensors cannot tell. Sizes are listed too: a
# checkpoint under a name it does not fit is an error. Written by tests/tables/make_architectures.py
# from timm {timm} and torchvision; those of model_cards from the code of cards; jeonsworld's from
# models/configs.py of its repository; those of DINO, DINOv2 and DINOv3 from their torch.hub entry
# points.
"""

# https://github.com/jeonsworld/ViT-pytorch/blob/460a162/models/configs.py
JEONSWORLD = {
    "ViT-B_16": {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
    "ViT-B_32": {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
    "ViT-L_16": {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_dim": 4096},
    "ViT-L_32": {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_dim": 4096},
    "ViT-H_14": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "mlp_dim": 5120},
    "R50-ViT-B_16": {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
}

# Sizes of https://github.com/facebookresearch: dino/blob/7c446df/vision_transformer.py, hubconf.py,
# dinov2/blob/b8931f7/dinov2/hub/backbones.py, dinov3/blob/6876159/dinov3/hub/backbones.py; and what
# the files at the fixed addresses of DINO are called. The others are called by their files alone:
# sizes of mae/models_mae.py, msn/src/deit.py, and moco-v3/1c6b717/vits.py, whose small one has 12
# heads.
_WIDTHS = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "g": (1536, 40, 24)}
_DINOV3 = {**_WIDTHS, "h": (1280, 32, 20), "7b": (4096, 40, 32)}


def meta_rows() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """The architectures of Meta's self-supervised ViTs, by torch.hub's names."""

    def row(width: tuple[int, int, int], image: int, patch: int, **more: Any) -> dict[str, Any]:
        sizes = dict(zip(("embed_dim", "depth", "num_heads"), width, strict=True))
        squares = {"image_size": [image] * 2, "patch_size": [patch] * 2}
        usual = {"activation": "gelu", "norm_eps": 1e-6}
        return {**squares, **sizes, **usual, **more}

    gated = {"activation": "silu", "gated_mlp": True}
    dino = {
        name: row(_WIDTHS[size], 224, patch, position_resampling="bicubic_offset")
        for size, called in (("s", "deitsmall"), ("b", "vitbase"))
        for patch in (8, 16)
        for name in (f"dino_vit{size}{patch}", f"dino_{called}{patch}")
    }
    dinov2 = {
        f"dinov2_vit{size}14{reg}": row(
            width, 518, 14, layer_scale=True, **(gated if size == "g" else {})
        )
        for size, width in _WIDTHS.items()
        for reg in ("", "_reg")
    }
    dinov3 = {
        f"dinov3_vit{size}": row(
            _DINOV3[size.split("16")[0]],
            224,
            16,
            norm_eps=1e-5,
            layer_scale=True,
            **(gated if size.endswith("plus") or size == "7b16" else {}),
        )
        for size in ("s16", "s16plus", "b16", "l16", "l16plus", "h16plus", "7b16")
    }
    huge = (1280, 32, 16)
    mae = {
        f"mae_{kind}_vit_{size}": row(width, 224, patch, position_resampling="bicubic")
        for kind in ("pretrain", "finetuned", "visualize")
        for size, width, patch in (
            ("base", _WIDTHS["b"], 16),
            ("large", _WIDTHS["l"], 16),
            ("huge", huge, 14),
        )
    }
    moco_v3 = {
        f"{kind}vit-{size}-300ep": row(width, 224, 16)
        for kind in ("", "linear-")
        for size, width in (("s", (384, 12, 12)), ("b", _WIDTHS["b"]))
    }
    msn = {
        f"vit{size}{patch}_{epochs}ep": row(_WIDTHS[size], 224, patch)
        for size, patch, epochs in (
            ("s", 16, 800),
            ("b", 16, 600),
            ("l", 16, 600),
            ("b", 4, 300),
            ("l", 7, 200),
        )
    }
    every = {"dino": dino, "dinov2": dinov2, "dinov3": dinov3, "mae": mae}
    every |= {"moco_v3": moco_v3, "msn": msn}
    return {section: sorted(rows.items()) for section, rows in every.items()}


_GATED = {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU, "init_values": 1e-5}
_VIRCHOW = {"mlp_ratio": 5.3375, "global_pool": "", **_GATED}
# Models by their repositories: what config.json (an architecture and `model_args`) and the code of
# the card, https://huggingface.co/NAME, give timm.create_model. Cards and preparation as read in
# public copies of that code in November 2026; the repositories ask for a name before they show it.
CARDS: dict[str, tuple[str, dict[str, Any]]] = {
    "MahmoodLab/UNI": ("vit_large_patch16_224", {"init_values": 1e-5}),
    "MahmoodLab/UNI2-h": (
        "vit_giant_patch14_224",
        {
            "img_size": 224,
            "patch_size": 14,
            "depth": 24,
            "num_heads": 24,
            "embed_dim": 1536,
            "mlp_ratio": 2.66667 * 2,
            "no_embed_class": True,
            "reg_tokens": 8,
            **_GATED,
        },
    ),
    "paige-ai/Virchow": ("vit_huge_patch14_224", _VIRCHOW),
    "paige-ai/Virchow2": ("vit_huge_patch14_224", {"reg_tokens": 4, **_VIRCHOW}),
    "prov-gigapath/prov-gigapath": (
        "vit_giant_patch14_dinov2",
        {
            "img_size": 224,
            "patch_size": 16,
            "embed_dim": 1536,
            "depth": 40,
            "num_heads": 24,
            "mlp_ratio": 5.33334,
            "init_values": 1e-5,
        },
    ),
    "bioptimus/H-optimus-0": ("vit_giant_patch14_reg4_dinov2", {"img_size": 224}),
    "bioptimus/H-optimus-1": ("vit_giant_patch14_reg4_dinov2", {"img_size": 224}),
    "bioptimus/H0-mini": (
        "vit_base_patch14_reg4_dinov2",
        {"img_size": 224, "mlp_ratio": 5.33334, "global_pool": "", **_GATED},
    ),
}


def supported(model: torch.nn.Module) -> bool:
    """Whether vitconvert's ViT computes what this model computes."""
    blocks = {type(block) for block in model.blocks}
    attentions = {type(m) for m in model.modules() if type(m).__name__.endswith("ttention")}
    return (
        isinstance(model, VisionTransformer | Eva | Beit)
        and type(model.patch_embed) in (PatchEmbed, HybridEmbed)
        and blocks
        <= {
            *(Block, ResPostBlock, ParallelThingsBlock, EvaBlock, EvaBlockPostNorm, BeitBlock),
            *(ParallelScalingBlock, DiffParallelScalingBlock),
        }
        and attentions <= {Attention, DiffAttention, EvaAttention, BeitAttention}
        and model.global_pool in ("", "token", "avg", "avgmax", "max", "map")
        and (type(model.patch_embed) is PatchEmbed or bool(stem_style(model.patch_embed.backbone)))
    )


def stem_style(backbone: torch.nn.Module) -> str:
    """Hybrids: Google's ResNet v1 with group norms, ResNet-D, MobileCLIP's, or another backbone."""
    norms = {type(m) for m in backbone.modules() if "BatchNorm" in type(m).__name__}
    names = {name.split(".")[0] for name, _ in backbone.named_parameters()}
    if isinstance(backbone, ConvStem) and [s.conv.stride[0] for s in backbone] == [4, 2, 2]:
        return "mobileclip"
    if names in ({"stem", "stages"}, {"conv", "norm"}):
        return "" if norms else "timm"
    deep = isinstance(getattr(backbone, "conv1", None), torch.nn.Sequential)
    return "resnet_d" if deep and norms == {torch.nn.BatchNorm2d} else ""


def facts(model: torch.nn.Module) -> dict[str, Any]:
    """A timm model's row: what tensors cannot show, and sizes."""
    if own := own_facts(model):
        found = own.facts(model)
    else:
        found = {**sizes(model), **numerics(model), **parts(model), **rope(model), **stem(model)}
    return {field: value for field, value in found.items() if value != DEFAULTS.get(field)}


def own_facts(model: torch.nn.Module) -> ModuleType | None:
    """Who knows the facts of a model that is of one of the newer modules."""
    module = type(model).__module__.rpartition(".")[2]
    return next((own for own in OWN_FACTS if module in own.MODULES), None)


def sizes(model: torch.nn.Module) -> dict[str, Any]:
    embed = model.patch_embed
    attention = next(m for m in model.blocks.modules() if hasattr(m, "num_heads"))
    return {
        "image_size": list(embed.img_size),
        "patch_size": list(patch_convolution(embed).kernel_size),
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": attention.num_heads,
        "pool_heads": pool_heads(model, attention.num_heads),
    }


def patch_convolution(embed: torch.nn.Module) -> torch.nn.Module:
    """The last of MobileCLIP's convolutions is the patch convolution."""
    last = isinstance(embed.proj, torch.nn.Identity)
    return embed.backbone[-1].conv if last else embed.proj


def parts(model: torch.nn.Module) -> dict[str, Any]:
    """What tensors show too; it tells apart architectures of the same size."""
    names = {name for name, _ in model.named_parameters()}
    biases = (
        *("attn.qkv.bias", "attn.q_bias", "attn.q_proj.bias", "attns.0.attn.qkv.bias"),
        "in_proj.bias",
    )
    outputs = ("attn.proj", "attns.0.attn.proj", "attn_out_proj", "out_proj")
    mlps = ("mlp.fc2", "ffns.0.mlp.fc2", "mlp_out_proj", "out_proj")
    registers = getattr(model, "reg_token", None)
    return {
        "class_token": "cls_token" in names,
        "num_registers": 0 if registers is None else registers.shape[1],
        "position_embedding": "learned" if "pos_embed" in names else "none",
        "pre_norm": "norm_pre.weight" in names,
        "qkv_bias": any(f"blocks.0.{bias}" in names for bias in biases),
        "proj_bias": any(f"blocks.0.{name}.bias" in names for name in outputs),
        "mlp_bias": any(f"blocks.0.{name}.bias" in names for name in mlps),
        "qk_norm": bool(names & {"blocks.0.attn.q_norm.weight", "blocks.0.q_norm.weight"}),
        "differential": any("lambda_q1" in name for name in names),
        "attention_norm": "blocks.0.attn.norm.weight" in names,
        "mlp_norm": "blocks.0.mlp.norm.weight" in names,
    }


def pool_heads(model: torch.nn.Module, heads: int) -> int:
    pool = getattr(model, "attn_pool", None)
    return 0 if pool is None or pool.num_heads == heads else pool.num_heads


def numerics(model: torch.nn.Module) -> dict[str, Any]:
    norms = [m for m in model.blocks.modules() if isinstance(m, LayerNorm | RmsNorm)]
    activations = {type(m) for m in model.blocks.modules()} & set(ACTIVATIONS)
    gated = any(type(m).__name__ in ("SwiGLU", "GluMlp") for m in model.blocks.modules())
    tables = [name for name, _ in model.named_parameters() if "relative_position_bias" in name]
    shared = "shared" if any(name.startswith("rel_pos_bias") for name in tables) else "block"
    return {
        "activation": "silu" if gated else ACTIVATIONS[activations.pop()],
        "norm_eps": norms[0].eps,
        "norm": "rms" if isinstance(norms[0], RmsNorm) else "layer",
        "pooling": model.global_pool or "none",
        "pool_include_prefix": includes_prefix(model),
        "no_embed_class": bool(getattr(model, "no_embed_class", False)),
        "final_norm": not isinstance(model.norm, torch.nn.Identity),
        "fc_norm": not isinstance(model.fc_norm, torch.nn.Identity),
        "gated_mlp": gated,
        "layer_scale": any(layer_scale(name) for name, _ in model.named_parameters()),
        "block_order": block_order(type(model.blocks[0]).__name__),
        "branches": getattr(model.blocks[0], "num_parallel", 1),
        "relative_positions": shared if tables else "none",
        "dist_token": isinstance(model, VisionTransformerDistilled),
    }


def block_order(kind: str) -> str:
    if kind in PARALLEL:
        return "parallel"
    return "res_post_norm" if kind in POST_NORM else "pre"


def includes_prefix(model: torch.nn.Module) -> bool:
    """Eva's attention pooling reads every token; VisionTransformer says so itself."""
    pooled = isinstance(model, Eva) and model.attn_pool is not None
    return pooled or bool(getattr(model, "pool_include_prefix", False))


def layer_scale(name: str) -> bool:
    return name.endswith((".gamma", ".gamma_1"))


def rope(model: torch.nn.Module) -> dict[str, Any]:
    embedding = getattr(model, "rope", None)
    if embedding is None:
        return {}
    kind = ROPES[type(embedding)]
    found = {
        "rope": kind,
        "rope_temperature": None if kind == "mixed" else float(embedding.temperature),
        "rope_indexing": embedding.grid_indexing,
        "rope_half": bool(getattr(embedding, "rotate_half", False)),
        "rope_offset": float(getattr(embedding, "grid_offset", 0.0)),
        "rope_reference": list(getattr(embedding, "ref_feat_shape", None) or []),
    }
    return {field: value for field, value in found.items() if value not in (None, [])}


def stem(model: torch.nn.Module) -> dict[str, Any]:
    if not isinstance(model.patch_embed, HybridEmbed):
        return {}
    backbone = model.patch_embed.backbone
    stages = [len(stage.blocks) for stage in getattr(backbone, "stages", [])]
    layers = [len(layer) for name, layer in backbone.named_children() if "layer" in name]
    depths = {"stem": True, "stem_depths": stages or layers}
    return depths | {"stem_style": stem_style(backbone)}


def timm_rows(every: int = 1) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Rows by the dialect that the architecture's tensors are spelled in, of every N-th name."""
    sections: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    modules = (*MODULES, *(module for own in OWN_FACTS for module in own.MODULES))
    names = sorted({n for module in modules for n in timm.list_models(module=module)})
    for name in names[::every]:
        with torch.device("meta"):
            model = timm.create_model(name)
        if own_facts(model) or supported(model):
            found = facts(model)
            binding = recognise(header(model), find_tables("timm"), {"architecture": name}).binding
            assert binding.fits, f"{name} is in no dialect of timm"
            sections.setdefault(binding.table.name, []).append((name, found))
    return dict(sorted(sections.items()))


def header(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes without the blocks after the first two, which tell nothing new."""
    later = re.compile(r"blocks\.([2-9]|\d\d)")
    state = model.state_dict().items()
    return {key: tuple(tensor.shape) for key, tensor in state if not later.match(key)}


def of_card(name: str, **changes: Any) -> torch.nn.Module:
    """The model that the code of a card builds."""
    architecture, arguments = CARDS[name]
    return timm.create_model(architecture, num_classes=0, **arguments | changes)


def config_of_card(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json beside the weights of a card: no word for classes."""
    architecture, arguments = CARDS[name]
    words = {k: v for k, v in arguments.items() if k not in ("mlp_layer", "act_layer")}
    return {"architecture": architecture, "num_classes": 0, "model_args": words | changes}


def card_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in CARDS:
        with torch.device("meta"):
            model = of_card(name)
        yield name, facts(model) | {"mlp_dim": model.blocks[0].mlp.fc2.in_features}


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
        **timm_rows(),
        "model_cards": card_rows(),
        "torchvision": torchvision_rows(),
        "jeonsworld": sorted(JEONSWORLD.items()),
        **meta_rows(),
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
