"""timm 1.0.31: the preprocessing in a `pretrained_cfg`, read and written."""

import math

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import ConflictingFact, NotRepresentable, size_text
from vitconvert.preprocessing.backends import IMAGENET
from vitconvert.preprocessing.steps import (
    LONGEST_SIDE,
    Size,
    Steps,
    numbers,
    positive,
    unit_mean_std,
    whole_numbers,
)

# data/config.py and data/constants.py: what a cfg means where it is silent
_CROP_PCT = 0.875
_SIZE = (3, 224, 224)


def from_pretrained_cfg(cfg: JsonObject) -> JsonDict:
    """Fields of `Steps`, as `resolve_data_config` and `create_transform` read the cfg."""
    channels, *size = whole_numbers(cfg.get("input_size") or _SIZE, "input_size", 3, repeat=False)
    image_size = (size[0], size[1])
    mode = cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash", "border"):
        raise ConflictingFact(f"crop_mode = {mode!r} is not one of center, squash, border.")
    if mode == "center":
        mode = "shortest" if size[0] == size[1] else "cover"
    return {
        "image_size": image_size,
        "mean": numbers(cfg.get("mean") or IMAGENET[0], "mean", channels),
        "std": numbers(cfg.get("std") or IMAGENET[1], "std", channels),
        "interpolation": cfg.get("interpolation") or "bicubic",
        "resize": mode,
        "resize_size": size_before_crop(image_size, cfg.get("crop_pct") or _CROP_PCT),
        "crop": True,
        "backend": "torchvision",
    }


def to_pretrained_cfg(steps: Steps) -> JsonDict:
    """The keys that say the same.

    Raises:
        NotRepresentable: timm has no such resizing.
    """
    mean, std = unit_mean_std(steps)
    center = "shortest" if steps.image_size[0] == steps.image_size[1] else "cover"
    modes = {center: "center", "cut": "center", "border": "border", "squash": "squash"}
    if steps.pad:
        raise NotRepresentable(
            "timm cannot pad images at the right and below.", evidence={"from": steps.origin}
        )
    mode, crop_pct = "squash", 1.0  # without a crop nothing is resized twice, nothing is cut off
    if steps.crop:
        size = steps.resize_size or steps.image_size
        fraction = _shortest_fraction(steps.image_size, size)
        if steps.resize not in modes or fraction is None:
            raise NotRepresentable(
                f"timm cannot express this resizing: {steps.resize} to {size_text(size)}, "
                f"then {size_text(steps.image_size)}.",
                evidence={"from": steps.origin},
            )
        mode, crop_pct = modes[steps.resize], fraction
    return {
        "input_size": [steps.channels, *steps.image_size],
        "interpolation": steps.interpolation,
        "crop_pct": crop_pct,
        "crop_mode": mode,
        "mean": list(mean),
        "std": list(std),
    }


def size_before_crop(image_size: Size, crop_pct: float) -> Size:
    """floor(size / crop_pct).

    Raises:
        ConflictingFact: `crop_pct` is not a positive number, or makes images without end.
    """
    fraction = positive(crop_pct, "crop_pct")
    if max(image_size) / fraction > LONGEST_SIDE:
        raise ConflictingFact(
            f"crop_pct = {crop_pct} makes images of {LONGEST_SIDE} and more pixels."
        )
    return math.floor(image_size[0] / fraction), math.floor(image_size[1] / fraction)


def resized_like(resize_size: Size, image_size: Size, wanted: Size) -> Size:
    """The size before cropping for images of another size; by a crop_pct, where there is one."""
    if crop_pct := _shortest_fraction(image_size, resize_size):
        return size_before_crop(wanted, crop_pct)
    height, width = (
        round(resized * after / before)
        for resized, before, after in zip(resize_size, image_size, wanted, strict=True)
    )
    return height, width


def _shortest_fraction(image_size: Size, resize_size: Size) -> float | None:
    """The crop_pct with the fewest digits from which timm computes `resize_size`."""
    # floor(image / crop_pct) = resize holds up to image / resize, the same for both sides.
    largest = min(image / resize for image, resize in zip(image_size, resize_size, strict=True))
    rounded_down = [math.floor(largest * 10.0**digits) / 10.0**digits for digits in range(1, 16)]
    for candidate in (*rounded_down, largest):
        if candidate > 0 and size_before_crop(image_size, candidate) == resize_size:
            return candidate
    return None
