"""Checks that images fit a model, before the arithmetic fails or is silently wrong."""

import torch
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import InputMismatch


def check_images(images: Tensor, config: ViTConfig, dtype: torch.dtype) -> None:
    """Raise InputMismatch unless images are (B, in_channels, *image_size) in the model's dtype."""
    if images.ndim != 4:
        raise _wrong_rank(images, config)
    if images.shape[1] != config.in_channels:
        raise _wrong_channels(images, config)
    if tuple(images.shape[2:]) != config.image_size:
        raise _wrong_size(images, config)
    autocast = torch.is_autocast_enabled(images.device.type)
    if images.dtype != dtype and not (autocast and images.is_floating_point()):
        raise _wrong_dtype(images, dtype)


def _wrong_rank(images: Tensor, config: ViTConfig) -> InputMismatch:
    return InputMismatch(
        f"Images have {images.ndim} dimensions, not 4.",
        evidence={"found": _shape(images), "wanted": _wanted(config)},
        hint="add a batch dimension: images[None]." if images.ndim == 3 else None,
    )


def _wrong_channels(images: Tensor, config: ViTConfig) -> InputMismatch:
    channels_last = images.shape[-1] == config.in_channels
    return InputMismatch(
        f"Images have {images.shape[1]} channels, but the model expects {config.in_channels}.",
        evidence={"found": _shape(images), "wanted": _wanted(config)},
        meaning="The channels seem to come last." if channels_last else None,
        hint="images.permute(0, 3, 1, 2) puts them first." if channels_last else None,
    )


def _wrong_size(images: Tensor, config: ViTConfig) -> InputMismatch:
    (height, width), wanted = images.shape[2:], config.image_size
    size = height if height == width else (height, width)
    flag = f"{height}" if height == width else f"{height}x{width}"
    return InputMismatch(
        f"Images are {height}x{width} pixels, but the model expects {wanted[0]}x{wanted[1]}.",
        evidence={"found": _shape(images), "wanted": _wanted(config)},
        hint=f"resize the images, or resample the positions on loading: "
        f"--image-size {flag}, load_model(image_size={size}).",
    )


def _wrong_dtype(images: Tensor, dtype: torch.dtype) -> InputMismatch:
    return InputMismatch(
        f"Images are {_name(images.dtype)}, but the model's weights are {_name(dtype)}.",
        evidence={"found": _name(images.dtype), "wanted": _name(dtype)},
        hint=f"convert the images with images.to(torch.{_name(dtype)})"
        + ("." if images.is_floating_point() else " and normalise them as the model expects."),
    )


def _shape(images: Tensor) -> str:
    return f"({', '.join(map(str, images.shape))})"


def _wanted(config: ViTConfig) -> str:
    return f"(B, {config.in_channels}, {config.image_size[0]}, {config.image_size[1]})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
