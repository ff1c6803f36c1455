"""How transformers prepares photographs, with its own code."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image, ImageOps
from torch import Tensor

from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import Size
from vitconvert.programs.isolation import silent_transformers
from vitconvert.programs.preparation import Preparation
from vitconvert.programs.reference import package
from vitconvert.programs.transformers.reference import without_code


def transformers_preparation(
    preprocessor_config: Mapping[str, Any], model_type: str | None, image_size: Size
) -> Preparation | None:
    """transformers 5.23, AutoImageProcessor of a copy of the file without what chooses code.

    Images come from its own `load_image`, which makes them RGB, unless the processor does that
    itself. None for SigLIP 2's, which makes patches and no images.

    Raises:
        MissingPackage: transformers is not installed.
    """
    transformers = package("transformers", install="transformers")
    steps = Preprocessing.from_huggingface(
        preprocessor_config, model_type=model_type, image_size=image_size
    )
    if steps.resize == "patches":
        return None
    with TemporaryDirectory() as folder, silent_transformers():
        for name, content in (
            ("preprocessor_config.json", without_code(preprocessor_config)),
            ("config.json", {"model_type": model_type}),
        ):
            (Path(folder) / name).write_text(json.dumps(content), encoding="utf-8")
        processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)

    def prepare(image: Image.Image) -> Tensor:
        if getattr(processor, "do_convert_rgb", False):
            image = ImageOps.exif_transpose(image)
        else:
            image = transformers.image_utils.load_image(image)
        prepared: Tensor = processor(image, return_tensors="pt")["pixel_values"][0]
        return prepared.float()

    return Preparation(
        name=f"transformers {transformers.__version__}'s {type(processor).__name__}",
        prepare=prepare,
        steps=steps,
    )
