"""Writes what a project's own file says about preprocessing: `processor_config` the other way."""

import math
from typing import TYPE_CHECKING, Any

from vitconvert.errors import NotRepresentable
from vitconvert.inference.backends import Size
from vitconvert.inference.processor_config import resample_code, scaled_size

if TYPE_CHECKING:
    from vitconvert.inference.preprocessing import Preprocessing


def pretrained_cfg(p: "Preprocessing") -> dict[str, Any]:
    """The keys of timm's."""
    mean, std = _mean_std_of_one(p)
    mode, crop_pct = _timm_crop(p)
    return {
        "input_size": [p.channels, *p.image_size],
        "interpolation": p.interpolation,
        "crop_pct": crop_pct,
        "crop_mode": mode,
        "mean": list(mean),
        "std": list(std),
    }


def _mean_std_of_one(p: "Preprocessing") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """On the scale from 0 to 1."""
    if p.rescale_factor == 1 / 255:
        return p.mean, p.std
    factor = 255 * (p.rescale_factor or 1)
    return tuple(v / factor for v in p.mean), tuple(v / factor for v in p.std)


def _timm_crop(p: "Preprocessing") -> tuple[str, float]:
    center = "shortest" if p.image_size[0] == p.image_size[1] else "cover"
    modes = {center: "center", "border": "border", "squash": "squash"}
    if not p.crop:
        return "squash", 1.0  # nothing is resized twice, and nothing is cut off
    size = p.resize_size or p.image_size
    crop_pct = _shortest_fraction(p.image_size, size)
    if p.resize not in modes or crop_pct is None:
        raise NotRepresentable(
            f"timm cannot state this resizing: {p.resize} to {size[0]}x{size[1]}, "
            f"then {p.image_size[0]}x{p.image_size[1]}.",
            evidence={"from": p.origin},
        )
    return modes[p.resize], crop_pct


def rescaled(resize_size: Size, image_size: Size, wanted: Size) -> Size:
    """The size before cropping for images of another size: timm's, where a crop_pct tells it."""
    if crop_pct := _shortest_fraction(image_size, resize_size):
        return scaled_size(wanted, crop_pct)
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
        if candidate > 0 and scaled_size(image_size, candidate) == resize_size:
            return candidate
    return None


def preprocessor_config(p: "Preprocessing") -> dict[str, Any]:
    """The keys of transformers' `preprocessor_config.json`."""
    if p.resize in ("cover", "border") or p.interpolation in ("box", "hamming"):
        raise NotRepresentable(
            f"transformers cannot state this resizing: {p.resize} with {p.interpolation}.",
            evidence={"from": p.origin},
        )
    foreign = not p.backend.startswith("transformers")
    config: dict[str, Any] = {
        "image_processor_type": _huggingface_type(p),
        "do_resize": p.resize != "none",
        "resample": resample_code(p.interpolation),
        "do_center_crop": p.cuts,
        "do_rescale": p.rescale_factor is not None,
        "do_normalize": p.normalize,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
        # The others open any image as RGB; a processor left alone refuses grey ones.
        "do_convert_rgb": p.transparency == "white" or (foreign and p.channels == 3),
    }
    if p.resize_size is not None:
        config["size"] = (
            {"shortest_edge": p.resize_size[0]}
            if p.resize == "shortest"
            else _height_width(p.resize_size)
        )
    if p.cuts:
        config["crop_size"] = _height_width(p.image_size)
    if p.rescale_factor is not None:
        config["rescale_factor"] = p.rescale_factor
    if p.resize == "patches":
        config |= {"patch_size": p.patch_size, "max_num_patches": p.max_patches}
    return config


def _huggingface_type(p: "Preprocessing") -> str:
    if p.backend == "transformers_float":
        return "DINOv3ViTImageProcessor"
    if p.resize == "patches":
        return "Siglip2ImageProcessor"
    if p.resize == "shortest":
        return "BitImageProcessor"
    return "DeiTImageProcessor" if p.cuts else "ViTImageProcessor"


def _height_width(size: Size) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}


def preprocess_cfg(p: "Preprocessing") -> dict[str, Any]:
    """The keys of open_clip's."""
    mean, std = _mean_std_of_one(p)
    modes = {"squash": "squash", "patches": "squash", "border": "longest"}
    square = p.image_size[0] == p.image_size[1]
    return {
        "size": p.image_size[0] if square else list(p.image_size),
        "mode": "RGB",
        "mean": list(mean),
        "std": list(std),
        "interpolation": "bilinear" if p.interpolation == "bilinear" else "bicubic",
        "resize_mode": modes.get(p.resize, "shortest"),
    }
