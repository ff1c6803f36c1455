"""The from-scratch Vision Transformer; its parameter names are the canonical ones."""

from vitconvert.model.vit import ViT

__all__ = ["ViT"]
