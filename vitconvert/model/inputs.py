"""Checks that images, blocks and head masks fit a model, before numbers are silently wrong.

torch.fx keeps functions that look at shapes, dtypes or at whether there is a mask as one call each:
who calls one says so by `torch.fx.wrap`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import InputMismatch, UsageError

# For each block, a factor for each head, or None.
HeadMask = Tensor | Sequence[Tensor | None] | None


def checked_images(
    images: Tensor,
    in_channels: int,
    image_size: tuple[int, int] | None,
    weight: Tensor,
) -> Tensor:
    """The images; InputMismatch unless they are (B, in_channels, *image_size), as the weight is.

    `image_size` is None where height and width are free.
    """
    sides = image_size or ("height", "width")
    wanted = f"(B, {in_channels}, {sides[0]}, {sides[1]})"
    if images.ndim != 4:
        raise _wrong_rank(images, wanted)
    if images.shape[1] != in_channels:
        raise _wrong_channels(images, in_channels, wanted)
    if image_size is not None and tuple(images.shape[2:]) != tuple(image_size):
        raise _wrong_size(images, image_size, wanted)
    if images.dtype != weight.dtype and not _is_cast(images):
        raise _wrong_dtype(images, weight.dtype)
    return images


def checked_clips(clips: Tensor, shape: tuple[int, ...], weight: Tensor) -> Tensor:
    """The clips; InputMismatch unless they are (B, *shape): channels, frames, height and width."""
    wanted = f"(B, {', '.join(map(str, shape))})"
    if tuple(clips.shape[1:]) != tuple(shape):
        raise _wrong_clips(clips, shape, wanted)
    if clips.dtype != weight.dtype and not _is_cast(clips):
        raise _wrong_dtype(clips, weight.dtype)
    return clips


def _is_cast(images: Tensor) -> bool:
    """Whether autocast makes images of another dtype fit; devices such as "meta" have none."""
    device = images.device.type
    available = torch.amp.is_autocast_available(device)
    return available and torch.is_autocast_enabled(device) and images.is_floating_point()


def chosen_layers(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """Numbers of blocks, from 0: all, the last `indices`, or those listed (negative: from the end).

    Raises:
        UsageError: The model has no such blocks.
    """
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int):
        if not 0 < indices <= depth:
            raise UsageError(
                f"The last {indices} blocks were asked for, but the model has {depth}."
            )
        return list(range(depth - indices, depth))
    absent = [index for index in indices if not -depth <= index < depth]
    if absent or not indices:
        raise UsageError(
            "The model does not have all of these blocks.",
            evidence={"asked": list(indices), "blocks": f"0 to {depth - 1}"},
        )
    return sorted({index % depth for index in indices})


def head_masks(masks: HeadMask, num_heads: Sequence[int]) -> list[Tensor | None]:
    """One mask, or None, for each block.

    Raises:
        UsageError: There is not one mask for each block, or not one factor for each head.
    """
    if masks is None:
        return [None] * len(num_heads)
    found = [None if mask is None else tuple(mask.shape) for mask in masks]
    wanted = [(heads,) for heads in num_heads]
    fits = len(found) == len(wanted) and all(
        shape in (None, heads) for shape, heads in zip(found, wanted, strict=True)
    )
    if not fits:
        raise UsageError(
            "head_mask does not have one factor for each head of each block.",
            evidence={"found": found, "wanted": wanted},
        )
    return list(masks)


def attention_mask(
    mask: Tensor | None,
    is_causal: bool,
    config: ViTConfig,
    grid: tuple[int, int],
    device: torch.device,
) -> Tensor | None:
    """What each token may attend to, as `F.scaled_dot_product_attention` takes it.

    Args:
        mask: Broadcast to (B, H, N, N): False, or -inf, for what is not attended to.
        is_causal: Tokens attend to none after them, and `mask` is None.
        config: Of the model.
        grid: Patches down and across.
        device: Where the images are.

    Raises:
        UsageError: Both are given, or attention is within windows.
    """
    if mask is None and not is_causal:
        return None
    if mask is not None and is_causal:
        raise UsageError("attn_mask and is_causal exclude each other.")
    if config.windowed or config.window_count or config.decomposed_positions:
        raise UsageError("Attention within windows takes no attn_mask and is not causal.")
    if mask is not None:
        return mask
    tokens = config.num_prefix_tokens + config.time_steps * grid[0] * grid[1]
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


def branch_masks(mask: Tensor | None, branches: int) -> Sequence[Tensor | None]:
    """The part of a block's mask for each of its attentions."""
    return [None] * branches if mask is None else mask.chunk(branches)


def masked(heads: Tensor, mask: Tensor | None) -> Tensor:
    """The outputs of heads, (B, H, N, K), times the factor of each, if there is a mask."""
    return heads if mask is None else heads * mask.to(heads).view(-1, 1, 1)


def _wrong_rank(images: Tensor, wanted: str) -> InputMismatch:
    return InputMismatch(
        f"Images have {images.ndim} dimensions, not 4.",
        evidence={"found": _shape(images), "wanted": wanted},
        hint="add a batch dimension: images[None]." if images.ndim == 3 else None,
    )


def _wrong_clips(clips: Tensor, shape: tuple[int, ...], wanted: str) -> InputMismatch:
    channels, frames, *size = shape
    found, hint = tuple(clips.shape), None
    if found[1:] == (frames, channels, *size):
        hint = "the frames come before the channels, as in transformers: clips.transpose(1, 2)."
    elif found == shape:
        hint = "add a batch dimension: clips[None]."
    elif found[1:] == (channels, *size):
        hint = "this model reads clips, not images: torch.stack(frames, 2) makes one of its frames."
    return InputMismatch(
        f"Clips are {_shape(clips)}, but the model expects {wanted}.",
        evidence={"found": _shape(clips), "wanted": f"{wanted}: channels, frames, height, width"},
        hint=hint,
    )


def _wrong_channels(images: Tensor, in_channels: int, wanted: str) -> InputMismatch:
    channels_last = images.shape[-1] == in_channels
    return InputMismatch(
        f"Images have {images.shape[1]} channels, but the model expects {in_channels}.",
        evidence={"found": _shape(images), "wanted": wanted},
        meaning="The channels seem to come last." if channels_last else None,
        hint="images.permute(0, 3, 1, 2) puts them first." if channels_last else None,
    )


def _wrong_size(images: Tensor, image_size: tuple[int, int], wanted: str) -> InputMismatch:
    height, width = images.shape[2:]
    rows, columns = image_size
    size = height if height == width else (height, width)
    flag = f"{height}" if height == width else f"{height}x{width}"
    return InputMismatch(
        f"Images are {height}x{width} pixels, but the model expects {rows}x{columns}.",
        evidence={"found": _shape(images), "wanted": wanted},
        hint=f"resize the images, or resample the positions on loading: "
        f"--image-size {flag}, load_model(image_size={size}).",
    )


def whole_patches(images: Tensor, config: ViTConfig) -> None:
    """Refuse images of a free size that are no whole number of patches.

    Patches with a stride of their own leave out what is over, in every library.

    Raises:
        InputMismatch: The library of the model takes no such images either.
    """
    patch = [side * config.stem_stride for side in config.patch_size]
    height, width = images.shape[2:]
    if config.patch_stride or (height % patch[0] == 0 and width % patch[1] == 0):
        return
    raise InputMismatch(
        f"Images of {height}x{width} pixels do not divide into patches.",
        evidence={"found": _shape(images), "a patch is": f"{patch[0]}x{patch[1]} pixels"},
        hint="resize, crop or pad the images to a multiple of the patch.",
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
