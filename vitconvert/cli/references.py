"""What a user means by `vitconvert SOURCE MODEL`."""

from pathlib import Path
from typing import Any

from vitconvert.sources.references import looks_like_path

# Ecosystems whose models have names, and the prefix that `sources.locate` knows them by.
_NAMED = {
    "timm": "timm",
    "hf": "hf",
    "jax": "google",
    "torchvision": "torchvision",
    "dino": "dino",
}


def reference_for(source: str, model: str) -> str:
    """The reference of `sources.locate`: what exists on disk is a path before all else."""
    prefix = _NAMED.get(source)
    is_path = Path(model).exists() or looks_like_path(model)
    if prefix is None or is_path or ":" in model or (source == "timm" and "/" in model):
        return model
    return f"{prefix}:{model}"


def ecosystem_of(source: str) -> str | None:
    """The dialects that a source verb stands for; None recognises among all."""
    # Several projects stand behind each of these.
    return None if source in ("file", "jax", "openclip", "dino") else source


def locate_options(options: dict[str, Any]) -> dict[str, Any]:
    """The part of a verb's options that says how to get a checkpoint."""
    names = ("revision", "token", "cache_dir", "offline", "quiet")
    return {name: options[name] for name in names}
