"""Which class of vit-pytorch a configuration is of, and how it is built."""

from typing import Any

from vitconvert.config import ViTConfig

EPS = 1e-5  # torch.nn.LayerNorm's default, which the package never changes


def class_and_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The name of the class for a configuration, and its arguments."""
    arguments: dict[str, Any] = {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "dim": config.embed_dim,
        "depth": config.depth,
        "heads": config.num_heads,
        "dim_head": config.head_dim,
        "mlp_dim": config.mlp_dim,
        "channels": config.in_channels,
    }
    if config.computed_positions:
        return "SimpleViT", arguments
    return "ViT", arguments | {"pool": "cls" if config.class_token else "mean"}
