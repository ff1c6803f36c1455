"""Changes that are not re-spellings: named, asked for and recorded."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError
from vitconvert.fields import parse_field
from vitconvert.model import positions

Tensors = Mapping[str, Tensor]
Size = tuple[int, int]


def resize(
    tensors: Tensors,
    config: ViTConfig,
    *,
    image_size: int | Size | None = None,
    patch_size: int | Size | None = None,
) -> tuple[Tensors, ViTConfig, tuple[str, ...]]:
    """Fit the model to images, patches or both of another size.

    Positions follow the rule of the project that the model comes from, the kernel of the patches
    timm's `resample_patch_embed` (see `resample_patch_kernel`).

    Returns:
        The tensors, the configuration and what was changed, in words.

    Raises:
        UsageError: The image would be no whole number of patches, or the patches of this model
            cannot be resized.
        ConflictingFact: The image would hold no patch.
    """
    asked = {"image_size": image_size, "patch_size": patch_size}
    sizes = {name: parse_field(name, size) for name, size in asked.items() if size is not None}
    wanted = config.replace(**sizes)
    if wanted == config:
        return tensors, config, ()
    _check_whole_patches(wanted)
    kernel, changed_kernel = _resized_kernel(tensors, config, wanted.patch_size)
    resampled, changed_positions = _resampled_positions(tensors, config, wanted)
    changes = (*changed_kernel, *changed_positions)
    if not changes:  # fixed positions and rotations are computed anew
        changes = (f"image size {_by(config.image_size)} to {_by(wanted.image_size)}",)
    return {**tensors, **kernel, **resampled}, wanted, changes


def cast(tensors: Tensors, dtype: torch.dtype) -> tuple[Tensors, str]:
    """Change the dtype of every floating-point tensor."""
    floating = {t.dtype for t in tensors.values() if t.is_floating_point()}
    before = sorted(str(d).removeprefix("torch.") for d in floating)
    cast = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
    return cast, f"cast from {' and '.join(before)} to {str(dtype).removeprefix('torch.')}"


def _check_whole_patches(config: ViTConfig) -> None:
    patch = [side * config.stem_stride for side in config.patch_size]
    if any(side % pixels for side, pixels in zip(config.image_size, patch, strict=True)):
        raise UsageError(
            f"An image of {_by(config.image_size)} is no whole number of patches.",
            evidence={"a patch is": f"{patch[0]}x{patch[1]} pixels"},
            hint="choose an image size of whole patches.",
        )


def _resized_kernel(
    tensors: Tensors, config: ViTConfig, patch_size: Size
) -> tuple[Tensors, tuple[str, ...]]:
    if patch_size == config.patch_size:
        return {}, ()
    obstacles = {
        "they are cut from a stem's feature map": config.stem,
        "their pixels are normed one by one": config.patch_pre_norm,
    }
    if found := [obstacle for obstacle, present in obstacles.items() if present]:
        raise UsageError(
            f"The patches of this model cannot be resized: {found[0]}.",
            evidence={"patches are": _by(config.patch_size), "asked": _by(patch_size)},
        )
    name = "patch_embed.proj.weight"
    kernel = positions.resample_patch_kernel(tensors[name], patch_size=patch_size)
    return {name: kernel}, (
        f"patches resized from {_by(config.patch_size)} to {_by(patch_size)} pixels",
    )


def _resampled_positions(
    tensors: Tensors, config: ViTConfig, wanted: ViTConfig
) -> tuple[Tensors, tuple[str, ...]]:
    grids = {"old_grid": config.grid_size, "new_grid": wanted.grid_size}
    rules = []
    resampled = {}
    if config.learned_positions:
        rules.append(config.position_resampling)
        resampled["pos_embed"] = positions.resample_positions(
            tensors["pos_embed"], **grids, prefix=config.num_prefix_positions, rule=rules[-1]
        )
    if config.relative_positions != "none":
        rules.append(config.relative_resampling)
        for name, table in tensors.items():
            if name.endswith("relative_position_bias_table"):
                resampled[name] = positions.resample_relative_positions(
                    table, **grids, rule=rules[-1]
                )
    if rules and config.grid_size != wanted.grid_size:
        moved = f"from {_by(config.grid_size)} to {_by(wanted.grid_size)} patches"
        return resampled, (f"positions resampled {moved} ({', '.join(rules)})",)
    return {}, ()


def _by(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
