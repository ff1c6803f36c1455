"""transformers' front doors: `pipeline(...)(path)`, or a processor and a model of one directory."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import vitconvert
from tests.front_doors.judge import Asked, Door
from tests.huggingface.every_class import made
from tests.packages import transformers

_SIDE = 24
_SQUARE = {"size": {"height": _SIDE, "width": _SIDE}}
_CROP = {"crop_size": {"height": _SIDE, "width": _SIDE}}
# Sizes of tiny models, by the class of the processor
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "BitImageProcessor": {"size": {"shortest_edge": 28}, **_CROP},
    "CLIPImageProcessor": {"size": {"shortest_edge": 28}, **_CROP},
    "ChineseCLIPImageProcessor": {"size": {"shortest_edge": 28}, **_CROP},
    "DeiTImageProcessor": {"size": {"height": 28, "width": 28}, **_CROP},
}
# The class of a model's processor on the Hub, by the class of the model
_PIPELINES = {
    "ViTForImageClassification": "ViTImageProcessor",
    "ViTModel": "ViTImageProcessor",
    "ViTMSNForImageClassification": "ViTImageProcessor",
    "ViTMSNModel": "ViTImageProcessor",
    "IJepaForImageClassification": "ViTImageProcessor",
    "IJepaModel": "ViTImageProcessor",
    "DeiTForImageClassification": "DeiTImageProcessor",
    "DeiTForImageClassificationWithTeacher": "DeiTImageProcessor",
    "DeiTModel": "DeiTImageProcessor",
    "BeitForImageClassification": "BeitImageProcessor",
    "BeitModel": "BeitImageProcessor",
    "Data2VecVisionForImageClassification": "BeitImageProcessor",
    "Data2VecVisionModel": "BeitImageProcessor",
    "Dinov2ForImageClassification": "BitImageProcessor",
    "Dinov2Model": "BitImageProcessor",
    "Dinov2WithRegistersForImageClassification": "BitImageProcessor",
    "Dinov2WithRegistersModel": "BitImageProcessor",
    "DINOv3ViTModel": "DINOv3ViTImageProcessor",
    "PixioModel": "BitImageProcessor",
    "CLIPForImageClassification": "CLIPImageProcessor",
    "CLIPVisionModel": "CLIPImageProcessor",
    "CLIPVisionModelWithProjection": "CLIPImageProcessor",
    "MetaClip2ForImageClassification": "CLIPImageProcessor",
    "MetaClip2VisionModel": "CLIPImageProcessor",
    "MetaClip2VisionModelWithProjection": "CLIPImageProcessor",
    "ChineseCLIPVisionModel": "ChineseCLIPImageProcessor",
    "AltCLIPVisionModel": "CLIPImageProcessor",
    "MLCDVisionModel": "CLIPImageProcessor",
    "SiglipForImageClassification": "SiglipImageProcessor",
    "SiglipVisionModel": "SiglipImageProcessor",
    "Aimv2VisionModel": "CLIPImageProcessor",
    "BlipVisionModel": "BlipImageProcessor",
    "Blip2VisionModel": "BlipImageProcessor",
    "InstructBlipVisionModel": "BlipImageProcessor",
}
# Classes that pool nothing, and BLIP's, whose larger models read the tokens
_TOKENS = ("ViTMSNModel", "IJepaModel", "Data2VecVisionModel", "BlipVisionModel")
_TOKENS += ("Blip2VisionModel", "InstructBlipVisionModel")
# Models of both towers, and whether what an image leads to is a projection
_TWO_TOWERS = {
    "CLIPModel": ("CLIPImageProcessor", True),
    "MetaClip2Model": ("CLIPImageProcessor", True),
    "ChineseCLIPModel": ("ChineseCLIPImageProcessor", True),
    "AltCLIPModel": ("CLIPImageProcessor", True),
    "SiglipModel": ("SiglipImageProcessor", False),
}


def _write(name: str, processor: str, folder: Path) -> None:
    made(name).save_pretrained(folder)
    sizes = _SIZES.get(processor, _SQUARE)
    getattr(transformers, processor)(**sizes).save_pretrained(folder)


def _classes_of_theirs(folder: Path) -> Asked:
    asked = transformers.pipeline("image-classification", str(folder))
    names = json.loads((folder / "config.json").read_text())["id2label"]

    def ask(image: Path) -> torch.Tensor:
        scores = asked(str(image), function_to_apply="none", top_k=len(names))
        of = {each["label"]: each["score"] for each in scores}
        return torch.tensor([of[names[str(index)]] for index in range(len(names))])

    return ask


def _classes_of_ours(folder: Path) -> Asked:
    checkpoint = vitconvert.load_checkpoint(folder)

    def ask(image: Path) -> torch.Tensor:
        (found,) = vitconvert.predict(checkpoint, image, topk=1000)
        if found.error:
            raise found.error
        return torch.tensor([each.logit for each in sorted(found.top, key=lambda c: c.index)])

    return ask


def _features_of_theirs(folder: Path, *, pool: bool) -> Asked:
    asked = transformers.pipeline("image-feature-extraction", str(folder))
    return lambda image: asked(str(image), pool=pool, return_tensors=True)


def _projected_of_theirs(folder: Path, name: str) -> Asked:
    """With the class that `config.json` names, which no pipeline takes."""
    model = getattr(transformers, name).from_pretrained(folder).eval()
    prepare = _processor_of_theirs(folder)
    return lambda image: model(**prepare(image)).image_embeds


def _processor_of_theirs(folder: Path) -> Any:
    """Of a file, opened as pipelines open it."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    load_image = transformers.image_utils.load_image
    return lambda image: processor(load_image(str(image)), return_tensors="pt")


def _features_of_ours(folder: Path, **which: Any) -> Asked:
    checkpoint = vitconvert.load_checkpoint(folder)
    return lambda image: _embedded(checkpoint, image, **which)


def _embedded(checkpoint: vitconvert.Checkpoint, image: Path, **which: Any) -> torch.Tensor:
    (found,) = vitconvert.embed(checkpoint, image, **which)
    if found.error:
        raise found.error
    assert found.features is not None
    return found.features


def _image_features_of_theirs(folder: Path) -> Asked:
    """As the cards of CLIP and SigLIP have it."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    prepare = _processor_of_theirs(folder)
    return lambda image: model.get_image_features(**prepare(image)).pooler_output


def _of_pipeline(name: str, processor: str) -> Door:
    if "ForImageClassification" in name:
        doors: Any = {"theirs": _classes_of_theirs, "ours": _classes_of_ours}
    elif "WithProjection" in name:
        theirs: Any = partial(_projected_of_theirs, name=name)
        doors = {"theirs": theirs, "ours": partial(_features_of_ours, projected=True)}
    else:
        tokens = name in _TOKENS
        theirs = partial(_features_of_theirs, pool=not tokens)
        doors = {"theirs": theirs, "ours": partial(_features_of_ours, tokens=tokens)}
    return Door(write=partial(_write, name, processor), **doors)


def _of_two_towers(name: str, processor: str, projected: bool) -> Door:
    return Door(
        write=partial(_write, name, processor),
        theirs=_image_features_of_theirs,
        ours=partial(_features_of_ours, projected=projected),
    )


DOORS: Mapping[str, Door] = {
    **{name: _of_pipeline(name, processor) for name, processor in _PIPELINES.items()},
    **{name: _of_two_towers(name, *how) for name, how in _TWO_TOWERS.items()},
}
