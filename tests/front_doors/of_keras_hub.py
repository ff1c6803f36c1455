"""KerasHub's front door: a preset directory, and images as `keras.utils.load_img` opens them.

keras-hub 0.32: the example of `decode_imagenet_predictions` calls `classifier.predict` with
np.array([keras.utils.load_img(path)]), whole numbers; `img_to_array` makes floats, another door.
`predict` has the same preprocessor called by grain or TensorFlow, which the tests do not need; nor
does a door differ on PyTorch, but for bicubic without antialias.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.front_doors import ours
from tests.front_doors.judge import Asked, Door
from tests.packages import keras, keras_hub

_SIZES: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12}
_VIT = {**_SIZES, "image_shape": (16, 24, 3), "patch_size": (8, 12), "mlp_dim": 20}
_DEIT = {**_SIZES, "image_shape": (16, 24, 3), "patch_size": (8, 12), "intermediate_dim": 20}
_DINO = {**_SIZES, "image_shape": (16, 16, 3), "patch_size": 8, "intermediate_dim": 24}
_DINO |= {"position_embedding_shape": (16, 16, 3)}
_SCALE: dict[str, Any] = {"scale": [0.019, 0.013, 0.0156], "offset": [-1.9, -2.1, -1.7]}


# What Keras' backends differ in from one another: one level of 255 where a number ends in one half
TIES = 5e-3


def _randomised(model: Any) -> Any:
    """All parameters random; numbers of positions stay."""
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in weight.dtype:
            weight.assign(random.normal(0, 0.3, weight.shape) + ("gamma" in weight.path))
    return model


def _classifier(kind: str, sizes: dict[str, Any], converter: dict[str, Any], folder: Path) -> None:
    models, size = keras_hub.models, sizes["image_shape"][:2]
    converts = getattr(keras_hub.layers, f"{kind}ImageConverter")(image_size=size, **converter)
    model = getattr(models, f"{kind}ImageClassifier")(
        backbone=getattr(models, f"{kind}Backbone")(**sizes),
        num_classes=7,
        preprocessor=getattr(models, f"{kind}ImageClassifierPreprocessor")(converts),
    )
    _randomised(model).save_to_preset(str(folder))


def _backbone(kind: str, sizes: dict[str, Any], converter: dict[str, Any], folder: Path) -> None:
    size = sizes["image_shape"][:2]
    model = _randomised(getattr(keras_hub.models, f"{kind}Backbone")(**sizes))
    model.save_to_preset(str(folder))
    converts = getattr(keras_hub.layers, f"{kind}ImageConverter")(image_size=size, **converter)
    converts.save_to_preset(str(folder))


def _whole_numbers(path: Path) -> Any:
    return np.array([keras.utils.load_img(path)])


def _classes(folder: Path) -> Asked:
    preprocessor = keras_hub.models.ImageClassifierPreprocessor.from_preset(str(folder))
    model = keras_hub.models.ImageClassifier.from_preset(str(folder))

    def ask(path: Path) -> torch.Tensor:
        return torch.from_numpy(np.array(model(preprocessor(_whole_numbers(path)))))

    return ask


def _tokens(folder: Path) -> Asked:
    model = keras_hub.models.Backbone.from_preset(str(folder))
    converter = keras_hub.layers.ImageConverter.from_preset(str(folder))

    def ask(path: Path) -> torch.Tensor:
        images = converter(_whole_numbers(path))
        return torch.from_numpy(np.array(model.predict({"images": images}, verbose=0)))

    return ask


def _door(kind: str, sizes: dict[str, Any], **converter: Any) -> Door:
    height, width, _ = sizes["image_shape"]
    return Door(
        write=partial(_classifier, kind, sizes, converter),
        theirs=_classes,
        ours=ours.classes,
        exact=(height, width),
    )


def _door_of_tokens(kind: str, sizes: dict[str, Any], **converter: Any) -> Door:
    height, width, _ = sizes["image_shape"]
    return Door(
        write=partial(_backbone, kind, sizes, converter),
        theirs=_tokens,
        ours=partial(ours.features, which={"tokens": True}),
        exact=(height, width),
    )


DOORS: Mapping[str, Door] = {
    "vit": _door("ViT", _VIT, scale=1 / 127.5, offset=-1),
    "vit, bicubic": _door("ViT", _VIT, interpolation="bicubic", antialias=True, **_SCALE),
    "vit, squashed": _door("ViT", _VIT, crop_to_aspect_ratio=False, **_SCALE),
    "vit, nearest": _door("ViT", _VIT, interpolation="nearest", **_SCALE),
    "deit, depth 11": _door("DeiT", {**_DEIT, "num_layers": 11}, antialias=True, **_SCALE),
    "dinov2": _door_of_tokens("DINOV2", _DINO, interpolation="bicubic", antialias=True, **_SCALE),
}
