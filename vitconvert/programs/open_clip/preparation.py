"""How open_clip prepares photographs, with its own code."""

from collections.abc import Mapping
from typing import Any

from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import Size
from vitconvert.programs.preparation import Preparation
from vitconvert.programs.reference import package


def openclip_preparation(preprocess_cfg: Mapping[str, Any], image_size: Size) -> Preparation:
    """open_clip 3.3, `image_transform_v2`, for a tower of this size.

    Raises:
        MissingPackage: open_clip is not installed.
    """
    open_clip = package("open_clip", install="open-clip-torch")
    square = image_size[0] == image_size[1]
    stated = {**preprocess_cfg, "size": image_size[0] if square else list(image_size)}
    cfg = open_clip.transform.PreprocessCfg(**stated)
    return Preparation(
        name=f"open_clip {open_clip.__version__}'s image_transform_v2",
        prepare=open_clip.transform.image_transform_v2(cfg, is_train=False),
        steps=Preprocessing.from_openclip(preprocess_cfg, image_size=image_size),
    )
