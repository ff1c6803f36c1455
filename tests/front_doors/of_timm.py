"""timm's front door: `create_model` of a directory, `create_transform`, images as its own datasets.

timm 1.0.31, `ImageDataset`: Image.open(path).convert("RGB"), or "L" of one channel.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file

from tests.front_doors import ours
from tests.front_doors.judge import Asked, Door
from tests.packages import timm

_TINY = {"embed_dim": 36, "depth": 2, "num_heads": 3}
_ALL_OF_IT = {"crop_pct": 1.0, "crop_mode": "squash"}
_FLAT = {"mean": [0.5, 0.45, 0.4], "std": [0.3, 0.25, 0.2]}

# Architecture, its arguments, and what its pretrained_cfg says of images
_FAMILIES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit, centre": ("vit_tiny_patch16_224", {**_TINY, "img_size": 48}, {"crop_pct": 0.9}),
    "vit, depth 11, oblong": (
        "vit_tiny_patch16_224",
        {**_TINY, "img_size": [48, 32], "depth": 11},
        {"input_size": [3, 48, 32], "interpolation": "bilinear", "crop_pct": 0.875},
    ),
    "vit, squashed": ("vit_tiny_patch16_224", {**_TINY, "img_size": 48}, _ALL_OF_IT | _FLAT),
    "vit, border": (
        "vit_tiny_patch16_224",
        {**_TINY, "img_size": 48},
        {"crop_pct": 0.95, "crop_mode": "border", "interpolation": "lanczos", **_FLAT},
    ),
    "vit, nearest": (
        "vit_tiny_patch16_224",
        {**_TINY, "img_size": 48},
        {"interpolation": "nearest", "crop_pct": 0.71},
    ),
    "vit, grey": (
        "vit_tiny_patch16_224",
        {**_TINY, "img_size": 48, "in_chans": 1},
        {"input_size": [1, 48, 48], "mean": [0.4], "std": [0.2], "crop_pct": 0.93},
    ),
    "vit, silent": ("vit_tiny_patch16_224", {**_TINY, "img_size": 224}, {}),
    "clip": (
        "vit_base_patch16_clip_224",
        {**_TINY, "img_size": 48},
        {"mean": [0.481, 0.457, 0.408], "std": [0.268, 0.261, 0.275], "crop_pct": 0.95},
    ),
    "siglip": (
        "vit_base_patch16_siglip_gap_224",
        {**_TINY, "img_size": 48, "num_classes": 7},
        _ALL_OF_IT | {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    ),
    "deit, distilled": (
        "deit_tiny_distilled_patch16_224",
        {**_TINY, "img_size": 48},
        {"crop_pct": 0.9},
    ),
    "deit 3": ("deit3_small_patch16_224", {**_TINY, "img_size": 48}, {"crop_pct": 1.0}),
    "beit": (
        "beit_base_patch16_224",
        {**_TINY, "img_size": 48},
        {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 0.9},
    ),
    "eva": ("eva02_tiny_patch14_224", {**_TINY, "img_size": 56}, {"input_size": [3, 56, 56]}),
    "dinov2": (
        "vit_small_patch14_reg4_dinov2",
        {**_TINY, "img_size": 56},
        {"input_size": [3, 56, 56], "crop_pct": 1.0},
    ),
    "dinov3": ("vit_small_patch16_dinov3", {**_TINY, "img_size": 48}, {"crop_pct": 1.0}),
    "relative positions": (
        "vit_relpos_small_patch16_224",
        {**_TINY, "img_size": 48},
        {"crop_pct": 0.9},
    ),
    "sam": ("samvit_base_patch16_224", {**_TINY, "img_size": 64}, {"input_size": [3, 64, 64]}),
    "flexivit": ("flexivit_small", {**_TINY, "img_size": 48}, {"crop_pct": 0.95}),
    "naflex": ("naflexvit_base_patch16_gap", {**_TINY, "img_size": 48}, {"crop_pct": 1.0}),
}


# Of an architecture's name alone, in a config.json or typed beside a file
_BY_NAME = ("test_vit", "test_vit3.r160_in1k", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")


def _write(family: str, folder: Path) -> None:
    name, arguments, cfg = _FAMILIES[family]
    arguments = {"num_classes": 7, **arguments}
    torch.manual_seed(0)
    model = ours.sharp(timm.create_model(name, **arguments))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()},
        folder / "model.safetensors",
    )
    size = arguments["img_size"]
    size = size if isinstance(size, list) else [size, size]
    named = {"architecture": name, "num_classes": arguments.pop("num_classes")}
    stated = {"input_size": [3, *size], **cfg} if cfg else {}
    config = {**named, "model_args": arguments, "pretrained_cfg": stated}
    (folder / "config.json").write_text(json.dumps(config))


def _theirs(folder: Path) -> Asked:
    return _asked(timm.create_model(f"local-dir:{folder}", pretrained=True))


def _asked(model: Any) -> Asked:
    model.eval()
    data = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**data, is_training=False)
    mode = "L" if data["input_size"][0] == 1 else "RGB"

    def ask(path: Path) -> torch.Tensor:
        prepared: torch.Tensor = transform(Image.open(path).convert(mode))
        return model(prepared.unsqueeze(0))

    return ask


def _write_by_name(name: str, folder: Path) -> None:
    model = ours.sharp(timm.create_model(name, num_classes=7))
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "weights.pth")


def _theirs_by_name(name: str, folder: Path) -> Asked:
    file = folder / "weights.pth"
    return _asked(timm.create_model(name, num_classes=7, checkpoint_path=file))


def _ours_by_name(name: str, folder: Path) -> Asked:
    return ours.classes(folder / "weights.pth", architecture=name)


DOORS: Mapping[str, Door] = {
    **{
        family: Door(
            write=partial(_write, family), theirs=_theirs, ours=ours.classes, exact=(48, 48)
        )
        for family in _FAMILIES
    },
    **{
        f"{name}, by name": Door(
            write=partial(_write_by_name, name),
            theirs=partial(_theirs_by_name, name),
            ours=partial(_ours_by_name, name),
            exact=(224, 224),
        )
        for name in _BY_NAME
    },
}
