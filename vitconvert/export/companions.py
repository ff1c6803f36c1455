"""The small files beside the weights: what each program needs to build and feed the model."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.conversion.target import Target
from vitconvert.errors import NotRepresentable
from vitconvert.export.huggingface_config import reads_patches
from vitconvert.inference.backends import BACKENDS
from vitconvert.inference.preprocessing import Preprocessing

_RESIZES = {"pil": "Pillow images", "uint8": "tensors of bytes", "float": "tensors of floats"}
_TRANSPARENT = {"drop": "forgets transparency", "white": "lays transparent images over white"}
# Said by these, and not by their names
_IN_WORDS = ("backend", "transparency", "patch_size", "max_patches")


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The small files, and what they cannot say.

    Attributes:
        files: Name -> content of each JSON file.
        departures: What the programs that the target is for do otherwise with photographs than
            the checkpoint's own project, one sentence each.
    """

    files: Mapping[str, Mapping[str, Any]]
    departures: tuple[str, ...] = ()


def companions_of(
    target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
) -> Companions:
    """The project's own configuration and `preprocessor_config.json`, where the target has them."""
    if not target.their_config or not target.table.config_file:
        return Companions(files={})
    config, name = dict(target.their_config), target.table.config_file.file
    if "dtype" in config:
        found = set(dtypes)
        config["dtype"] = found.pop() if len(found) == 1 else "float32"
    if preprocessing is None:
        unknown = "nothing says how photographs become the model's input"
        return Companions(files={name: config}, departures=(unknown,))
    if "model_cfg" in config:
        config["preprocess_cfg"] = preprocessing.to_openclip()
        theirs = Preprocessing.from_openclip(
            config["preprocess_cfg"], image_size=preprocessing.image_size
        )
        departures = _departures("open_clip", preprocessing, theirs)
        return Companions(files={name: config}, departures=departures)
    if "pretrained_cfg" not in config:
        processor, departures = _for_transformers(preprocessing, patches=reads_patches(config))
    else:
        processor, departures = _beside_timm(config["pretrained_cfg"], preprocessing)
        if processor:
            # Without it, transformers would not look into the other file of a timm directory.
            config["image_processor_type"] = processor["image_processor_type"]
    files = {name: config, "preprocessor_config.json": processor}
    return Companions(
        files={name: file for name, file in files.items() if file}, departures=departures
    )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object as people read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _beside_timm(
    pretrained_cfg: Mapping[str, Any], source: Preprocessing
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """A file of transformers' own only where it is exact and timm, which it would ask, is not.

    transformers 5.23, TimmWrapperImageProcessor: without such a file, timm makes the images.
    """
    departures = _departures("timm", source, Preprocessing.from_timm(pretrained_cfg))
    try:
        processor = source.to_huggingface()
    except NotRepresentable:
        return None, departures
    theirs = Preprocessing.from_huggingface(processor, image_size=source.image_size)
    # A timm model reads no patches, whatever makes them.
    exact = source.resize != "patches" and not theirs.differences(source)
    return (processor if exact and departures else None), departures


def _for_transformers(
    source: Preprocessing, *, patches: bool
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    if patches != (source.resize == "patches"):
        reason = (
            "this class reads patches of photographs that keep their shape, and the source does not"
            if patches
            else "photographs keep their shape, which this class does not read"
        )
        return None, (f"preprocessor_config.json is left out: {reason}",)
    try:
        processor = source.to_huggingface()
    except NotRepresentable as error:
        return None, (f"preprocessor_config.json is left out: {error.fact}",)
    theirs = Preprocessing.from_huggingface(processor, image_size=source.image_size)
    departures = _departures("transformers", source, theirs)
    if departures and BACKENDS[source.backend].resize == "pil":
        # The file cannot choose it.
        advice = 'transformers resizes Pillow images with AutoImageProcessor(..., backend="pil")'
        departures = (*departures, advice)
    return processor, departures


def _departures(program: str, source: Preprocessing, theirs: Preprocessing) -> tuple[str, ...]:
    """What a program does otherwise; roundings of the last bit are left out."""
    ours, other = BACKENDS[source.backend], BACKENDS[theirs.backend]
    said = []
    if other.resize != ours.resize:
        said.append(f"resizes {_RESIZES[other.resize]}, not {_RESIZES[ours.resize]}")
    if other.antialias != ours.antialias:
        said.append("smooths what it shrinks" if other.antialias else "shrinks without smoothing")
    if source.cuts and other.crop_rounding != ours.crop_rounding:
        said.append("cuts a pixel beside where 3, 7, 11, ... pixels are cut off")
    if other.upright != ours.upright:
        turns = "turns" if other.upright else "does not turn"
        said.append(f"{turns} photographs by their EXIF orientation")
    if source.resize == "patches" != theirs.resize:
        said.append("makes all photographs one shape")
    if other.converts_last != ours.converts_last:
        order = "after" if other.converts_last else "before"
        said.append(f"converts images that are neither grey nor RGB {order} it resizes them")
    if source.resize == theirs.resize == "border" and other.black_border != ours.black_border:
        said.append(f"pads with {'black' if other.black_border else 'the mean colour'}")
    if theirs.transparency != source.transparency:
        said.append(_TRANSPARENT[theirs.transparency])
    said += [d for d in source.differences(theirs) if not d.startswith(_IN_WORDS)]
    return tuple(f"{program} {sentence}" for sentence in said)
