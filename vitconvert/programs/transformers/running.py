"""transformers' classes in use: what each reads and gives, and how an output is loaded."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import Size
from vitconvert.programs.isolation import silent_transformers
from vitconvert.programs.program import Foreign, Preparation
from vitconvert.programs.reference import as_tokens, check_size, package
from vitconvert.programs.taps import Tap, record
from vitconvert.programs.transformers.modules import MODULES, TOWER, Modules, places_of

_CHOOSES_CODE = ("attn_implementation", "auto_map", "experts_implementation", "quantization_config")
_NOT_EXPORTED = {
    "DeepseekOcr2SamVisionEncoder": ".models.deepseek_ocr2.modeling_deepseek_ocr2",
    "MiniCPMV4_6VisionModel": ".models.minicpmv4_6.modeling_minicpmv4_6",
    "MiniCPMV4_7VisionModel": ".models.minicpmv4_7.modeling_minicpmv4_7",
    "MiniCPMOcrVisionModel": ".models.minicpm_ocr.modeling_minicpm_ocr",
    "UnlimitedOcrSamVisionEncoder": ".models.unlimited_ocr.modeling_unlimited_ocr",
    "UnlimitedOcrVisionEncoder": ".models.unlimited_ocr.modeling_unlimited_ocr",
    "GotOcr2VisionEncoder": ".models.got_ocr2.modeling_got_ocr2",
    "Idefics2VisionTransformer": ".models.idefics2.modeling_idefics2",
    "Kosmos2VisionModel": ".models.kosmos2.modeling_kosmos2",
    "SLANeXtVisionEncoder": ".models.slanext.modeling_slanext",
    "Qwen2VisionTransformerPretrainedModel": ".models.qwen2_vl.modeling_qwen2_vl",
    "Qwen2_5OmniVisionEncoder": ".models.qwen2_5_omni.modeling_qwen2_5_omni",
    "Qwen3OmniMoeVisionEncoder": ".models.qwen3_omni_moe.modeling_qwen3_omni_moe",
}
# The class of a text encoder by itself, with what leads to the space of images.
_TEXTS = {
    "clip": "CLIPTextModelWithProjection",
    "siglip": "SiglipTextModel",
    "siglip2": "Siglip2TextModel",
}


def run(model: Foreign, images: Tensor) -> Tensor:
    """The output of a class of transformers: logits, an embedding, features or tokens."""
    places = places_of(model)
    output = model(**places.inputs(model, images))
    for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state"):
        tensor: Tensor | None = getattr(output, name, None)
        if tensor is not None:
            tensor = _of_each(images, tensor) if places.in_one_row else tensor
            return as_tokens(_in_rows(model, images, tensor) if places.in_squares else tensor)
    mean: Tensor = (
        output.feature_maps[-1].flatten(2).mean(dim=-1)
    )  # of patches, which it gives alone
    return mean


def _of_each(images: Tensor, tokens: Tensor) -> Tensor:
    """The tokens of each image, of those that come one image after another."""
    return tokens.reshape(len(images), -1, tokens.shape[-1])


def _in_rows(model: Foreign, images: Tensor, tokens: Tensor) -> Tensor:
    """Tokens row by row, of those that come square by square."""
    side = model.config.spatial_merge_size
    rows = images.shape[-2] // model.config.patch_size // side
    squares = tokens.reshape(len(images), rows, -1, side, side, tokens.shape[-1])
    return squares.transpose(2, 3).flatten(1, 4)


def run_opened(model: Foreign, images: Tensor) -> Tensor:
    """As `run`; of two encoders what images lead to; the tokens, where those are read (BLIP)."""
    places = places_of(model)
    if features := getattr(model, "get_image_features", None):
        pooled: Tensor = features(**places.inputs(model, images)).pooler_output
        return pooled
    known = model.config.model_type.removesuffix(TOWER) in MODULES
    bare = known and not gives_output(model, places)
    return run_to_tokens(model, images) if bare else run(model, images)


def run_to_tokens(model: Foreign, images: Tensor) -> Tensor:
    """The tokens, whatever the class makes of them besides."""
    places = places_of(model)
    inputs = places.inputs(model, images)
    if place := places.class_last or next(iter(places.behind), ""):
        tap = Tap(place, input=bool(places.behind), class_last=bool(places.class_last))
        return record(model, {"tokens": tap}, lambda: model(**inputs).last_hidden_state)["tokens"]
    output = model(**inputs)
    maps = getattr(output, "feature_maps", ())  # of a backbone
    tokens: Tensor = maps[-1] if maps else output.last_hidden_state
    return as_tokens(_of_each(images, tokens) if places.in_one_row else tokens)


def gives_output(model: nn.Module, places: Modules) -> bool:
    """Whether a class returns more than tokens."""
    heads = ("classifier", "cls_classifier", "visual_projection", "pooler", "head")
    return places.pooled or any(getattr(model, name, None) is not None for name in heads)


def behind_normalisation(model: Foreign) -> None:
    """Let a model that normalises pixels itself (RADIO) read what its ViT does."""
    if hasattr(model, "make_preprocessor_external"):
        model.make_preprocessor_external()


def load_named_class(directory: Path) -> Foreign:
    """The class that `config.json` names."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    return load_all(class_named(config.architectures[0]), directory)


def class_named(name: str) -> Foreign:
    """A class of transformers, which does not export all encoders."""
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
    """The text encoder of a checkpoint, as transformers builds it by config.json.

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
        raise NotRepresentable("transformers has no text encoder for the model of config.json.")
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

    Files are opened by its own `load_image`, as `pipeline` opens them: upright, RGB, without alpha.
    None for SigLIP 2's, which makes patches and no images, and AST's, which reads sounds.

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
            (Path(folder) / name).write_text(json.dumps(content), encoding="utf-8", newline="\n")
        processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)

    def prepare(file: Path | Image.Image) -> Tensor:
        image = str(file) if isinstance(file, Path) else file
        loaded = transformers.image_utils.load_image(image)
        prepared: Tensor = processor(loaded, return_tensors="pt")["pixel_values"][0]
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
