"""A model of images or patches of another size: its positions and its patch convolution."""

from collections.abc import Mapping

from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.errors import MissingFact, UsageError, size_text
from vitconvert.model import resampling

Tensors = Mapping[str, Tensor]
Size = tuple[int, int]


def resize(
    tensors: Tensors,
    config: ViTConfig,
    *,
    image_size: int | Size | None = None,
    patch_size: int | Size | None = None,
    doubt: str = "",
) -> tuple[Tensors, ViTConfig, tuple[str, ...]]:
    """Fit the model to images, patches or both of another size.

    Positions follow the rule of the project that the model comes from, the kernel of the patches
    timm's `resample_patch_embed` (see `resample_patch_kernel`). `doubt` says why that rule is not
    known.

    Returns:
        The tensors, the configuration and what was changed, in words.

    Raises:
        UsageError: The image would be no whole number of patches, or the patches of this model
            cannot be resized.
        ConflictingFact: The image would hold no patch.
        MissingFact: The rule is not known, and positions are of another grid.
    """
    asked = {"image_size": image_size, "patch_size": patch_size}
    sizes = {name: parse_field(name, size) for name, size in asked.items() if size is not None}
    wanted = config.replace(**sizes)
    if wanted == config:
        return tensors, config, ()
    if config.decomposed_positions and config.grid_positions:  # SAM's classes fit none themselves
        wanted = wanted.replace(position_grid=wanted.grid_size)
    require_whole_patches(wanted)
    kernel, changed_kernel = _resized_kernel(tensors, config, wanted.patch_size)
    if config.grid_size != wanted.grid_size:
        require_rule(config, doubt)
    resampled, changed_positions = _resampled_positions(tensors, config, wanted)
    changes = (*changed_kernel, *changed_positions)
    if not changes:  # fixed positions and rotations are computed anew
        changes = (f"image size {size_text(config.image_size)} to {size_text(wanted.image_size)}",)
    return {**tensors, **kernel, **resampled}, wanted, changes


def _resized_kernel(
    tensors: Tensors, config: ViTConfig, patch_size: Size
) -> tuple[Tensors, tuple[str, ...]]:
    if patch_size == config.patch_size:
        return {}, ()
    obstacles = {
        "they are cut from a stem's feature map": config.stem,
        "their pixels are normalised one by one": config.patch_pre_norm,
        "they have a stride of their own": config.patch_stride,
    }
    if found := [obstacle for obstacle, present in obstacles.items() if present]:
        raise UsageError(
            f"The patches of this model cannot be resized: {found[0]}.",
            evidence={"patches are": size_text(config.patch_size), "asked": size_text(patch_size)},
        )
    name = "patch_embed.proj.weight"
    kernel = resampling.resample_patch_kernel(tensors[name], patch_size=patch_size)
    return {name: kernel}, (
        f"patches resized from {size_text(config.patch_size)} to {size_text(patch_size)} pixels",
    )


def require_whole_patches(config: ViTConfig) -> None:
    """Refuse images that are no whole number of patches.

    Of patches with a stride, what is left over is left out, as AST's does of 1024 pixels.

    Raises:
        UsageError: Some pixels are in no patch.
    """
    patch = [side * config.stem_stride for side in config.patch_size]
    sides = zip(config.image_size, patch, strict=True)
    if not config.patch_stride and any(side % pixels for side, pixels in sides):
        raise UsageError(
            f"An image of {size_text(config.image_size)} does not divide into patches.",
            evidence={"a patch is": f"{patch[0]}x{patch[1]} pixels"},
            hint="choose an image size that is a multiple of the patch size.",
        )


def require_rule(config: ViTConfig, doubt: str) -> None:
    """Refuse to resample positions where `doubt` says why the library's rule is not known.

    Raises:
        MissingFact: There are positions to which the rule matters.
    """
    if doubt and config.learned_positions:
        raise MissingFact(
            "The rule by which the library resamples positions is unknown.",
            details=[f"position_resampling  {doubt}"],
            hint="--set position_resampling=... (in Python, overrides={...}) states it.",
        )


def _resampled_positions(
    tensors: Tensors, config: ViTConfig, wanted: ViTConfig
) -> tuple[Tensors, tuple[str, ...]]:
    """Positions of another grid, and by which rules they were fitted to it, in words."""
    rules: list[str] = []
    resampled: dict[str, Tensor] = {}
    if added := _resampled_added(tensors, config, wanted):
        rules.append(config.position_resampling)
        resampled |= added
    if config.decomposed_positions:
        rules.append("linear")
        for i in range(wanted.depth):
            for axis, side in zip("hw", wanted.attended_grid(i), strict=True):
                name = f"blocks.{i}.attn.rel_pos_{axis}"
                resampled[name] = resampling.resample_decomposed_positions(tensors[name], side=side)
    elif config.block_relative_positions or config.shared_relative_positions:
        rules.append(config.relative_resampling)
        for name, table in tensors.items():
            if name.endswith("relative_position_bias_table"):
                resampled[name] = resampling.resample_relative_positions(
                    table,
                    old_grid=config.grid_size,
                    new_grid=wanted.grid_size,
                    rule=config.relative_resampling,
                )
    if rules and config.grid_size != wanted.grid_size:
        moved = f"from {size_text(config.grid_size)} to {size_text(wanted.grid_size)} patches"
        return resampled, (f"positions resampled {moved} ({', '.join(rules)})",)
    return {}, ()


def _resampled_added(tensors: Tensors, config: ViTConfig, wanted: ViTConfig) -> dict[str, Tensor]:
    """Positions that are added to tokens."""
    rule = config.position_resampling
    if config.learned_positions:
        table = resampling.resample_positions(
            tensors["pos_embed"],
            old_grid=config.grid_size,
            new_grid=wanted.grid_size,
            prefix=config.num_prefix_positions,
            rule=rule,
        )
        return {"pos_embed": table}
    if wanted.position_grid == config.position_grid:
        return {}
    old_grid = (config.position_grid[0], config.position_grid[1])
    table = tensors["positions.table"].flatten(1, 2)
    fitted = resampling.resample_positions(
        table, old_grid=old_grid, new_grid=wanted.grid_size, prefix=0, rule=rule
    )
    return {"positions.table": fitted.reshape(1, *wanted.grid_size, -1)}
