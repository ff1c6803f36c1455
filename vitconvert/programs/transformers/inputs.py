"""What transformers' towers read, some of which are for images of any shape, and give."""

from typing import Any

import torch
from torch import Tensor, nn


def image_inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What a class is called with for images."""
    kind = type(model).__name__
    if kind.startswith("Siglip2"):
        return _siglip2_inputs(model, images)
    if kind == "Gemma4VisionModel":
        return _gemma4_inputs(model, images)
    if kind.startswith("Qwen3"):
        return _qwen3_inputs(model, images)
    more = {}
    if "ViTMAE" in kind:
        # Masks nothing, but sorts the patches by this noise: keep them in order.
        embeddings: Any = model.embeddings
        patches = embeddings.patch_embeddings.num_patches
        more["noise"] = torch.arange(patches).expand(len(images), -1)
    return {"pixel_values": images, **more}


def _siglip2_inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What the processor of SigLIP 2 makes of images: flattened patches, (y x channel)."""
    config: Any = model.config
    side = getattr(config, "vision_config", config).patch_size
    B, C, height, width = images.shape
    rows, columns = height // side, width // side
    grid = images.reshape(B, C, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    patches = grid.reshape(B, rows * columns, side * side * C)
    return {
        "pixel_values": patches,
        "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.int64),
        "spatial_shapes": torch.tensor([[rows, columns]] * B),
    }


def _gemma4_inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What the processor of Gemma 4 makes of images: flattened patches, (channel y x), and (x, y).

    transformers 5.23, `image_processing_gemma4.py`.
    """
    config: Any = model.config
    side = config.patch_size
    B, C, height, width = images.shape
    rows, columns = height // side, width // side
    grid = images.reshape(B, C, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack((x, y), dim=-1).flatten(0, 1)
    return {
        "pixel_values": grid.reshape(B, rows * columns, C * side * side),
        "pixel_position_ids": places.expand(B, -1, -1),
    }


def _qwen3_inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What the processor of Qwen3-VL makes of images: patches, (channel frame y x), in squares.

    transformers 5.23, `image_processing_qwen2_vl.py`: squares of patches that are merged follow one
    another.
    """
    config: Any = model.config
    side, merged, frames = config.patch_size, config.spatial_merge_size, config.temporal_patch_size
    B, C, height, width = images.shape
    rows, columns = height // side, width // side
    grid = images.reshape(B, C, rows // merged, merged, side, columns // merged, merged, side)
    patches = grid.permute(0, 2, 5, 3, 6, 1, 4, 7).flatten(0, 4)[:, :, None]
    return {
        "hidden_states": patches.expand(-1, -1, frames, -1, -1).flatten(1),
        "grid_thw": torch.tensor([[1, rows, columns]] * B),
    }


def of_each_image(model: nn.Module, output: Tensor, images: Tensor) -> Tensor:
    """What a class gives; of these two, the tokens of all images come one after another."""
    joined = type(model).__name__.startswith(("Gemma4", "Qwen3"))
    return output.reshape(len(images), -1, output.shape[-1]) if joined else output
