"""MMPretrain's front door: `ImageClassificationInferencer` of a configuration and a checkpoint.

Its scores are probabilities. To be asked in a process of its own: other tests import MMPretrain
without OpenCV, which opens its images.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

import vitconvert
from tests.front_doors.judge import Asked, Door
from tests.packages import cv2, mmpretrain_alone
from tests.small_models import randomise_calmly

_CLASSES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
_SIZES = {"embed_dims": 36, "num_layers": 2, "num_heads": 3, "feedforward_channels": 50}
_HALVES = {"mean": [127.5, 127.5, 127.5], "std": [127.5, 127.5, 127.5], "to_rgb": True}
_IMAGENET = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "to_rgb": True}
_LOAD, _PACK = {"type": "LoadImageFromFile"}, {"type": "PackInputs"}
_EDGE = {"type": "ResizeEdge", "scale": 55, "edge": "short", "backend": "pillow"}
_CROP = {"type": "CenterCrop", "crop_size": 48}

# Arguments of the backbone, its data_preprocessor, and the pipeline between the two usual ends
_FAMILIES: Mapping[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "vit": ({}, _HALVES, [_EDGE, _CROP]),
    "vit, depth 11, bicubic": (
        {"arch": {**_SIZES, "num_layers": 11}},
        _IMAGENET,
        [{**_EDGE, "interpolation": "bicubic"}, _CROP],
    ),
    "deit, squashed": (
        {"type": "DistilledVisionTransformer", "img_size": (32, 48)},
        _IMAGENET,
        [{"type": "Resize", "scale": (48, 32), "backend": "pillow", "interpolation": "lanczos"}],
    ),
    "vit, squashed and cropped": (
        {"img_size": (32, 48)},
        {"to_rgb": True},
        [
            {"type": "Resize", "scale": (61, 53), "backend": "pillow"},
            {"type": "CenterCrop", "crop_size": (48, 32)},
        ],
    ),
}


def _configuration(family: str) -> str:
    backbone, images, between = _FAMILIES[family]
    backbone = {"type": "VisionTransformer", "arch": _SIZES, "img_size": 48, **backbone}
    heads = {"DistilledVisionTransformer": "DeiTClsHead"}
    model = {
        "type": "ImageClassifier",
        "backbone": {"patch_size": 16, **backbone},
        "head": {
            "type": heads.get(backbone["type"], "VisionTransformerClsHead"),
            "num_classes": len(_CLASSES),
            "in_channels": 36,
        },
    }
    pipeline = [_LOAD, *between, _PACK]
    loader = {"dataset": {"type": "ImageNet", "pipeline": pipeline}}
    values = {"model": model, "data_preprocessor": images, "test_dataloader": loader}
    return "\n".join(f"{name} = {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    """As mmengine writes it: `dict(type='ViT')`."""
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key}={_text(v)}' for key, v in value.items())})"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


def _mmpretrain() -> Any:
    assert cv2.imread  # before it, so that it has the real one
    mmpretrain_alone()
    sys.modules.setdefault("mat4py", MagicMock())  # which reads the labels of other datasets
    import mmpretrain

    return mmpretrain


def _write(family: str, folder: Path) -> None:
    text = _configuration(family)
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(text, encoding="utf-8")
    torch.manual_seed(0)
    model = randomise_calmly(_mmpretrain().get_model(str(folder / "config.py")))
    meta = {"cfg": text, "dataset_meta": {"classes": _CLASSES}, "epoch": 3}
    torch.save({"meta": meta, "state_dict": model.state_dict()}, folder / "epoch_3.pth")


def _theirs(folder: Path) -> Asked:
    asked = _mmpretrain().ImageClassificationInferencer(
        str(folder / "config.py"), pretrained=str(folder / "epoch_3.pth"), device="cpu"
    )
    return lambda path: torch.from_numpy(asked(str(path))[0]["pred_scores"])


def _ours(family: str, folder: Path) -> Asked:
    size = _FAMILIES[family][0].get("img_size", (48, 48))
    checkpoint = vitconvert.load_checkpoint(
        folder / "epoch_3.pth", overrides={"num_heads": 3, "image_size": size}
    )

    def ask(path: Path) -> torch.Tensor:
        (found,) = vitconvert.predict(checkpoint, path, topk=len(_CLASSES))
        if found.error:
            raise found.error
        assert {each.label for each in found.top} == set(_CLASSES)
        ordered = sorted(found.top, key=lambda each: each.index)
        return torch.tensor([each.probability for each in ordered])

    return ask


DOORS: Mapping[str, Door] = {
    family: Door(
        write=partial(_write, family),
        theirs=_theirs,
        ours=partial(_ours, family),
        exact=(32, 48),
    )
    for family in _FAMILIES
}
