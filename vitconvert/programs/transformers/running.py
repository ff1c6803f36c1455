"""transformers' classes in use: what each reads and gives, and how an output is loaded."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import Size
from vitconvert.programs.isolation import silent_transformers
from vitconvert.programs.program import Foreign, Preparation
from vitconvert.programs.reference import as_tokens, check_size, package

_CHOOSES_CODE = ("attn_implementation", "auto_map", "experts_implementation", "quantization_config")
# Classes that read the patches of a square one after another
IN_SQUARES = ("Qwen", "Glm", "CohereCompass", "Ernie4_5")
IN_ONE_ROW = (*IN_SQUARES, "Gemma4", "Pixtral")  # that give the tokens of all images as one row
TOWER = "_vision_model"  # ends the model type of an image tower by itself
_NOT_EXPORTED = {
    "Qwen2VisionTransformerPretrainedModel": ".models.qwen2_vl.modeling_qwen2_vl",
    "Qwen2_5OmniVisionEncoder": ".models.qwen2_5_omni.modeling_qwen2_5_omni",
    "Qwen3OmniMoeVisionEncoder": ".models.qwen3_omni_moe.modeling_qwen3_omni_moe",
}
# The class of a text tower by itself, with what leads to the space of images.
_TEXTS = {
    "clip": "CLIPTextModelWithProjection",
    "siglip": "SiglipTextModel",
    "siglip2": "Siglip2TextModel",
}


@dataclass(frozen=True, kw_only=True)
class Modules:
    """The modules of one model type whose outputs are compared."""

    patches: str = "embeddings.patch_embeddings"
    block: str = "layers.{i}"
    norm2: str = "layernorm_after"
    norm: str = "layernorm"  # of all tokens
    within: str = ""  # what stands before the tower's names in the class
    last: tuple[str, ...] = ()  # ends of layers where patches are a grid with the channels last
    kind: str = ""  # the class, where transformers' own lists have none
    pooled: bool = False  # whether it pools tokens as vitconvert's model does, without a head


_VIT = Modules()
_DINOV2 = Modules(block="encoder.layer.{i}", norm2="norm2", pooled=True)
_SIGLIP = Modules(
    patches="embeddings.patch_embedding",
    block="encoder.layers.{i}",
    norm2="layer_norm2",
    norm="post_layernorm",
)
_CLIP = replace(_SIGLIP, norm="", pooled=True)
_WITH_MERGERS = {
    "qwen2_vl_vision": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl_vision": "Qwen2_5_VisionTransformerPretrainedModel",
    "glm4v_vision": "Glm4vVisionModel",
    "glm4v_moe_vision": "Glm4vMoeVisionModel",
    "qwen2_5_omni_vision_encoder": "Qwen2_5OmniVisionEncoder",
    "qwen3_omni_moe_vision_encoder": "Qwen3OmniMoeVisionEncoder",
    "qwen4_exp_vision": "Qwen4ExpVisionModel",
    "cohere_compass_vision": "CohereCompassVisionModel",
    "glm_ocr_vision": "GlmOcrVisionModel",
    "ernie4_5_vl_moe_vision": "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
    "qwen3_vl_vision": "Qwen3VLVisionModel",
    "qwen3_vl_moe_vision": "Qwen3VLMoeVisionModel",
    "qwen3_5_vision": "Qwen3_5VisionModel",
    "qwen3_5_moe_vision": "Qwen3_5MoeVisionModel",
}
MODULES = {
    **dict.fromkeys(("vit", "deit", "vit_mae", "vit_msn", "ijepa", "beit"), _VIT),
    "data2vec-vision": Modules(block="encoder.layer.{i}"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), _DINOV2),
    "dinov3_vit": Modules(block="model.layer.{i}", norm2="norm2", norm="norm", pooled=True),
    **dict.fromkeys(("clip", "chinese_clip"), _CLIP),
    "metaclip_2": replace(_CLIP, kind="MetaClip2VisionModel"),
    "altclip": replace(_CLIP, kind="AltCLIPVisionModel"),
    "owlvit": replace(_CLIP, kind="OwlViTVisionModel"),
    "owlv2": replace(_CLIP, kind="Owlv2VisionModel"),
    **dict.fromkeys(("siglip", "siglip2"), _SIGLIP),
    **dict.fromkeys(
        ("idefics3", "idefics3_vision"), replace(_SIGLIP, kind="Idefics3VisionTransformer")
    ),
    **dict.fromkeys(
        ("smolvlm", "smolvlm_vision"), replace(_SIGLIP, kind="SmolVLMVisionTransformer")
    ),
    "mlcd": replace(_CLIP, kind="MLCDVisionModel"),
    "blip": replace(_CLIP, kind="BlipVisionModel", pooled=False),
    "blip_2": replace(_CLIP, kind="Blip2VisionModel", pooled=False),
    "instructblip": replace(_CLIP, kind="InstructBlipVisionModel", pooled=False),
    "instructblipvideo": replace(_CLIP, kind="InstructBlipVideoVisionModel", pooled=False),
    "internvl_vision": Modules(block="encoder.layer.{i}"),
    "audio-spectrogram-transformer": replace(_VIT, pooled=True),
    "dpt": Modules(block="encoder.layer.{i}"),
    "sam": Modules(
        patches="vision_encoder.patch_embed",
        block="vision_encoder.layers.{i}",
        norm2="layer_norm2",
        norm="",
        within="vision_encoder.",
        last=("",),
        kind="SamVisionModel",
    ),
    "vitdet": Modules(
        patches="embeddings.projection",
        block="encoder.layer.{i}",
        norm2="norm2",
        norm="",
        last=(".attn",),
    ),
    "gemma4_vision": Modules(
        patches="patch_embedder.input_proj",
        block="encoder.layers.{i}",
        norm2="pre_feedforward_layernorm",
        norm="",
        kind="Gemma4VisionModel",
        pooled=True,
    ),
    "pixtral": Modules(
        patches="patch_conv",
        block="transformer.layers.{i}",
        norm2="ffn_norm",
        norm="",
        kind="PixtralVisionModel",
        pooled=True,
    ),
    "radio": Modules(
        patches="embeddings.patch_projection",
        block="encoder.layer.{i}",
        norm2="norm2",
        norm="",
        kind="RadioModel",
    ),
    "sam3_vit_model": Modules(norm="", norm2="layer_norm2", kind="Sam3ViTModel", last=("",)),
    "tipsv2": _DINOV2,
    "pixio": replace(_VIT, pooled=True),
    "vitpose_backbone": replace(_VIT, kind="VitPoseBackbone", block="encoder.layer.{i}"),
    "vjepa2": replace(
        _DINOV2,
        patches="encoder.embeddings.patch_embeddings",
        norm="encoder.layernorm",
        pooled=False,
    ),
    **{name: replace(_VIT, kind=kind, pooled=True) for name, kind in _WITH_MERGERS.items()},
    "aimv2": Modules(
        patches="embeddings.rms_norm",
        block="encoder.layers.{i}",
        norm2="rms_norm2",
        norm="rms_norm",
    ),
}


def run(model: Foreign, images: Tensor) -> Tensor:
    """The output of a class of transformers: logits, an embedding, features or tokens."""
    output = model(**image_inputs(model, images))
    for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state"):
        tensor: Tensor | None = getattr(output, name, None)
        if tensor is not None:
            if type(model).__name__.startswith(IN_ONE_ROW):
                tensor = tensor.reshape(len(images), -1, tensor.shape[-1])
                if type(model).__name__.startswith("Ernie4_5"):
                    # In squares, which no merger reads here
                    side = model.config.spatial_merge_size
                    rows = images.shape[-2] // model.config.patch_size // side
                    shape = (len(images), rows, -1, side, side, tensor.shape[-1])
                    tensor = tensor.reshape(shape).transpose(2, 3).flatten(1, 4)
            return as_tokens(tensor)
    raise AssertionError(type(output))


def run_opened(model: Foreign, images: Tensor) -> Tensor:
    """As `run`; of two towers what images lead to; the tokens, where those are read (BLIP)."""
    if features := getattr(model, "get_image_features", None):
        pooled: Tensor = features(**image_inputs(model, images)).pooler_output
        return pooled
    places = MODULES.get(model.config.model_type.removesuffix(TOWER))
    bare = places is not None and not gives_output(model, places)
    return run_to_tokens(model, images) if bare else run(model, images)


def run_to_tokens(model: nn.Module, images: Tensor) -> Tensor:
    """The tokens, whatever the class makes of them besides."""
    output = model(**image_inputs(model, images))
    maps = getattr(output, "feature_maps", ())  # of a backbone
    return as_tokens(maps[-1] if maps else output.last_hidden_state)


def gives_output(model: nn.Module, places: Modules) -> bool:
    """Whether a class returns more than tokens."""
    heads = ("classifier", "cls_classifier", "visual_projection", "pooler", "head")
    return places.pooled or any(getattr(model, name, None) is not None for name in heads)


def behind_normalisation(model: Foreign) -> None:
    """Let a model that normalises pixels itself (RADIO) read what its ViT does."""
    if hasattr(model, "make_preprocessor_external"):
        model.make_preprocessor_external()


def image_inputs(model: Foreign, images: Tensor) -> dict[str, Tensor | bool]:
    """The arguments with which a class is called for images."""
    kind = type(model).__name__
    if kind.startswith("Siglip2"):
        return _siglip2_inputs(model, images)
    if kind == "Gemma4VisionModel":
        return _gemma4_inputs(model, images)
    if kind.startswith(IN_SQUARES):
        return _qwen_inputs(model, images)
    if kind.startswith("AST"):
        return {"input_values": images[:, 0].transpose(1, 2)}  # (B, time, frequencies)
    if kind.startswith("VJEPA2"):
        return {"pixel_values_videos": images[:, None], "skip_predictor": True}
    if "ViTMAE" in kind:
        # Masks nothing, but sorts the patches by this noise: keep them in order.
        noise = torch.arange(model.embeddings.patch_embeddings.num_patches).expand(len(images), -1)
        return {"pixel_values": images, "noise": noise}
    return {"pixel_values": images}


def _siglip2_inputs(model: Foreign, images: Tensor) -> dict[str, Tensor | bool]:
    """As the processor of SigLIP 2 prepares images: flattened patches, (y x channel)."""
    config = model.config
    side = getattr(config, "vision_config", config).patch_size
    B, C, height, width = images.shape
    rows, columns = height // side, width // side
    grid = images.reshape(B, C, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    patches = grid.reshape(B, rows * columns, side * side * C)
    return {
        "pixel_values": patches,
        "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.int64),
        "spatial_shapes": torch.tensor([[rows, columns]] * B),
    }


def _gemma4_inputs(model: Foreign, images: Tensor) -> dict[str, Tensor | bool]:
    """As the processor of Gemma 4 prepares images: flattened patches, (channel y x), and (x, y).

    transformers 5.23, `image_processing_gemma4.py`.
    """
    side = model.config.patch_size
    B, C, height, width = images.shape
    rows, columns = height // side, width // side
    grid = images.reshape(B, C, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack((x, y), dim=-1).flatten(0, 1)
    return {
        "pixel_values": grid.reshape(B, rows * columns, C * side * side),
        "pixel_position_ids": places.expand(B, -1, -1),
    }


def _qwen_inputs(model: Foreign, images: Tensor) -> dict[str, Tensor | bool]:
    """As the processor of Qwen-VL prepares images: patches, (channel frame y x), in squares.

    transformers 5.23, `image_processing_qwen2_vl.py`: squares of patches that are merged follow one
    another.
    """
    config = model.config
    side, merged, frames = (
        config.patch_size,
        config.spatial_merge_size,
        getattr(config, "temporal_patch_size", 1),
    )
    B, C, height, width = images.shape
    rows, columns = height // side, width // side
    grid = images.reshape(B, C, rows // merged, merged, side, columns // merged, merged, side)
    patches = grid.permute(0, 2, 5, 3, 6, 1, 4, 7).flatten(0, 4)[:, :, None]
    return {
        "hidden_states": patches.expand(-1, -1, frames, -1, -1).flatten(1),
        "grid_thw": torch.tensor([[1, rows, columns]] * B),
    }


def load_named_class(directory: Path) -> Foreign:
    """The class that `config.json` names."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    return load_all(class_named(config.architectures[0]), directory)


def class_named(name: str) -> Foreign:
    """A class of transformers, which does not export all towers."""
    place = _NOT_EXPORTED.get(name)
    return getattr(import_module(f"transformers{place or ''}"), name)


def load_all(kind: Foreign, directory: Path) -> Foreign:
    """A model whose every weight is in the file; transformers would draw what is missing."""
    model, problems = kind.from_pretrained(directory, dtype="float32", output_loading_info=True)
    found = [
        f"{problem}: {', '.join(sorted(map(str, names)))}"
        for problem, names in problems.items()
        if names
    ]
    if found:
        raise ValueError("; ".join(found))
    return model.eval()


def texts_by_config(checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """The text tower of a checkpoint, as transformers builds it by config.json.

    Raises:
        MissingPackage: transformers is not installed.
        NotRepresentable: config.json is of another model, or the class does not take the tensors.
    """
    transformers = package("transformers", install="transformers")
    text = checkpoint.text
    assert text is not None
    whole = without_code(checkpoint.companions.whole_config)
    name = _TEXTS.get(str(whole.get("model_type")))
    if name is None:
        raise NotRepresentable("config.json is of no model whose text tower transformers names.")
    theirs = transformers.AutoConfig.for_model(**whole)
    kind, config, projected = getattr(transformers, name), theirs.text_config, "Projection" in name
    if projected:
        config.projection_dim = theirs.projection_dim  # CLIPModel reads that of the whole
    tensors = {key: text.read(key).float() for key in text.keys if not key.startswith("logit_")}
    with torch.device("meta"):
        check_size(kind(config), tensors, name)
    model, problems = kind.from_pretrained(
        None, config=config, state_dict=tensors, dtype="float32", output_loading_info=True
    )
    if found := [f"{problem}: {names}" for problem, names in problems.items() if names]:
        raise NotRepresentable(f"{name} does not take these tensors.", details=found)
    model.eval()

    def texts(ids: Tensor) -> Tensor:
        output = model(input_ids=ids)
        features: Tensor = output.text_embeds if projected else output[1]
        return features

    return texts


def transformers_preparation(
    preprocessor_config: JsonObject, model_type: str | None, image_size: Size
) -> Preparation | None:
    """transformers 5.23, AutoImageProcessor of a copy of the file without what chooses code.

    Images come from its own `load_image`, which makes them RGB, unless the processor does that
    itself. None for SigLIP 2's, which makes patches and no images, and AST's, which reads sounds.

    Raises:
        MissingPackage: transformers is not installed.
    """
    transformers = package("transformers", install="transformers")
    steps = Preprocessing.from_huggingface(
        preprocessor_config, model_type=model_type, image_size=image_size
    )
    if steps.resize == "patches" or steps.of_sounds:
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


def without_code(config: JsonObject) -> JsonDict:
    """A config.json without what chooses code: kernels of the Hub, quantisers, modules beside it.

    transformers keeps to what it is asked for here anyway, but for mistakes (CVE-2026-4372).
    """
    return {
        key: without_code(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not key.startswith("_") and key not in _CHOOSES_CODE
    }
