"""open_clip 3.3: a `preprocess_cfg`, read and written."""

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.preprocessing.backends import CLIP
from vitconvert.preprocessing.steps import Size, Steps, numbers, unit_mean_std

# transform.py: `shortest` is another arithmetic where the result is not square
_RESIZES = {"shortest": "cover", "squash": "squash", "longest": "border"}
_RESIZE_MODES = {"squash": "squash", "patches": "squash", "border": "longest"}


def from_preprocess_cfg(cfg: JsonObject, *, image_size: Size) -> JsonDict:
    """Fields of `Steps`, as `image_transform` reads the cfg; the encoder states the size."""
    mode = str(cfg.get("resize_mode") or "shortest")
    if mode not in _RESIZES:
        raise ConflictingFact(f"resize_mode = {mode!r} is not one of {', '.join(_RESIZES)}.")
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
        "resize": "shortest" if square else _RESIZES[mode],
        "resize_size": image_size,
        "crop": mode != "squash",
        "backend": "open_clip",
    }


def to_preprocess_cfg(steps: Steps) -> JsonDict:
    """The keys that say the same, or come near.

    Raises:
        NotRepresentable: Images are padded at the right and below.
    """
    if steps.pad:
        raise NotRepresentable(
            "open_clip pads images on all sides, not at the right and below.",
            evidence={"from": steps.origin},
        )
    mean, std = unit_mean_std(steps)
    square = steps.image_size[0] == steps.image_size[1]
    return {
        "size": steps.image_size[0] if square else list(steps.image_size),
        "mode": "RGB",
        "mean": list(mean),
        "std": list(std),
        "interpolation": "bilinear" if steps.interpolation == "bilinear" else "bicubic",
        "resize_mode": _RESIZE_MODES.get(steps.resize, "shortest"),
    }
