"""Reads local files into a Checkpoint (header verified, tensors lazy), and builds its model.

The names below are imported when they are used: the command line's help needs `options` alone.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitconvert.checkpoint.checkpoint import Checkpoint
    from vitconvert.checkpoint.model import build_model
    from vitconvert.checkpoint.options import ReadArguments, ReadOptions
    from vitconvert.checkpoint.reading import read_checkpoint

__all__ = ["Checkpoint", "ReadArguments", "ReadOptions", "build_model", "read_checkpoint"]

_MODULE_OF = {
    "Checkpoint": "checkpoint",
    "ReadArguments": "options",
    "ReadOptions": "options",
    "build_model": "model",
    "read_checkpoint": "reading",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
