"""Pretrained Vision Transformers, usable anywhere, provably unchanged.

    >>> import vitconvert
    >>> model = vitconvert.load_model("ViT-B_16.npz")     # doctest: +SKIP
    >>> logits = model(images)                            # doctest: +SKIP

Importing this package imports neither torch nor timm; each name below does when it is first used.
"""

import importlib

from vitconvert.version import VERSION

__version__ = VERSION

# Type checkers know the name. Importing `typing` for it would take longer than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.config import ViTConfig
    from vitconvert.conversion.ledger import Ledger
    from vitconvert.difference import Difference, diff
    from vitconvert.errors import VitConvertError
    from vitconvert.export.convert import Conversion, convert, convert_state_dict
    from vitconvert.export.dry_run import ConversionPlan, plan_conversion
    from vitconvert.export.lucidrains import build_lucidrains
    from vitconvert.inspection import Inspection, inspect
    from vitconvert.loading import load_checkpoint, load_model
    from vitconvert.model import ViT
    from vitconvert.parity import ParityReport, verify
    from vitconvert.photographs import embed, predict
    from vitconvert.preprocessing import Preprocessing

_HOMES = {
    "Checkpoint": "checkpoint",
    "Conversion": "export.convert",
    "ConversionPlan": "export.dry_run",
    "Difference": "difference",
    "Inspection": "inspection",
    "Ledger": "conversion.ledger",
    "ParityReport": "parity",
    "Preprocessing": "preprocessing",
    "ViT": "model",
    "ViTConfig": "config",
    "VitConvertError": "errors",
    "build_lucidrains": "export.lucidrains",
    "convert": "export.convert",
    "convert_state_dict": "export.convert",
    "diff": "difference",
    "embed": "photographs",
    "inspect": "inspection",
    "load_checkpoint": "loading",
    "load_model": "loading",
    "plan_conversion": "export.dry_run",
    "predict": "photographs",
    "verify": "parity",
}

__all__ = [
    "Checkpoint",
    "Conversion",
    "ConversionPlan",
    "Difference",
    "Inspection",
    "Ledger",
    "ParityReport",
    "Preprocessing",
    "ViT",
    "ViTConfig",
    "VitConvertError",
    "build_lucidrains",
    "convert",
    "convert_state_dict",
    "diff",
    "embed",
    "inspect",
    "load_checkpoint",
    "load_model",
    "plan_conversion",
    "predict",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitconvert' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"vitconvert.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
