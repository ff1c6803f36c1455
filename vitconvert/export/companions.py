"""The small files beside the weights: what each program needs to build and feed the model."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.conversion.target import Target
from vitconvert.errors import NotRepresentable
from vitconvert.export.huggingface_config import reads_patches
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.departures import departures_of


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The small files, and what they cannot say.

    Attributes:
        files: Name -> content of each JSON file.
        departures: How the target's programs treat photographs differently from the checkpoint's
            own project, one sentence each.
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
        departures = departures_of("open_clip", preprocessing, theirs)
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
    """A file for transformers only where it is exact and timm is not.

    Without such a file transformers 5.23 lets timm make the images: TimmWrapperImageProcessor.
    """
    departures = departures_of("timm", source, Preprocessing.from_timm(pretrained_cfg))
    try:
        processor = source.to_huggingface()
    except NotRepresentable:
        return None, departures
    theirs = Preprocessing.from_huggingface(processor, image_size=source.image_size)
    # A timm model cannot read patches.
    exact = source.resize != "patches" and not theirs.differences(source)
    return (processor if exact and departures else None), departures


def _for_transformers(
    source: Preprocessing, *, patches: bool
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    if patches != (source.resize == "patches"):
        reason = (
            "this class keeps the aspect ratio of photographs, and the source does not"
            if patches
            else "the source keeps the aspect ratio of photographs, and this class does not"
        )
        return None, (f"preprocessor_config.json is left out: {reason}",)
    try:
        processor = source.to_huggingface()
    except NotRepresentable as error:
        return None, (f"preprocessor_config.json is left out: {error.fact}",)
    theirs = Preprocessing.from_huggingface(processor, image_size=source.image_size)
    departures = departures_of("transformers", source, theirs)
    if departures and BACKENDS[source.backend].resize == "pil":
        # The file cannot choose it.
        advice = 'transformers resizes Pillow images with AutoImageProcessor(..., backend="pil")'
        departures = (*departures, advice)
    return processor, departures
