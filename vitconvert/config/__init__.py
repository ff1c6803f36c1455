"""What decides the function of a Vision Transformer, besides its weights.

And that of a text encoder beside it, which tables describe in the same language.
"""

from typing import Any

from vitconvert.config.text_config import TextConfig
from vitconvert.config.vit_config import ViTConfig, field_names

Config = ViTConfig | TextConfig
Kind = Any  # one of these two classes; mypy takes a class for no key of a cache

__all__ = ["Config", "Kind", "TextConfig", "ViTConfig", "field_names"]
