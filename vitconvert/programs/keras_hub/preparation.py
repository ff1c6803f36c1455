"""How KerasHub prepares photographs, with its own layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.keras_hub.reference import keras_hub
from vitconvert.programs.preparation import Preparation

_ARGUMENTS = ("image_size", "scale", "offset", "interpolation", "antialias", "crop_to_aspect_ratio")


def keras_hub_preparation(said: Mapping[str, Any], config: ViTConfig) -> Preparation:
    """keras-hub 0.32, ImageConverter with the arguments of the file, in whole numbers.

    Raises:
        MissingPackage: keras-hub is not installed.
    """
    hub, size = keras_hub(), config.image_size
    steps = Preprocessing.from_keras_hub(said, image_size=size, channels=config.in_channels)
    arguments = {key: value for key, value in said["config"].items() if key in _ARGUMENTS}
    layer = hub.layers.ImageConverter(**arguments, dtype="float32")

    def prepare(image: Image.Image) -> Tensor:
        pixels = np.atleast_3d(np.array(image.convert("L" if steps.channels == 1 else "RGB")))
        return torch.from_numpy(np.array(layer(pixels))).permute(2, 0, 1)

    return Preparation(
        name=f"keras-hub {hub.__version__}'s ImageConverter", prepare=prepare, steps=steps
    )
