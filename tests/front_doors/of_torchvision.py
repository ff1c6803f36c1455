"""torchvision's front door: `weights.transforms()` of an image that Pillow opened.

torchvision 0.29, `ImageFolder`: Image.open(path).convert("RGB"). The page of its models reads with
`decode_image`, which is another of its doors: `other_ways.py`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.front_doors import ours
from tests.front_doors.judge import Asked, Door
from tests.packages import torchvision

_SIZES = {"patch_size": 16, "num_heads": 3, "hidden_dim": 36, "mlp_dim": 50, "num_classes": 7}
_FAMILIES: Mapping[str, dict[str, Any]] = {
    "vit": {"image_size": 224, "num_layers": 2},
    "vit, depth 11": {"image_size": 224, "num_layers": 11, "representation_size": 20},
}


def _model(family: str) -> Any:
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(**_SIZES, **_FAMILIES[family])
    return ours.sharp(model)


def _write(family: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    torch.save(_model(family).state_dict(), folder / "model.pth")


def _theirs(family: str, folder: Path) -> Asked:
    model = _model(family)
    model.load_state_dict(torch.load(folder / "model.pth", weights_only=True))
    preprocess = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    return lambda path: model(preprocess(Image.open(path).convert("RGB")).unsqueeze(0))


def _ours(folder: Path) -> Asked:
    return ours.classes(folder / "model.pth", overrides={"num_heads": 3})


DOORS: Mapping[str, Door] = {
    family: Door(
        write=partial(_write, family),
        theirs=partial(_theirs, family),
        ours=_ours,
        exact=(224, 224),
    )
    for family in _FAMILIES
}
