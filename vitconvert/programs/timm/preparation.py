"""How timm prepares photographs, with its own code."""

from collections.abc import Mapping
from typing import Any

from PIL import Image
from torch import Tensor

from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.preparation import Preparation
from vitconvert.programs.reference import package


def timm_preparation(pretrained_cfg: Mapping[str, Any]) -> Preparation:
    """timm 1.0.31, `create_transform`, of images opened as its `ImageDataset` opens them.

    Raises:
        MissingPackage: timm is not installed.
    """
    timm = package("timm", install="timm")
    arguments = timm.data.resolve_data_config(pretrained_cfg=dict(pretrained_cfg))
    transform = timm.data.create_transform(**arguments, is_training=False)
    mode = "L" if arguments["input_size"][0] == 1 else "RGB"

    def prepare(image: Image.Image) -> Tensor:
        prepared: Tensor = transform(image.convert(mode))
        return prepared

    return Preparation(
        name=f"timm {timm.__version__}'s create_transform",
        prepare=prepare,
        steps=Preprocessing.from_timm(pretrained_cfg),
    )
