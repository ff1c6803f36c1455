"""The ways into timm, open_clip, torchvision and KerasHub with one image file."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.front_doors.judge import Asked
from tests.packages import keras, keras_hub, open_clip, timm, torchvision, transformers

_SIDE = 48
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _levels(prepared: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    """On the scale of 0 to 255, from numbers that are normalised."""
    mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in (mean, std))
    return (prepared * std + mean) * 255


def into_timm() -> Mapping[str, Asked]:
    """Its own dataset's first; transformers opens its models too."""
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.TimmWrapperConfig(architecture="test_vit", model_args={})
        said = {"input_size": [3, _SIDE, _SIDE], "mean": _IMAGENET[0], "std": _IMAGENET[1]}
        config.pretrained_cfg = {**said, "crop_pct": 0.9, "interpolation": "bicubic"}
        config.save_pretrained(folder)
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
    data = timm.data.resolve_data_config(pretrained_cfg=config.pretrained_cfg)
    transform = timm.data.create_transform(**data, is_training=False)

    def of_transformers(path: Path) -> torch.Tensor:
        image = transformers.image_utils.load_image(str(path))
        return _levels(processor(image)["pixel_values"][0], *_IMAGENET)

    return {
        'transform(Image.open(path).convert("RGB"))': lambda path: _levels(
            transform(Image.open(path).convert("RGB")), *_IMAGENET
        ),
        "transform(Image.open(path))": lambda path: _levels(
            transform(Image.open(path)), *_IMAGENET
        ),
        "transformers: pipeline(path)": of_transformers,
    }


def into_open_clip() -> Mapping[str, Asked]:
    """Its cards' first."""
    cfg = open_clip.transform.PreprocessCfg(size=_SIDE)
    preprocess = open_clip.transform.image_transform_v2(cfg, is_train=False)
    return {
        "preprocess(Image.open(path))": lambda path: _levels(
            preprocess(Image.open(path)), cfg.mean, cfg.std
        ),
        'preprocess(Image.open(path).convert("RGB"))': lambda path: _levels(
            preprocess(Image.open(path).convert("RGB")), cfg.mean, cfg.std
        ),
    }


def into_torchvision() -> Mapping[str, Asked]:
    """Its `ImageFolder`'s first; the page of its models has the second."""
    weights = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1
    transform, decode_image = weights.transforms(), torchvision.io.decode_image
    return {
        'transforms(Image.open(path).convert("RGB"))': lambda path: _levels(
            transform(Image.open(path).convert("RGB")), *_IMAGENET
        ),
        "transforms(decode_image(path))": lambda path: _levels(
            transform(decode_image(str(path))), *_IMAGENET
        ),
        'transforms(decode_image(path, mode="RGB"))': lambda path: _levels(
            transform(decode_image(str(path), mode="RGB")), *_IMAGENET
        ),
    }


def into_keras_hub() -> Mapping[str, Asked]:
    """The first is the one of its examples."""
    converter = keras_hub.layers.ImageConverter(image_size=(_SIDE, _SIDE))

    def converted(image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(converter(image)).astype(np.float32))

    return {
        "converter(np.array(load_img(path)))": lambda path: converted(
            np.array(keras.utils.load_img(path))
        ),
        "converter(img_to_array(load_img(path)))": lambda path: converted(
            keras.utils.img_to_array(keras.utils.load_img(path))
        ),
    }


WAYS = {
    "timm 1.0.31": into_timm,
    "open_clip 3.3": into_open_clip,
    "torchvision 0.29": into_torchvision,
    "KerasHub 0.32, on JAX": into_keras_hub,
}
