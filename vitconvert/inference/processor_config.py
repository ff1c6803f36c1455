"""Reads what a project's own file says about preprocessing.

Each function turns one kind of mapping (timm's `pretrained_cfg`, Hugging Face's
`preprocessor_config.json`, a dialect's table) into the fields of `Preprocessing`.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable, TableError
from vitconvert.inference.backends import Size

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

# timm 1.0.31, data/config.py and data/constants.py: what a cfg means where it is silent
_TIMM_CROP_PCT = 0.875
_TIMM_SIZE = (3, 224, 224)

# Pillow's numbers for its filters, which the files of transformers use
_RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


@dataclass(frozen=True, kw_only=True)
class _Processor:
    """What a class of transformers 5.23 does where its file is silent."""

    mean_std: tuple[tuple[float, ...], tuple[float, ...]]
    resample: int
    size: Mapping[str, int]
    crop: bool = False
    crop_size: int | None = None
    convert_rgb: bool = False
    square: bool = True  # a whole number as size means both sides, not the shortest
    rescale_first: bool = False
    patches: bool = False  # as many as there may be, instead of a size


_SQUARE, _SHORTEST = {"height": 224, "width": 224}, {"shortest_edge": 224}
_CLIP_LIKE = _Processor(
    mean_std=CLIP,
    resample=3,
    size=_SHORTEST,
    crop=True,
    crop_size=224,
    convert_rgb=True,
    square=False,
)
_PROCESSORS = {
    "ViTImageProcessor": _Processor(mean_std=HALVES, resample=2, size=_SQUARE),
    "DeiTImageProcessor": _Processor(
        mean_std=HALVES,
        resample=3,
        size={"height": 256, "width": 256},
        crop=True,
        crop_size=224,
    ),
    "BitImageProcessor": _CLIP_LIKE,
    "CLIPImageProcessor": _CLIP_LIKE,
    "BeitImageProcessor": _Processor(mean_std=HALVES, resample=3, size=_SQUARE, crop_size=224),
    "SiglipImageProcessor": _Processor(
        mean_std=HALVES, resample=3, size=_SQUARE, convert_rgb=True, square=False
    ),
    "DINOv3ViTImageProcessor": _Processor(
        mean_std=IMAGENET, resample=2, size=_SQUARE, rescale_first=True
    ),
    "Siglip2ImageProcessor": _Processor(mean_std=HALVES, resample=2, size={}, patches=True),
}
# transformers 5.23, models/auto: the class of a model whose file names none
_MODEL_TYPES = {
    "vit": "ViTImageProcessor",
    "vit_mae": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "beit": "BeitImageProcessor",
    "data2vec-vision": "BeitImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
    "clip": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip2": "Siglip2ImageProcessor",
}


def fields_from_timm(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """timm's `pretrained_cfg` as `resolve_data_config` and `create_transform` read it."""
    channels, *size = _whole_numbers(
        cfg.get("input_size") or _TIMM_SIZE, "input_size", 3, repeat=False
    )
    image_size = (size[0], size[1])
    mode = cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash", "border"):
        raise ConflictingFact(f"crop_mode = {mode!r} is none of center, squash, border.")
    if mode == "center":
        mode = "shortest" if size[0] == size[1] else "cover"
    return {
        "image_size": image_size,
        "mean": numbers(cfg.get("mean") or IMAGENET[0], "mean", channels),
        "std": numbers(cfg.get("std") or IMAGENET[1], "std", channels),
        "interpolation": cfg.get("interpolation") or "bicubic",
        "resize": mode,
        "resize_size": scaled_size(image_size, cfg.get("crop_pct") or _TIMM_CROP_PCT),
        "crop": True,
        "backend": "torchvision",
    }


def scaled_size(image_size: Size, crop_pct: float) -> Size:
    """timm's size before cropping: floor(size / crop_pct).

    Raises:
        ConflictingFact: `crop_pct` is no positive number.
    """
    (fraction,) = numbers(crop_pct, "crop_pct", 1)
    if fraction <= 0:
        raise ConflictingFact(f"crop_pct = {crop_pct} must be positive.")
    return math.floor(image_size[0] / fraction), math.floor(image_size[1] / fraction)


# open_clip 3.3, transform.py: `shortest` is another arithmetic where the result is not square
_OPENCLIP_RESIZES = {"shortest": "cover", "squash": "squash", "longest": "border"}


def fields_from_openclip(cfg: Mapping[str, Any], *, image_size: Size) -> dict[str, Any]:
    """open_clip's `preprocess_cfg` as `image_transform` reads it; the tower states the size."""
    mode = str(cfg.get("resize_mode") or "shortest")
    if mode not in _OPENCLIP_RESIZES:
        raise ConflictingFact(f"resize_mode = {mode!r} is none of {', '.join(_OPENCLIP_RESIZES)}.")
    if mode == "longest" and cfg.get("fill_color"):
        raise NotRepresentable(f"fill_color = {cfg['fill_color']!r} is not supported; 0 is.")
    keeps_ratio = mode == "shortest" and image_size[0] != image_size[1]
    bilinear = cfg.get("interpolation") == "bilinear" and not keeps_ratio
    square = mode == "shortest" and not keeps_ratio
    return {
        "image_size": image_size,
        "mean": numbers(cfg.get("mean") or CLIP[0], "mean", 3),
        "std": numbers(cfg.get("std") or CLIP[1], "std", 3),
        "interpolation": "bilinear" if bilinear else "bicubic",
        "resize": "shortest" if square else _OPENCLIP_RESIZES[mode],
        "resize_size": image_size,
        "crop": mode != "squash",
        "backend": "open_clip",
    }


def fields_from_huggingface(
    config: Mapping[str, Any],
    *,
    backend: str,
    model_type: str | None,
    image_size: Size | None,
) -> dict[str, Any]:
    """`preprocessor_config.json` as transformers 5.23 reads it; see `Preprocessing`.

    A key that is left out has the class's own value; one that is null has none, and switches
    its step off.
    """
    name = _processor_name(config, model_type)
    processor = _PROCESSORS[name]
    _refuse_unread(config, name)
    resize, resize_size = _huggingface_resize(config, processor)
    crop = bool(config.get("do_center_crop", processor.crop))
    if crop:
        image_size = _crop_size(config, processor)
    elif resize == "squash":
        image_size = resize_size
    if image_size is None or (resize == "shortest" and not crop):
        raise MissingFact(
            "The size of the processed images depends on the photograph.",
            evidence={"processor": name, "size": config.get("size"), "do_center_crop": crop},
        )
    mean, std = _mean_std(config, processor)
    rescale = bool(config.get("do_rescale", True))
    if processor.rescale_first and not rescale:
        raise NotRepresentable(f"{name} cannot normalise without do_rescale.")
    return {
        "image_size": image_size,
        "mean": mean,
        "std": std,
        "interpolation": _interpolation(
            2 if resize == "none" else config.get("resample", processor.resample)
        ),
        "resize": resize,
        "resize_size": resize_size,
        "crop": crop,
        "backend": _huggingface_backend(processor, backend),
        "transparency": (
            "white" if config.get("do_convert_rgb", processor.convert_rgb) else "drop"
        ),
        "rescale_factor": _rescale_factor(config) if rescale else None,
        "normalize": bool(config.get("do_normalize", True)),
        **(_patches(config) if resize == "patches" else {}),
    }


def _patches(config: Mapping[str, Any]) -> dict[str, int]:
    (patch_size,) = _whole_numbers(config.get("patch_size", 16), "patch_size", 1)
    (most,) = _whole_numbers(config.get("max_num_patches", 256), "max_num_patches", 1)
    return {"patch_size": patch_size, "max_patches": most}


def _processor_name(config: Mapping[str, Any], model_type: str | None) -> str:
    """AutoImageProcessor's choice: the file's class, the older extractor's, the model's."""
    legacy = str(config.get("feature_extractor_type") or "")
    named = config.get("image_processor_type") or legacy.replace(
        "FeatureExtractor", "ImageProcessor"
    )
    name = str(named or _MODEL_TYPES.get(str(model_type), ""))
    name = name.removesuffix("Fast").removesuffix("Pil")
    if not name:
        raise MissingFact(
            "The preprocessing file names no image processor.",
            evidence={"keys": ", ".join(sorted(config)) or "none", "model_type": model_type},
            hint='write one into it, e.g. "image_processor_type": "ViTImageProcessor".',
        )
    if name not in _PROCESSORS:
        raise NotRepresentable(
            f"Images processed by {name} are not supported.",
            evidence={"supported": ", ".join(sorted(_PROCESSORS))},
        )
    return name


def _refuse_unread(config: Mapping[str, Any], name: str) -> None:
    for key in ("do_pad", "use_square_size"):
        if config.get(key):
            raise NotRepresentable(f"{key} of {name} is not supported.")


def _huggingface_resize(
    config: Mapping[str, Any], processor: _Processor
) -> tuple[str, Size | None]:
    if not config.get("do_resize", True):
        return "none", None
    if processor.patches:
        return "patches", None
    size = config.get("size", processor.size)
    square = bool(config.get("default_to_square", processor.square))
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
    if isinstance(size, Mapping):
        size = {side: pixels for side, pixels in size.items() if pixels is not None}
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        (edge,) = _whole_numbers(size["shortest_edge"], "size.shortest_edge", 1)
        return "shortest", (edge, edge)
    return "squash", _height_width(size, "size")


def _crop_size(config: Mapping[str, Any], processor: _Processor) -> Size:
    size = config.get("crop_size", processor.crop_size)
    if size is None:
        raise MissingFact("do_center_crop is set, and crop_size is not.")
    return _height_width(size, "crop_size")


def _height_width(size: object, name: str) -> Size:
    if isinstance(size, Mapping):
        if set(size) != {"height", "width"}:
            raise NotRepresentable(
                f"{name} = {dict(size)} is not supported.",
                hint="height and width, or shortest_edge, are.",
            )
        size = (size["height"], size["width"])
    height, width = _whole_numbers(size, name, 2)
    return height, width


def _mean_std(
    config: Mapping[str, Any], processor: _Processor
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean = config.get("image_mean", processor.mean_std[0])
    std = config.get("image_std", processor.mean_std[1])
    listed = [len(values) for values in (mean, std) if isinstance(values, list | tuple)]
    channels = max(listed, default=3)  # one number serves all that the other list names
    if not config.get("do_normalize", True):
        return (0.0,) * channels, (1.0,) * channels
    return numbers(mean, "image_mean", channels), numbers(std, "image_std", channels)


def _interpolation(code: object) -> str:
    if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code < len(_RESAMPLE):
        raise ConflictingFact(
            f"resample = {code!r} is no filter of Pillow.",
            evidence={"known": ", ".join(f"{i} {name}" for i, name in enumerate(_RESAMPLE))},
        )
    return _RESAMPLE[code]


def resample_code(interpolation: str) -> int:
    """The number that files of transformers use for a filter."""
    return _RESAMPLE.index(interpolation)


def _huggingface_backend(processor: _Processor, backend: str) -> str:
    if backend not in ("torchvision", "pil"):
        raise ConflictingFact(f"backend = {backend!r} is none of torchvision, pil.")
    if processor.rescale_first:
        return "transformers_float"  # it has no Pillow variant, and falls back to this one
    return "transformers" if backend == "torchvision" else "transformers_pil"


def _rescale_factor(config: Mapping[str, Any]) -> float:
    (factor,) = numbers(config.get("rescale_factor", 1 / 255), "rescale_factor", 1)
    if factor <= 0:
        raise ConflictingFact(f"rescale_factor = {factor} must be positive.")
    return factor


_DIALECT_KEYS = {
    "resize",
    "interpolation",
    "mean",
    "std",
    "crop_pct",
    "resize_size",
    "crop",
    "backend",
    "transparency",
}


def fields_from_dialect(
    section: Mapping[str, Any], *, image_size: Size, channels: int
) -> dict[str, Any]:
    """The `[preprocessing]` section of a table in `weights_map/`."""
    unknown = sorted(set(section) - _DIALECT_KEYS)
    missing = sorted({"resize", "interpolation", "mean", "std", "backend"} - set(section))
    if unknown or missing:
        raise TableError(
            "A [preprocessing] section does not parse.",
            evidence={"unknown": ", ".join(unknown) or "-", "missing": ", ".join(missing) or "-"},
        )
    if "crop_pct" in section and "resize_size" in section:
        raise TableError("A [preprocessing] section states both crop_pct and resize_size.")
    fields = dict(section)
    resize_size = scaled_size(image_size, fields.pop("crop_pct", 1.0))
    if "resize_size" in fields:
        resize_size = _height_width(fields["resize_size"], "resize_size")
    cover = section["resize"] == "shortest" and resize_size[0] != resize_size[1]
    return {
        "crop": resize_size != image_size or section["resize"] != "squash",
        **fields,
        # A shape that is not square has no one shortest side. open_clip and timm do the same.
        "resize": "cover" if cover else section["resize"],
        "image_size": image_size,
        "resize_size": None if section["resize"] == "none" else resize_size,
        "mean": numbers(section["mean"], "mean", channels),
        "std": numbers(section["std"], "std", channels),
    }


def numbers(values: object, name: str, count: int, *, repeat: bool = True) -> tuple[float, ...]:
    """`count` finite numbers; one is repeated, and equal ones are one.

    Raises:
        ConflictingFact: They are something else.
    """
    found = tuple(values) if isinstance(values, Iterable) else (values,)
    if repeat and found and all(v == found[0] for v in found):
        found = found[:1] * count
    if len(found) != count or not all(map(_is_finite, found)):
        wanted = "a number" if count == 1 else f"{count} numbers"
        raise ConflictingFact(f"{name} = {values!r} should be {wanted}.")
    return tuple(map(float, found))


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # which JSON's whole numbers may be beyond


def _whole_numbers(
    values: object, name: str, count: int, *, repeat: bool = True
) -> tuple[int, ...]:
    found = numbers(values, name, count, repeat=repeat)
    if not all(v.is_integer() and v >= 1 for v in found):
        raise ConflictingFact(f"{name} = {values!r} should be whole numbers of pixels.")
    return tuple(map(int, found))


def pair(values: object, name: str) -> Size:
    """A (height, width) in pixels; a single number means both.

    Raises:
        ConflictingFact: It is something else.
    """
    height, width = _whole_numbers(values, name, 2)
    return height, width
