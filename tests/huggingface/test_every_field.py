"""No field of a configuration changes what a class of transformers computes in silence.

Each field is changed in turn. Then the class cannot be built or run, or its file is refused, or
vitconvert computes the same from it.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.huggingface.every_class import ARGUMENTS, STATED, VISION, made
from tests.make_classes import committed
from tests.packages import transformers
from tests.small_models import relative
from vitconvert import load_model
from vitconvert.errors import VitConvertError
from vitconvert.programs.transformers.running import behind_normalisation, run_opened, run_to_tokens

ROUNDING = 1e-5
SECTIONS = ("vlm_config", "vision_config", "backbone_config")
# How a backbone hands on its tokens, which whoever calls it chooses.
HANDED_ON = {"out_features", "out_indices", "stage_names", "reshape_hidden_states"}
HANDED_ON |= {"apply_layernorm", "model_type", "num_labels"}
SCALED = {"factor": 3.0, "original_max_position_embeddings": 4}
# Classes whose configuration another class has, by itself or in a section.
AGAIN = ("ForConditionalGeneration", "InternVLModel", "Idefics3Model", "SmolVLMModel")
AGAIN += ("Idefics2Model", "JanusModel", "Phi4MultimodalModel")
AGAIN += ("ForMaskedImageModeling", "ForVideoClassification", "ForSemanticSegmentation")


# Fields with which transformers builds a class that gives nothing, by beginnings of names.
NOT_RUN = {
    "Pixtral": ("head_dim",),
    "Ernie4_5": ("patch_size", "spatial_merge_size"),  # no whole squares
    # Its adapter does not fit
    "Llama4": ("hidden_size", "intermediate_size", "patch_size", "shuffle_ratio", "put_dim"),
    "Gemma4": ("pooling_kernel_size",),  # of 1: no token is left
    "Radio": ("image_size", "patch_size", "num_cls_tokens"),  # no whole patches; its summaries
}


def others(field: str, value: Any) -> Iterator[Any]:
    """Other values of a field, of the kind that it has or may have."""
    match value:
        case bool():
            yield not value
        case int():
            yield from {value + 1, 2 * value, value // 2 or 1} - {value}
        case float():
            yield from (2 * value + 0.25, 0.0)
        case str():
            words = {"relu", "gelu", "silu"} if "act" in field else {"layer_norm", "rms_norm"}
            yield from words - {value}
        case {}:
            yield from (value | {key: v} for key in value for v in others(key, value[key]))
            yield from (value | SCALED | {"rope_type": kind} for kind in ("linear", "dynamic"))
            yield value | {"partial_rotary_factor": 0.5}
        case list() | tuple():
            yield value[:-1]
            yield [item + 1 if type(item) is int else item for item in value]
        case None:
            yield from (True, 1, 0.5, [1], "relu")


def fields_of(config: Any) -> Mapping[str, Any]:
    """The fields that a class adds to those of every configuration, but for sections."""
    common = transformers.PreTrainedConfig()
    known = {*common.to_dict(), *type(common).__dataclass_fields__} | HANDED_ON
    declared = (name for name in type(config).__dataclass_fields__ if hasattr(config, name))
    said = config.to_dict() | {name: getattr(config, name) for name in declared}
    return {k: v for k, v in said.items() if k not in known and k[0] != "_" and "_config" not in k}


def sections_of(config: Any) -> list[str]:
    """The way to the section about the image tower: none where all of it is."""
    ways = ([n, *sections_of(own)] for n in SECTIONS if (own := getattr(config, n, None)))
    return next(ways, [])


def changes(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of the class or of its image tower, and arguments in which it is another."""
    config = made(name).config
    way = sections_of(config)
    arguments = ARGUMENTS.get(type(config).__name__, VISION)
    for field, value in fields_of(config).items():
        yield from ((field, {field: other}) for other in others(field, value))
    if way:
        own = reduce(getattr, way, config)
        for field, value in fields_of(own).items():
            for other in others(field, value):
                changed = _with(arguments, way, {field: other})
                yield ".".join((*way, field)), {way[0]: changed[way[0]]}


def _with(arguments: Mapping[str, Any], way: list[str], more: dict[str, Any]) -> dict[str, Any]:
    if not way:
        return {**arguments, **more}
    return {**arguments, way[0]: _with(arguments[way[0]], way[1:], more)}


@torch.inference_mode()
def outputs(model: Any, images: Tensor) -> Iterator[Tensor]:
    """What a model makes of images, what the part of it that is no head does, and its tower."""
    behind_normalisation(model)
    model.config.mask_ratio = 0.0  # ViTMAE's
    own = reduce(getattr, sections_of(model.config), model.config)
    towers = (module for module in model.modules() if getattr(module, "config", None) is own)
    for module in dict.fromkeys((model, model.base_model, next(towers))):
        run = run_to_tokens if "Backbone" in type(module).__name__ else run_opened
        with contextlib.suppress(Exception):
            if (given := run(module, images)).numel():
                yield given


@torch.inference_mode()
def difference(theirs: Any, ours: nn.Module) -> float | None:
    """The least from what the model gives; None if it does not run on images of this size."""
    images = torch.rand(2, ours.config.in_channels, *ours.config.image_size)
    given = list(outputs(theirs, images))
    tokens = ours.forward_features(images)
    found = []
    for expected in given:
        got = (
            ours(images),
            tokens,
            tokens[:, -expected.shape[1] :] if expected.ndim == 3 else tokens,
        )
        found += [relative(g, expected) for g in got if g.shape == expected.shape]
    return min(found, default=float("inf")) if given else None


def seen(name: str, changed: Mapping[str, Any], folder: Any) -> float | str | None:
    """What becomes of a class with other arguments: a difference, or why there is none."""
    try:
        model = made(name, **changed)
    except Exception:
        return "cannot be built"
    try:
        with warnings.catch_warnings(action="ignore"):
            model.save_pretrained(folder)
    except Exception:
        return "cannot be saved"
    try:
        ours = load_model(folder, overrides=STATED.get(name[:6], {}))
    except VitConvertError:
        return "refused"
    return difference(model, ours)


@pytest.mark.coverage
@pytest.mark.parametrize("name", [name for name in committed() if not name.endswith(AGAIN)])
def test_no_field_is_passed_over(name, tmp_path):
    before = seen(name, {}, tmp_path)
    assert isinstance(before, float) and before <= ROUNDING, before
    wrong = []
    for field, changed in changes(name):
        found = seen(name, changed, tmp_path)
        allowed = (ends for start, ends in NOT_RUN.items() if name.startswith(start))
        if found is None and not field.endswith(tuple(*allowed)):
            wrong.append((field, changed, "not run"))
        if isinstance(found, float) and found > ROUNDING:
            wrong.append((field, changed, found))
    assert wrong == []
