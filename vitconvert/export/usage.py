"""Code that loads an output, to be run in its directory, with the programs that it is for."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.containers import written_module
from vitconvert.conversion.target import Target
from vitconvert.export.huggingface_config import reads_patches
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import BACKENDS

# Ecosystem -> who opens its directories by their name alone, the first by right.
PROGRAMS = {"timm": ("timm", "transformers"), "hf": ("transformers",)}

_LUCIDRAINS = {
    "lucidrains": ("ViT", ', pool="cls"'),
    "lucidrains_mean": ("ViT", ', pool="mean"'),
    "lucidrains_simple": ("SimpleViT", ""),
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Python, and what it is about."""

    title: str
    code: str


def examples(target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
    """One for each program that can load the target.

    Args:
        target, source: What was written, and what it was made of.
        has_processor: Whether there is a `preprocessor_config.json`.
    """
    config, preprocessing = source.config, source.preprocessing
    match target.table.ecosystem:
        case "timm":
            own = [_timm(config, preprocessing), _timm_wrapper(config, preprocessing)]
        case "hf" if has_processor or not reads_patches(target.their_config):
            own = [_transformers(target, config, preprocessing if has_processor else None)]
        case "openclip":
            own = [_openclip(target, config, preprocessing)]
        case "torchvision" if _is_torchvision(config):
            own = [_torchvision(config)]
        case "lucidrains" if target.table.name in _LUCIDRAINS and _is_lucidrains(config):
            own = [_lucidrains(target.table.name, config)]
        case "vit":
            own = []
        case _ if (usage := target.table.usage) is not None:
            own = [Example(title=usage.title, code=usage.code_for(config))]
        case _:
            title = f"For {target.table.title}"
            own = [Example(title=title, code=written_module(target.table.container).EXAMPLE)]
    return [*own, _vitconvert(config, preprocessing)]


def _timm(config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    # timm 1.0.31 would download ImageNet weights of a ResNet-D before it loads these.
    how = 'checkpoint_path="model.safetensors"' if config.resnet_d_stem else "pretrained=True"
    lines = ["import timm", *_imports(preprocessing), ""]
    lines += [f'model = timm.create_model("local-dir:.", {how}).eval()']
    if preprocessing:
        lines += [
            "data = timm.data.resolve_model_data_config(model)",
            "transform = timm.data.create_transform(**data, is_training=False)",
            f"output = model(transform({_photograph(config)}).unsqueeze(0))",
        ]
    else:
        lines += [f"output = model({_zeros(config)})"]
    title = 'With timm (from the Hub: `"hf-hub:ORG/REPO"` instead of `"local-dir:."`)'
    return Example(title=title, code="\n".join(lines))


def _timm_wrapper(config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    kind = "AutoModelForImageClassification" if config.num_classes else "AutoModel"
    return _with_transformers(kind, config, preprocessing is not None, "")


def _transformers(
    target: Target, config: ViTConfig, preprocessing: Preprocessing | None
) -> Example:
    on_pillow = preprocessing and BACKENDS[preprocessing.backend].resize == "pil"
    return _with_transformers(
        target.their_config["architectures"][0],
        config,
        preprocessing is not None,
        ', backend="pil"' if on_pillow else "",
        patches=reads_patches(target.their_config),
    )


def _with_transformers(
    kind: str, config: ViTConfig, processor: bool, backend: str, *, patches: bool = False
) -> Example:
    read = "" if patches else '["pixel_values"]'  # patches come with their mask and grid
    if processor:
        imports = ["from PIL import Image", f"from transformers import AutoImageProcessor, {kind}"]
        images = [
            f'processor = AutoImageProcessor.from_pretrained("."{backend})',
            f'images = processor({_photograph(config)}, return_tensors="pt"){read}',
        ]
    else:
        imports = ["import torch", f"from transformers import {kind}"]
        images = [f"images = {_zeros(config)}"]
    model = [
        f'model = {kind}.from_pretrained(".").eval()',
        f"output = model({'**images' if patches else 'pixel_values=images'})",
    ]
    return Example(
        title='With transformers (from the Hub: `"ORG/REPO"` instead of `"."`)',
        code="\n".join([*imports, "", *images, *model]),
    )


def _openclip(target: Target, config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    if not target.their_config:
        title = (
            "For open_clip, which builds such towers by the name of one of timm's models, and none "
            "is this one (there is no `open_clip_config.json`)"
        )
        return Example(title=title, code=written_module(target.table.container).EXAMPLE)
    imports = ["import json", "from pathlib import Path", "", "import open_clip"]
    build = [
        'config = json.loads(Path("open_clip_config.json").read_text())',
        'tower = open_clip.model._build_vision_tower(**config["model_cfg"]).eval()',
    ]
    own = "width" in target.their_config["model_cfg"]["vision_cfg"]
    build += ["tower.proj = None"] if own and not config.num_classes else []
    load = [
        'tensors = load_file("model.safetensors")',
        'tensors = {name.removeprefix("visual."): tensor for name, tensor in tensors.items()}',
        "tower.load_state_dict(tensors)",
    ]
    if preprocessing:
        imports += ["from open_clip.transform import PreprocessCfg, image_transform_v2"]
        load += [
            'cfg = PreprocessCfg(**config["preprocess_cfg"])',
            'images = image_transform_v2(cfg, is_train=False)(Image.open("photo.jpg"))[None]',
        ]
    else:
        load += [f"images = {_zeros(config)}"]
    imports += [*_imports(preprocessing), "from safetensors.torch import load_file", ""]
    return Example(
        title="With open_clip (there is no text tower; `model.visual` of a whole CLIP takes the "
        "same state dict)",
        code="\n".join([*imports, *build, *load, "output = tower(images)"]),
    )


def _is_torchvision(config: ViTConfig) -> bool:
    """Whether the arguments of its class can say it all."""
    return config.square and config.in_channels == 3 and config.num_classes > 0


def _torchvision(config: ViTConfig) -> Example:
    arguments = {
        "image_size": config.image_size[0],
        "patch_size": config.patch_size[0],
        "num_layers": config.depth,
        "num_heads": config.num_heads,
        "hidden_dim": config.embed_dim,
        "mlp_dim": config.mlp_dim,
        "num_classes": config.num_classes,
        "representation_size": config.representation_size or None,
        "norm_layer": f"partial(torch.nn.LayerNorm, eps={config.norm_eps!r})",
    }
    code = (
        "from functools import partial\n\nimport torch\n"
        "from torchvision.models import VisionTransformer\n\n"
        f"model = VisionTransformer(\n{_arguments(arguments)}\n)\n"
        'model.load_state_dict(torch.load("model.pt", weights_only=True))\n'
        f"output = model.eval()({_zeros(config)})"
    )
    return Example(title="With torchvision", code=code)


def _is_lucidrains(config: ViTConfig) -> bool:
    """Whether the class of the current release is this model without being changed."""
    usual = config.activation == "gelu" and config.norm_eps == 1e-5
    return usual and not config.attention_scale and config.num_classes > 0


def _lucidrains(dialect: str, config: ViTConfig) -> Example:
    name, pool = _LUCIDRAINS[dialect]
    arguments = {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "dim": config.embed_dim,
        "depth": config.depth,
        "heads": config.num_heads,
        "dim_head": config.head_dim,
        "mlp_dim": config.mlp_dim,
        "channels": config.in_channels,
    }
    code = (
        f"import torch\nfrom vit_pytorch import {name}\n\n"
        f"model = {name}(\n{_arguments(arguments)}{pool and f'    {pool[2:]},'}\n)\n"
        'model.load_state_dict(torch.load("model.pt", weights_only=True))\n'
        f"output = model.eval()({_zeros(config)})"
    )
    return Example(title="With vit-pytorch", code=code)


def _vitconvert(config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    title = 'With vitconvert (from the Hub: `"hf-hub:ORG/REPO"` instead of `"."`)'
    if preprocessing is None:
        code = (
            'import torch\nimport vitconvert\n\nmodel = vitconvert.load_model(".")\n'
            f"output = model({_zeros(config)})"
        )
        return Example(title=title, code=code)
    code = (
        "import vitconvert\nfrom PIL import Image\n\n"
        'model = vitconvert.load_model(".")\n'
        'preprocessing = vitconvert.load_checkpoint(".").preprocessing\n'
        'output = model(preprocessing(Image.open("photo.jpg")).unsqueeze(0))'
    )
    return Example(title=title, code=code)


def _imports(preprocessing: Preprocessing | None) -> list[str]:
    return ["from PIL import Image"] if preprocessing else ["import torch"]


def _photograph(config: ViTConfig) -> str:
    mode = "L" if config.in_channels == 1 else "RGB"
    return f'Image.open("photo.jpg").convert("{mode}")'


def _zeros(config: ViTConfig) -> str:
    sizes = ", ".join(map(str, (1, config.in_channels, *config.image_size)))
    return f"torch.zeros({sizes})"


def _arguments(values: Mapping[str, object]) -> str:
    return "\n".join(f"    {name}={value}," for name, value in values.items())
