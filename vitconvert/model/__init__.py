"""The from-scratch Vision Transformer; its parameter names are the canonical ones."""

from vitconvert.model.fast import FastViT
from vitconvert.model.vit import ViT

__all__ = ["FastViT", "ViT"]
