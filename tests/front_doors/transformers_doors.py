"""The ways into transformers with one image file, and how far their pixels are apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.front_doors.judge import Asked, answer
from tests.huggingface.every_class import made
from tests.packages import transformers

FOLLOWED = "pipeline(path)"
PROCESSORS = {
    "do_convert_rgb is off: ViT, DeiT, BEiT, DINOv3, SigLIP 2": "ViTImageProcessor",
    "do_convert_rgb is on: CLIP, SigLIP, DINOv2, BLIP, Qwen, GLM, Pixtral, Gemma 4": (
        "CLIPImageProcessor"
    ),
}


def doors(folder: Path, processor: str) -> Mapping[str, Asked]:
    """Each way -> what makes pixels of a file, on the scale of 0 to 255."""
    made("ViTForImageClassification").save_pretrained(folder)
    size = {"height": 48, "width": 48}
    own = getattr(transformers, processor)(size=size, crop_size=size)
    own.save_pretrained(folder)
    plain = {"do_rescale": False, "do_normalize": False, "return_tensors": "pt"}
    task = transformers.pipeline("image-classification", str(folder))
    task.image_processor = transformers.AutoImageProcessor.from_pretrained(folder, **plain)
    load_image = transformers.image_utils.load_image

    def processed(image: Any, backend: str = "torchvision") -> torch.Tensor:
        auto = transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
        pixels: torch.Tensor = auto(image, **plain)["pixel_values"]
        return pixels.float()

    def opened(path: Path) -> Image.Image:
        with Image.open(path) as image:
            image.load()
            return image

    return {
        FOLLOWED: lambda path: task.preprocess(str(path))["pixel_values"].float(),
        "pipeline(Image.open(path))": lambda path: task.preprocess(opened(path))[
            "pixel_values"
        ].float(),
        "processor(load_image(path))": lambda path: processed(load_image(str(path))),
        "processor(path)": lambda path: processed(str(path)),
        "processor(Image.open(path))": lambda path: processed(opened(path)),
        'processor(Image.open(path).convert("RGB"))': lambda path: processed(
            opened(path).convert("RGB")
        ),
        'processor(load_image(path)), backend="pil"': lambda path: processed(
            load_image(str(path)), "pil"
        ),
        'processor(path), backend="pil"': lambda path: processed(str(path), "pil"),
    }


def distances(folder: Path, processor: str, images: Mapping[str, Path]) -> dict[str, list[str]]:
    """Each way -> for each image the largest difference from FOLLOWED, in levels, or an error."""
    return apart(doors(folder, processor), images)


def apart(ways: Mapping[str, Asked], images: Mapping[str, Path]) -> dict[str, list[str]]:
    """The same of the first of several ways."""
    first = next(iter(ways.values()))
    wanted = {kind: answer(first, path) for kind, path in images.items()}
    return {
        name: [_distance(answer(way, path), wanted[kind]) for kind, path in images.items()]
        for name, way in ways.items()
    }


def _distance(found: torch.Tensor | str, wanted: torch.Tensor | str) -> str:
    if isinstance(found, str) or isinstance(wanted, str):
        return str(found) if isinstance(found, str) else f"{wanted} of the other"
    if found.shape != wanted.shape:
        return "other shape"
    return f"{float((found - wanted).abs().max()):.0f}"
