"""Changes that are not re-spellings: named, asked for and recorded."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError
from vitconvert.model import positions

Tensors = Mapping[str, Tensor]


def resample_positions(
    tensors: Tensors, config: ViTConfig, image_size: tuple[int, int]
) -> tuple[Tensors, ViTConfig, str]:
    """Fit the model to another image size by the rule of the project it comes from.

    Returns:
        The tensors, the configuration and what was changed, in words.

    Raises:
        UsageError: The image would hold no patch.
    """
    wanted = config.replace(image_size=image_size)
    if any(side % patch for side, patch in zip(image_size, _pixels(config), strict=True)):
        down, across = _pixels(config)
        raise UsageError(
            f"An image of {image_size[0]}x{image_size[1]} is no whole number of patches.",
            evidence={"a patch is": f"{down}x{across} pixels"},
            hint="Choose multiples of the patch.",
        )
    change = (
        f"positions resampled from {_by(config.grid_size)} to {_by(wanted.grid_size)} patches "
        f"({config.position_resampling})"
    )
    grids = {"old_grid": config.grid_size, "new_grid": wanted.grid_size}
    resampled = {
        name: positions.resample_relative_positions(tensor, **grids)
        for name, tensor in tensors.items()
        if name.endswith("relative_position_bias_table")
    }
    if config.learned_positions:
        resampled["pos_embed"] = positions.resample_positions(
            tensors["pos_embed"],
            **grids,
            prefix=config.num_prefix_positions,
            rule=config.position_resampling,
        )
    if not resampled:
        change = f"image size {_by(config.image_size)} to {_by(image_size)}"
    return {**tensors, **resampled}, wanted, change


def cast(tensors: Tensors, dtype: torch.dtype) -> tuple[Tensors, str]:
    """Change the dtype of every floating-point tensor."""
    floating = {t.dtype for t in tensors.values() if t.is_floating_point()}
    before = sorted(str(d).removeprefix("torch.") for d in floating)
    cast = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
    return cast, f"cast from {' and '.join(before)} to {str(dtype).removeprefix('torch.')}"


def _pixels(config: ViTConfig) -> tuple[int, int]:
    """Pixels that a patch covers, down and across."""
    return config.patch_size[0] * config.stem_stride, config.patch_size[1] * config.stem_stride


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
