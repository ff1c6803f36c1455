"""Changes of a model that are asked for and recorded: its head, channels, sizes and dtype."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitconvert.comparison import overflows
from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.errors import MissingFact, NotRepresentable, UsageError, size_text, some
from vitconvert.model import resampling
from vitconvert.tables.canonical import expected_shapes, first_kernel

Tensors = Mapping[str, Tensor]
Size = tuple[int, int]


def replace_head(
    tensors: Tensors, config: ViTConfig, num_classes: int
) -> tuple[Tensors, ViTConfig, str]:
    """Take the head off, or put one of zeros in its place, as Google fine-tunes (vit_jax).

    Returns:
        The tensors, the configuration and what was changed, in words.

    Raises:
        UsageError: A negative number of classes.
    """
    if num_classes < 0:
        raise UsageError("A head cannot have fewer than 0 classes.")
    wanted = config.replace(num_classes=num_classes)
    kept = {name: tensor for name, tensor in tensors.items() if not _of_head(name)}
    like = next(iter(tensors.values()))
    heads = {
        name: like.new_zeros(shape)
        for name, shape in expected_shapes(wanted).items()
        if _of_head(name)
    }
    before = f"the head of {config.num_classes} classes"
    change = f"replaced by one of {num_classes}, all zeros" if num_classes else "taken off"
    return {**kept, **heads}, wanted, f"{before} was {change}"


def select_classes(
    tensors: Tensors, config: ViTConfig, classes: Sequence[int]
) -> tuple[Tensors, ViTConfig, str]:
    """Keep some classes of the head, in this order; their logits stay what they are.

    Raises:
        UsageError: The head has no such class, or one is asked for twice.
    """
    if wrong := [index for index in classes if not 0 <= index < config.num_classes]:
        raise UsageError(
            f"The head has no class {wrong[0]}.",
            evidence={"classes": config.num_classes},
        )
    if len(set(classes)) < len(classes) or not classes:
        raise UsageError(
            "Classes to keep are named once each, and at least one is.",
            evidence={"asked": ", ".join(map(str, classes))},
            hint="leave out the second of two.",
        )
    heads = {n: tensor[list(classes)] for n, tensor in tensors.items() if _of_head(n)}
    change = f"{len(classes)} of {config.num_classes} classes were kept"
    return {**tensors, **heads}, config.replace(num_classes=len(classes)), change


def _of_head(name: str) -> bool:
    return name.startswith(("head.", "head_dist."))


def change_channels(
    tensors: Tensors, config: ViTConfig, channels: int
) -> tuple[Tensors, ViTConfig, str]:
    """Read images of another number of channels, as timm does it (`adapt_input_conv`, 1.0.31).

    To 1 channel, the weights of all channels are added up: a grey image gives what it gave when
    it was repeated in each. To any other number, the channels are repeated in turn, or the last
    left out, and scaled by the ratio of the numbers; from 1 to 3, which timm leaves alone,
    likewise.

    Raises:
        UsageError: No number of channels, or a norm reads each pixel of a patch.
    """
    if channels < 1:
        raise UsageError("Images have at least 1 channel.")
    if config.patch_pre_norm:
        raise UsageError("This model normalises pixels, so its channels cannot change.")
    name = first_kernel(config)
    kernel = tensors[name].float()
    if channels == 1:
        changed = kernel.sum(1, keepdim=True)
    else:
        repeats = -(-channels // config.in_channels)
        repeated = kernel.repeat(1, repeats, 1, 1)[:, :channels]
        changed = repeated * (config.in_channels / channels)
    change = f"input channels changed from {config.in_channels} to {channels}"
    wanted = config.replace(in_channels=channels)
    return {**tensors, name: changed.to(tensors[name].dtype)}, wanted, change


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
    patch = [side * wanted.stem_stride for side in wanted.patch_size]
    # Of patches with a stride, what is left over is left out, as AST's does of 1024 pixels.
    if not config.patch_stride and any(
        side % pixels for side, pixels in zip(wanted.image_size, patch, strict=True)
    ):
        raise UsageError(
            f"An image of {size_text(wanted.image_size)} does not divide into patches.",
            evidence={"a patch is": f"{patch[0]}x{patch[1]} pixels"},
            hint="choose an image size that is a multiple of the patch size.",
        )
    kernel, changed_kernel = _resized_kernel(tensors, config, wanted.patch_size)
    if doubt and config.learned_positions and config.grid_size != wanted.grid_size:
        raise MissingFact(
            "The rule by which the library resamples positions is unknown.",
            details=[f"position_resampling  {doubt}"],
            hint="--set position_resampling=... (in Python, overrides={...}) states it.",
        )
    resampled, changed_positions = _resampled_positions(tensors, config, wanted)
    changes = (*changed_kernel, *changed_positions)
    if not changes:  # fixed positions and rotations are computed anew
        changes = (f"image size {size_text(config.image_size)} to {size_text(wanted.image_size)}",)
    return {**tensors, **kernel, **resampled}, wanted, changes


def cast(tensors: Tensors, dtype: torch.dtype) -> tuple[Tensors, str]:
    """Change the dtype of every floating-point tensor.

    Raises:
        NotRepresentable: A number is finite, and would not be in this dtype.
    """
    floating = {t.dtype for t in tensors.values() if t.is_floating_point()}
    before = sorted(str(d).removeprefix("torch.") for d in floating)
    cast = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
    word = str(dtype).removeprefix("torch.")
    lost = [k for k, t in cast.items() if not t.is_meta and overflows(tensors[k], t)]
    if lost:
        most = max(float(tensors[k].nan_to_num(0, 0, 0).abs().max()) for k in lost)
        raise NotRepresentable(
            f"{word} cannot hold the numbers of {len(lost)} tensor{'s' if len(lost) > 1 else ''}.",
            evidence={
                "tensors": some(lost),
                "largest": f"{most:.3g}",
                "limit": f"{torch.finfo(dtype).max:g}",
            },
            hint="--dtype bfloat16, or float32, holds them.",
        )
    return cast, f"cast from {' and '.join(before)} to {word}"


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
