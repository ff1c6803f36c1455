"""transformers' front doors: `pipeline(...)(path)`, or a processor and a model of one directory."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import vitconvert
from tests.front_doors import ours
from tests.front_doors.judge import Asked, Door
from tests.huggingface.every_class import ARGUMENTS, made
from tests.packages import transformers
from tests.towers.families import FAMILIES
from vitconvert.preprocessing import Preprocessing

_SIDE = 24
_SQUARE = {"size": {"height": _SIDE, "width": _SIDE}}
_CROP = {"crop_size": {"height": _SIDE, "width": _SIDE}}
_LIMITS = {"size": {"shortest_edge": 2**10, "longest_edge": 2**13}}
_QWEN = "Qwen2VLImageProcessor"
_LIKE_QWEN = ("CohereCompassImageProcessor", "Ernie4_5_VLMoeImageProcessor")
# Sizes of tiny models, by the class of the processor
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "BitImageProcessor": {"size": {"shortest_edge": 28}, **_CROP},
    "CLIPImageProcessor": {"size": {"shortest_edge": 28}, **_CROP},
    "ChineseCLIPImageProcessor": {"size": {"shortest_edge": 28}, **_CROP},
    "DeiTImageProcessor": {"size": {"height": 28, "width": 28}, **_CROP},
    "FlavaImageProcessor": {"size": {"height": 28, "width": 28}, **_CROP},
    "Cosmos3EdgeImageProcessor": {"patch_size": 8, **_LIMITS},
    "SamImageProcessor": {"size": {"longest_edge": 48}, "pad_size": {"height": 48, "width": 48}},
    "Sam3ImageProcessor": {"size": {"height": 48, "width": 48}},
    "Siglip2ImageProcessor": {"patch_size": 8, "max_num_patches": 30},
    "Gemma4ImageProcessor": {"patch_size": 8, "max_soft_tokens": 70},
    "PixtralImageProcessor": {"patch_size": 8, "size": {"longest_edge": 80}},
    "VideoLlama3ImageProcessor": {"patch_size": 8, "merge_size": 1, **_LIMITS},
    "Glm4vImageProcessor": {
        "patch_size": 8,
        "size": {"shortest_edge": 2**11, "longest_edge": 2**14},
    },
    "Glm46VImageProcessor": {
        "patch_size": 8,
        "size": {"shortest_edge": 2**11, "longest_edge": 2**14},
    },
    **{name: {"patch_size": 8, **_LIMITS} for name in (_QWEN, *_LIKE_QWEN)},
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
    "CLIPSegVisionModel": "ViTImageProcessor",
    "GitVisionModel": "CLIPImageProcessor",
    "QianfanOCRVisionModel": "GotOcr2ImageProcessor",
    "FlavaImageModel": "FlavaImageProcessor",
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
_TOKENS = (
    "GitVisionModel",
    "QianfanOCRVisionModel",
    "ViTMSNModel",
    "IJepaModel",
    "Data2VecVisionModel",
    "BlipVisionModel",
)
_TOKENS += ("Blip2VisionModel", "InstructBlipVisionModel")
# Models of both towers, and whether what an image leads to is a projection
_TWO_TOWERS = {
    "CLIPModel": ("CLIPImageProcessor", True),
    "MetaClip2Model": ("CLIPImageProcessor", True),
    "ChineseCLIPModel": ("ChineseCLIPImageProcessor", True),
    "AltCLIPModel": ("CLIPImageProcessor", True),
    "SiglipModel": ("SiglipImageProcessor", False),
}
_SIGLIP_2 = ("Siglip2ForImageClassification", "Siglip2VisionModel", "Siglip2Model")
# Models whose processor makes patches of images of any shape, and whether their tokens are merged
_PATCHES: Mapping[str, tuple[Any, ...]] = {
    "Gemma4Model": ("Gemma4ImageProcessor", False),
    "Qwen2VLModel": (_QWEN,),
    "Qwen2_5_VLModel": (_QWEN,),
    "Qwen3VLModel": (_QWEN,),
    "Qwen3VLMoeModel": (_QWEN,),
    "Qwen3_5Model": (_QWEN,),
    "Qwen3_5MoeModel": (_QWEN,),
    "Qwen4ExpModel": (_QWEN,),
    "Cosmos3OmniModel": (_QWEN,),
    "Glm4vModel": ("Glm4vImageProcessor",),
    "Glm4vMoeModel": ("Glm4vImageProcessor",),
    "Glm46VModel": ("Glm46VImageProcessor",),
    "GlmOcrModel": ("Glm46VImageProcessor",),
    "CohereCompassModel": ("CohereCompassImageProcessor",),
    "Ernie4_5_VLMoeModel": ("Ernie4_5_VLMoeImageProcessor", False),
    "VideoLlama3Model": ("VideoLlama3ImageProcessor", False),
    "PixtralVisionModel": ("PixtralImageProcessor", False),
}
# Larger models by their names in `tests/towers/families.py`, whose image tower alone is compared
_FAMILIES = {
    "llava": "CLIPImageProcessor",
    "llava with siglip": "SiglipImageProcessor",
    "vipllava": "CLIPImageProcessor",
    "gemma3": "Gemma3ImageProcessor",
    "internvl": "GotOcr2ImageProcessor",
    "clipseg": "ViTImageProcessor",
    "git": "CLIPImageProcessor",
    "kosmos2": "CLIPImageProcessor",
    "flava": "FlavaImageProcessor",
    "owlvit": "OwlViTImageProcessor",
    "dpt": "DPTImageProcessor",
    "paligemma": "SiglipImageProcessor",
    "colpali": "SiglipImageProcessor",
    "blip": "BlipImageProcessor",
    "blip-2": "BlipImageProcessor",
    "instructblip": "BlipImageProcessor",
    "trocr": "ViTImageProcessor",
    "encoder and decoder with deit": "DeiTImageProcessor",
    "encoder and decoder with beit": "BeitImageProcessor",
    "encoder and decoder with dinov2": "BitImageProcessor",
    "vision-text dual encoder": "ViTImageProcessor",
    "vision-text dual encoder with clip": "CLIPImageProcessor",
    "vision-text dual encoder with siglip": "SiglipImageProcessor",
}
# Positions for every grid that the processor makes
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "SamHQModel": {"vision_config": {**ARGUMENTS["SamHQVisionConfig"], "image_size": 48}},
    "SamModel": {"vision_config": {**ARGUMENTS["SamVisionConfig"], "image_size": 48}},
    "Gemma4Model": {
        "vision_config": {
            **ARGUMENTS["Gemma4Config"]["vision_config"],
            "position_embedding_size": 3 * 70,
        }
    },
}
# What is refused or otherwise on purpose, by model and kind of image, and why
_NARROW = "the processor makes an image that is larger than its own limit, which vitconvert refuses"
OTHERWISE = {
    (name, "narrow.png"): _NARROW
    for name in ("Glm4vModel", "Glm4vMoeModel", "Glm46VModel", "GlmOcrModel")
}


def _write(name: str, processor: str, folder: Path) -> None:
    model = FAMILIES[name].model() if name in FAMILIES else made(name, **_CHANGES.get(name, {}))
    model.save_pretrained(folder)
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


def _logits(model: Any, image: Path, *preprocessing: Preprocessing) -> torch.Tensor:
    (found,) = vitconvert.predict(model, image, *preprocessing, topk=1000)
    if found.error:
        raise found.error
    return torch.tensor([each.logit for each in sorted(found.top, key=lambda c: c.index)])


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


def _embedded(model: Any, image: Path, *preprocessing: Preprocessing, **which: Any) -> torch.Tensor:
    (found,) = vitconvert.embed(model, image, *preprocessing, **which)
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
        doors: Any = {"theirs": _classes_of_theirs, "ours": ours.classes}
    elif "WithProjection" in name:
        theirs: Any = partial(_projected_of_theirs, name=name)
        doors = {"theirs": theirs, "ours": partial(ours.features, which={"projected": True})}
    else:
        tokens = name in _TOKENS
        theirs = partial(_features_of_theirs, pool=not tokens)
        doors = {"theirs": theirs, "ours": partial(ours.features, which={"tokens": tokens})}
    return Door(write=partial(_write, name, processor), **doors)


def _of_two_towers(name: str, processor: str, projected: bool) -> Door:
    return Door(
        write=partial(_write, name, processor),
        theirs=_image_features_of_theirs,
        ours=partial(ours.features, which={"projected": projected}),
    )


def _patches_of_theirs(folder: Path, *, name: str, merged: bool) -> Asked:
    """A larger model's tokens of an image, or an image tower's."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    prepare = _processor_of_theirs(folder)
    ask = getattr(model, "get_image_features", model)

    def asked(image: Path) -> torch.Tensor:
        inputs = prepare(image)
        output = ask(**inputs)
        tokens = output.pooler_output if merged else output.last_hidden_state
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        if name.startswith(("Ernie", "Cosmos3Edge")):  # what merges them reads them by squares
            _, rows, columns = inputs["image_grid_thw"][0].tolist()
            squares = tokens.reshape(rows // 2, columns // 2, 2, 2, -1)
            tokens = squares.transpose(1, 2).flatten(0, 3)
        return tokens

    return asked


def _patches_of_ours(folder: Path) -> Asked:
    """At the size that the processor gives to each image, which a user has to say."""
    prepare = _processor_of_theirs(folder)
    side = json.loads((folder / "preprocessor_config.json").read_text())["patch_size"]

    def asked(image: Path) -> torch.Tensor:
        size = _size_made(prepare(image), side)
        return _embedded(vitconvert.load_checkpoint(folder, overrides={"image_size": size}), image)

    return asked


def _size_made(inputs: Mapping[str, torch.Tensor], side: int) -> tuple[int, ...]:
    """Height and width, by what the processor says of patches."""
    if "image_sizes" in inputs:
        return tuple(inputs["image_sizes"][0].tolist())
    if "image_grid_thw" in inputs:
        grid = inputs["image_grid_thw"][0, 1:]
    elif "spatial_shapes" in inputs:
        grid = inputs["spatial_shapes"][0]
    else:
        grid = inputs["image_position_ids"][0].max(dim=0).values.flip(0) + 1  # of (x, y)
    return tuple((grid * side).tolist())


def _of_patches(name: str, processor: str, merged: bool = True) -> Door:
    return Door(
        write=partial(_write, name, processor),
        theirs=partial(_patches_of_theirs, name=name, merged=merged),
        ours=_patches_of_ours,
        exact=(48, 32),
    )


def _siglip_2_of_ours(folder: Path) -> Asked:
    """With positions resampled to the grid of each image, as SigLIP 2 does by itself."""
    prepare = _processor_of_theirs(folder)
    checkpoint = vitconvert.load_checkpoint(folder)
    assert checkpoint.preprocessing is not None

    def asked(image: Path) -> torch.Tensor:
        size = _size_made(prepare(image), side=8)
        model = vitconvert.load_model(folder, image_size=size)
        preparing = checkpoint.preprocessing.at_size(size)
        if checkpoint.config.num_classes:
            return _logits(model, image, preparing)
        return _embedded(model, image, preparing)

    return asked


def _of_cosmos_3_edge() -> Door:
    """Whose positions are resampled likewise."""
    name = "Cosmos3EdgeModel"
    return Door(
        write=partial(_write, name, "Cosmos3EdgeImageProcessor"),
        theirs=partial(_patches_of_theirs, name=name, merged=False),
        ours=_siglip_2_of_ours,
        exact=(48, 32),
    )


def _of_siglip_2(name: str) -> Door:
    theirs: Any = partial(_patches_of_theirs, name=name, merged=True)
    return Door(
        write=partial(_write, name, "Siglip2ImageProcessor"),
        theirs=_classes_of_theirs if "ForImageClassification" in name else theirs,
        ours=_siglip_2_of_ours,
    )


def _tower_of_theirs(folder: Path, name: str) -> Asked:
    family = FAMILIES[name]
    model = type(family.make()).from_pretrained(folder).eval()
    tower, prepare = model.get_submodule(family.tower), _processor_of_theirs(folder)
    tower = getattr(tower, "vision_model", tower)
    # Some processors also count the images that they make of one.
    return lambda image: tower(prepare(image)["pixel_values"]).last_hidden_state


def _of_family(name: str, processor: str) -> Door:
    return Door(
        write=partial(_write, name, processor),
        theirs=partial(_tower_of_theirs, name=name),
        ours=partial(ours.features, which={"tokens": True}),
    )


def _sam_of_theirs(folder: Path) -> Asked:
    """As its documentation has it, before a prompt is given; its maps as tokens."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    prepare = _processor_of_theirs(folder)

    def asked(image: Path) -> torch.Tensor:
        maps = model.get_image_embeddings(prepare(image)["pixel_values"])
        return maps.flatten(2).transpose(1, 2)

    return asked


def _maps_of_theirs(folder: Path, *, name: str, tower: str) -> Asked:
    """Of a larger model whose ViT ends with SAM's neck; its maps as tokens."""
    model = getattr(transformers, name).from_pretrained(folder).eval()
    prepare, tower = _processor_of_theirs(folder), model.get_submodule(tower)
    return lambda image: (
        tower(prepare(image)["pixel_values"]).last_hidden_state.flatten(2).transpose(1, 2)
    )


def _of_maps(name: str, tower: str, processor: str) -> Door:
    return Door(
        write=partial(_write, name, processor),
        theirs=partial(_maps_of_theirs, name=name, tower=tower),
        ours=partial(ours.features, which={"tokens": True}),
    )


def _sam_3_of_theirs(folder: Path) -> Asked:
    """The ViT alone, without the pyramid of maps that is made of its tokens."""
    model = transformers.Sam3Model.from_pretrained(folder).eval()
    prepare = _processor_of_theirs(folder)
    tower = model.vision_encoder.backbone
    return lambda image: tower(prepare(image)["pixel_values"]).last_hidden_state


def _of_sam(name: str, theirs: Any) -> Door:
    return Door(
        write=partial(_write, name, name.replace("Model", "ImageProcessor")),
        theirs=theirs,
        ours=partial(ours.features, which={"tokens": True}),
        exact=(48, 48),
    )


DOORS: Mapping[str, Door] = {
    **{name: _of_pipeline(name, processor) for name, processor in _PIPELINES.items()},
    **{name: _of_two_towers(name, *how) for name, how in _TWO_TOWERS.items()},
    **{name: _of_siglip_2(name) for name in _SIGLIP_2},
    **{name: _of_patches(name, *how) for name, how in _PATCHES.items()},
    "Cosmos3EdgeModel": _of_cosmos_3_edge(),
    "SamModel": _of_sam("SamModel", _sam_of_theirs),
    "Sam3Model": _of_sam("Sam3Model", _sam_3_of_theirs),
    "SamHQModel": _of_maps("SamHQModel", "vision_encoder", "SamImageProcessor"),
    "GotOcr2Model": _of_maps("GotOcr2Model", "vision_tower", "GotOcr2ImageProcessor"),
    **{name: _of_family(name, processor) for name, processor in _FAMILIES.items()},
}
