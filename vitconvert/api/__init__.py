"""The front door: every public name, in modules by what people come for.

A checkpoint is located and read (`loading`), becomes a model that answers for photographs
(`answering`, `seeing`), or another checkpoint (`converting`, `leaving`) that provably computes the
same function (`proving`); `examining` says what a file is before that. Each function opens the
checkpoint and passes it to the package that does the work; torch is imported by the first function
that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vitconvert.api.answering import embed, embed_dataset, predict
from vitconvert.api.converting import convert, convert_state_dict, plan_conversion
from vitconvert.api.examining import diff, draft_table, inspect
from vitconvert.api.leaving import build_lucidrains, export_model
from vitconvert.api.loading import load_checkpoint, load_model
from vitconvert.api.proving import record_golden, verify
from vitconvert.api.seeing import attention_maps, feature_maps
from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import VitConvertError
from vitconvert.facts.accounts import Ledger
from vitconvert.preprocessing import Preprocessing

if TYPE_CHECKING:
    from vitconvert.conversion.conversion_plan import ConversionPlan
    from vitconvert.conversion.convert import Conversion
    from vitconvert.conversion.runtime_file import Exported
    from vitconvert.difference import Difference
    from vitconvert.drafting.draft import Draft
    from vitconvert.embedding.embedder import Embedder
    from vitconvert.inspection import Inspection
    from vitconvert.model import ViT
    from vitconvert.model.attention_maps import attentions
    from vitconvert.model.pruning import prune_heads
    from vitconvert.parity.golden import Golden
    from vitconvert.parity.report import ParityReport
    from vitconvert.pictures.features import FeatureMaps
    from vitconvert.pictures.maps import AttentionMaps

__all__ = [
    "AttentionMaps",
    "Checkpoint",
    "Conversion",
    "ConversionPlan",
    "Difference",
    "Draft",
    "Embedder",
    "Exported",
    "FeatureMaps",
    "Golden",
    "Inspection",
    "Ledger",
    "ParityReport",
    "Preprocessing",
    "ViT",
    "ViTConfig",
    "VitConvertError",
    "attention_maps",
    "attentions",
    "build_lucidrains",
    "convert",
    "convert_state_dict",
    "diff",
    "draft_table",
    "embed",
    "embed_dataset",
    "export_model",
    "feature_maps",
    "inspect",
    "load_checkpoint",
    "load_model",
    "plan_conversion",
    "predict",
    "prune_heads",
    "record_golden",
    "verify",
]

# Classes of results, which nobody needs before a function has returned one; a ViT needs torch.
_LATE = {
    "AttentionMaps": "vitconvert.pictures.maps",
    "Conversion": "vitconvert.conversion.convert",
    "ConversionPlan": "vitconvert.conversion.conversion_plan",
    "Difference": "vitconvert.difference",
    "Draft": "vitconvert.drafting.draft",
    "Embedder": "vitconvert.embedding.embedder",
    "FeatureMaps": "vitconvert.pictures.features",
    "Exported": "vitconvert.conversion.runtime_file",
    "Golden": "vitconvert.parity.golden",
    "Inspection": "vitconvert.inspection",
    "ParityReport": "vitconvert.parity.report",
    "ViT": "vitconvert.model",
    "attentions": "vitconvert.model.attention_maps",
    "prune_heads": "vitconvert.model.pruning",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
