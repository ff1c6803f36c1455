"""What decides the function of a Vision Transformer, besides its weights."""

from vitconvert.config.vit_config import ViTConfig, field_names

__all__ = ["ViTConfig", "field_names"]
