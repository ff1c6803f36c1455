"""transformers' image encoders: ViT and its kin, BEiT, DINOv2 and 3, CLIP, SigLIP, AIMv2."""

import re
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.facts.project_config import written_config
from vitconvert.model.rope import with_other_pairs
from vitconvert.programs.isolation import silent_transformers
from vitconvert.programs.program import Foreign
from vitconvert.programs.reference import Reference, check_size, own_tensors, package
from vitconvert.programs.taps import Tap, Taps, block_taps, channels_last
from vitconvert.programs.transformers.modules import MODULES, TOWER, Modules
from vitconvert.programs.transformers.running import (
    behind_normalisation,
    class_named,
    gives_output,
    run,
    run_to_tokens,
    without_code,
)
from vitconvert.tables.dialects import builtin_tables

_WITH_PROJECTION = {
    "clip": "CLIPVisionModelWithProjection",
    "metaclip_2": "MetaClip2VisionModelWithProjection",
}
# Of tables of authors' own names, whose config.json has no type of transformers
_TYPES = {
    "hf_deepseek_ocr_sam": "unlimited_ocr_sam",
    "hf_deepseek_ocr_clip": "unlimited_ocr_vision_encoder",
    "hf_step3p7_disk": "step3p5_vision",
}
_SCALE = re.compile(r"\bls([12])\.(?:grandma|gamma)$")  # RADIO's own
_JOINED_NAMES = re.compile(r"\.attention\.attention\.(query|key|value)\.")
_MOONSHOTS = ("hf_moonvit", "hf_kimi_k25_base")  # other names and pairs than the class of Kimi K2.5
# Fields of ViTConfig that stand in for a config.json
_TOLD = ("image_size", "num_heads", "activation", "norm_eps", "representation_activation")


def transformers_reference(checkpoint: Checkpoint) -> Reference:
    """Build the class that the tensors are of, from the config.json beside them.

    transformers 5.23. `from_pretrained` reads both spellings, on disk and in memory; what it
    would initialise anew or leave out is an error here, unless it plays no part.
    """
    transformers = package("transformers", install="transformers")
    tensors, config = own_tensors(checkpoint), checkpoint.config
    own = _own_type(checkpoint)
    theirs = without_code(checkpoint.their_config) if own else _config_from_ours(checkpoint)
    theirs["model_type"] = own or theirs["model_type"]
    theirs["num_labels"] = config.num_classes  # a config.json does not write two classes
    theirs.pop("id2label", None)
    theirs.pop("label2id", None)
    if theirs["model_type"] == "vit_mae":
        theirs["mask_ratio"] = 0.0
    if theirs["model_type"] == "molmo2_vision":  # Allen's config.json counts more blocks
        theirs["num_hidden_layers"] = config.depth
    if theirs["model_type"] == "vitpose_backbone":  # by default it gives the last stage
        theirs = {k: v for k, v in theirs.items() if k not in ("out_features", "out_indices")}
    if theirs["model_type"] in ("beit", "data2vec-vision"):
        # With the head of masked pre-training, tokens are normed in spite of mean pooling.
        theirs["use_mean_pooling"] = not config.final_norm
    model_type = theirs["model_type"]
    if model_type == "rf_detr_dinov2":  # a detector's file has names that only the detector reads
        tensors = {_as_saved_alone(n): t for n, t in tensors.items()}
    if checkpoint.dialect == "hf_pixio_backbone":  # the PixioModel in it
        tensors = {n.removeprefix("encoder."): t for n, t in tensors.items()}
    places = MODULES[model_type]
    tensors = {_renamed(name, places): t for name, t in tensors.items()}
    if checkpoint.dialect in _MOONSHOTS:
        tensors = _of_kimi(tensors, checkpoint)
    if checkpoint.dialect in ("hf_qianfan_ocr_disk", *_MOONSHOTS):
        tensors = _with_separate_qkv(tensors)
    if places.within:
        tensors = {places.within + n.removeprefix(places.within): t for n, t in tensors.items()}
    kind = _class_of(model_type, tensors)
    if model_type == "radio":  # transformers reads but its own name of these
        tensors = {_SCALE.sub(r"layer_scale\1.lambda1", n): t for n, t in tensors.items()}
    model = _built(kind, theirs, tensors, checkpoint, eager=bool(places.eager))
    behind_normalisation(model)
    rounded = places.rounded or places.summed
    if model_type in ("internvl_vision", "qianfan_ocr_vision") and config.norm == "rms":
        rounded = "norms"
    who = "vitconvert" if places.summed else "transformers"
    notes = [f"{who} computes the {rounded} in float32, so float64 was not compared"]
    eager = f"{kind}'s default attention is {places.eager} here, so its eager one was compared"
    notes = (notes if rounded else []) + ([eager] if places.eager else [])
    whole = gives_output(model, places)
    return Reference(
        name=f"transformers {transformers.__version__} {kind}",
        model=model.eval(),
        taps=_taps(model, places, config.depth) if places.tapped else {},
        run=run if whole else run_to_tokens,
        reads="output" if whole else "tokens",
        told=() if own else _TOLD,
        dtypes=("float32",) if rounded else ("float32", "float64"),
        notes=tuple(notes),
        any_size=True,
    )


def _renamed(name: str, places: Modules) -> str:
    for pattern, theirs in places.renamed:
        name = re.sub(pattern, theirs, name)
    return name


def _as_saved_alone(name: str) -> str:
    name = _JOINED_NAMES.sub(lambda found: f".attention.{found[1][0]}_proj.", name)
    return name.replace(".attention.output.dense.", ".attention.o_proj.")


def _of_kimi(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Norms and layers of the MLPs from 1, and q and k as a class reads them that pairs halves."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        counted = name
        if checkpoint.dialect == "hf_moonvit":
            counted = re.sub(
                r"\.(norm|mlp\.fc)([01])\.", lambda n: f".{n[1]}{int(n[2]) + 1}.", name
            )
        paired = ".attn.qkv." in name
        found[counted] = with_other_pairs(tensor, checkpoint.config) if paired else tensor
    return found


def _with_separate_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Three tensors for each that has queries, keys and values."""
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        start, mark, end = name.partition("qkv.")
        names = [f"{start}{one}_proj.{end}" for one in "qkv"] if mark else [name]
        separate |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    return separate


def _own_type(checkpoint: Checkpoint) -> str | None:
    """The key in MODULES; a section may have no type, or the larger model's (Qwen's on the Hub)."""
    if not checkpoint.their_config or checkpoint.dialect in _MOONSHOTS:
        return None  # Moonshot's files have other words
    files = (checkpoint.their_config, checkpoint.companions.whole_config)
    stated = next((kind for file in files if (kind := file.get("model_type"))), None)
    bare = str(stated).removesuffix(TOWER)
    return next((kind for kind in (bare, f"{bare}_vision") if kind in MODULES), None)


def _config_from_ours(checkpoint: Checkpoint) -> JsonDict:
    """For tensors without a config.json, from what the user stated."""
    table, config = checkpoint.table, checkpoint.config
    if table.name == "hf_radio":  # NVIDIA's own files
        return written_config(table, config)
    if table.name in _MOONSHOTS:
        return _config_of_kimi(config)
    if kind := _TYPES.get(table.name):
        return {**written_config(table, config), "model_type": kind}
    if not table.name.startswith(("hf_vit", "hf_deit", "hf_ijepa")):
        files = (checkpoint.their_config, checkpoint.companions.whole_config)
        kind = next((said for file in files if (said := file.get("model_type"))), None)
        if kind is None:
            raise NotRepresentable(f"{table.title} cannot be built without its config.json.")
        raise NotRepresentable(
            f"{table.title}: transformers itself has no {str(kind)[:80]!r}; the code of a "
            "repository is not run."
        )
    kind = "deit" if config.dist_token else "vit" if config.class_token else "ijepa"
    return {**written_config(table, config), "model_type": kind}


def _config_of_kimi(config: ViTConfig) -> JsonDict:
    """transformers 5.24 has MoonViT as a part of Kimi K2.5, for positions of a square."""
    if len(set(config.position_grid)) > 1:
        raise NotRepresentable(
            "Kimi_K25VisionModel counts the rows of its positions as a square's."
        )
    return written_config(builtin_tables()["hf_kimi_k25"], config.replace(rope_half=True))


def _class_of(model_type: str, tensors: Collection[str]) -> str:
    """The class by transformers' own lists, or one of two that are in none."""
    from transformers.models.auto import modeling_auto

    bare = modeling_auto.MODEL_MAPPING_NAMES
    classifiers = {
        **modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES,
    }
    if "classifier.layernorm.weight" in tensors:
        return "ASTForAudioClassification"
    if "cls_classifier.weight" in tensors:
        return "DeiTForImageClassificationWithTeacher"
    if "visual_projection.weight" in tensors and model_type in _WITH_PROJECTION:
        return _WITH_PROJECTION[model_type]
    if "classifier.weight" in tensors:
        found = classifiers.get(model_type)
    else:
        found = MODULES[model_type].kind or bare.get(model_type + TOWER) or bare.get(model_type)
    if not found:
        raise NotRepresentable(f"transformers has no class of {model_type} with a classifier.")
    return found if isinstance(found, str) else str(found[0])


def _built(
    kind: str,
    theirs: JsonObject,
    tensors: dict[str, Tensor],
    checkpoint: Checkpoint,
    *,
    eager: bool = False,
) -> Foreign:
    options = {}
    if kind in ("BeitModel", "Data2VecVisionModel"):
        options = {"add_pooling_layer": checkpoint.config.pooling != "none"}
    elif kind in (
        *("ViTModel", "DeiTModel", "IJepaModel", "DPTModel"),
        *("VivitModel", "FlavaImageModel"),
    ):
        pooler = any(name.endswith("pooler.dense.weight") for name in tensors)
        options = {"add_pooling_layer": pooler}
    projection = None
    if "Projection" not in kind:
        # Some classes of encoders have no sibling with the projection beside the encoder.
        projection = tensors.pop("visual_projection.weight", None)
    patches = None
    if kind == "UnlimitedOcrVisionEncoder":  # it reads the map of another encoder
        patches = tensors.pop("embeddings.patch_embedding.weight")
    with silent_transformers():
        of_kind = class_named(kind)
        config = _config_of(of_kind, theirs)
        with torch.device("meta"):
            check_size(of_kind(config, **options), tensors, kind)
        model, problems = of_kind.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=next(iter(tensors.values())).dtype,
            attn_implementation="sdpa" if of_kind._supports_sdpa and not eager else "eager",
            output_loading_info=True,
            **options,
        )
    # A class with a head calls the same tensors by longer names.
    ignored = [_renamed(name, MODULES[theirs["model_type"]]) for name in checkpoint.ledger.ignored]
    inert = {end for name in ignored for end in (name, name.partition(".")[2])}
    if any(name.endswith("mask_token") for name in inert):  # TIPSv2's has other names on disk
        inert.add("embeddings.mask_token")
    behind = tuple(f"{name}." for name in MODULES[theirs["model_type"]].behind)
    inert |= {name for name in model.state_dict() if name.startswith(behind)}
    found = {key: sorted(map(str, set(value) - inert)) for key, value in problems.items()}
    if any(found.values()):
        raise NotRepresentable(
            f"transformers' {kind} does not take these tensors.",
            details=[f"{key}: {', '.join(value)}" for key, value in found.items() if value],
        )
    if patches is not None:
        return _OfPatches(model, patches)
    return model if projection is None else _Projected(model, projection)


class _Projected(nn.Module):
    """A vision encoder with its larger model's projection, as `get_image_features` has them."""

    def __init__(self, tower: Foreign, weight: Tensor) -> None:
        super().__init__()
        self.config = tower.config
        self.vision_model = tower
        self.visual_projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.visual_projection.weight = nn.Parameter(weight)

    def forward(
        self, pixel_values: Tensor, interpolate_pos_encoding: bool = False
    ) -> Mapping[str, Tensor]:
        how = {"interpolate_pos_encoding": True} if interpolate_pos_encoding else {}
        output: Foreign = self.vision_model(pixel_values=pixel_values, **how)
        output["image_embeds"] = self.visual_projection(output.pooler_output)
        return output  # type: ignore[no-any-return]


class _OfPatches(nn.Module):
    """Blocks that read patches, with their patch embedding, as DeepSeek's VitModel has both."""

    def __init__(self, tower: Foreign, weight: Tensor) -> None:
        super().__init__()
        self.config = tower.config
        self.vision_model = tower
        width, channels, *sides = weight.shape
        size = (sides[0], sides[1])
        self.patch_embedding = nn.Conv2d(channels, width, size, size, bias=False)
        self.patch_embedding.weight = nn.Parameter(weight)

    def forward(self, pixel_values: Tensor) -> Foreign:
        return self.vision_model(patch_embeds=self.patch_embedding(pixel_values))


def _config_of(kind: Foreign, theirs: JsonObject) -> Foreign:
    """The configuration of a class: of a vision encoder, where the file is about two encoders."""
    # A CLIP of 2022 may have the older section, which then counts alone.
    vision = theirs.get("vision_config_dict") or theirs.get("vision_config")
    if vision is None:
        said = dict(theirs)
    elif "ForImageClassification" in kind.__name__:
        # Pooling by attention plays no part in it.
        said = {**theirs, "vision_config": {**vision, "vision_use_head": False}}
    else:
        projected = "WithProjection" in kind.__name__
        said = vision | ({"projection_dim": theirs["num_labels"]} if projected else {})
    return kind.config_class(**{k: v for k, v in said.items() if k != "model_type"})


def _taps(model: Foreign, places: Modules, depth: int) -> Taps:
    modules = dict(model.named_modules())
    # What a class with a head calls the bare model
    headed = "Classification" in type(model).__name__
    names = ("vision_model", *([str(model.base_model_prefix)] if headed else []))
    base = next((f"{name}." for name in names if name in modules), "")
    # Some releases have ViT's blocks a level deeper, under the names that they have on disk.
    deep = f"{base}encoder.layer.0" in modules
    block = base + ("encoder.layer.{i}" if deep else places.block)
    taps = block_taps(depth, block=block, norm2=places.norm2, norm=base + places.norm)
    if not places.norm:
        del taps["norm"]
    taps["patch_embed"] = Tap(f"{base}{places.patches}")
    taps = channels_last(taps, ends=places.last)
    heads = ("classifier.dense", "classifier", "visual_projection")
    head = next((name for name in heads if name in modules), "")
    return {"features": Tap(head, input=True) if head else Tap("pooler"), **taps}
