"""The front door: every public name, each in the module of what it is about.

A checkpoint is located, read and described (`loading`), and becomes another one (`converting`) that
is compared with it (`proving`). The optional features are `inference`, `embedding` and `pictures`.
Each function imports what does the work when it is called, torch among it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vitconvert.api.auditing import audit_load
from vitconvert.api.converting import (
    build_lucidrains,
    convert,
    convert_state_dict,
    export_model,
    plan_conversion,
)
from vitconvert.api.loading import diff, draft_table, inspect, load_checkpoint, load_model
from vitconvert.api.proving import (
    check_golden,
    check_pixels,
    compare,
    record_golden,
    record_pixels,
    verify,
)
from vitconvert.checkpoint import Checkpoint, ReadArguments
from vitconvert.config import ViTConfig
from vitconvert.conversion.options import WriteArguments
from vitconvert.errors import VitConvertError
from vitconvert.facts.accounts import Ledger
from vitconvert.preprocessing import Preprocessing

if TYPE_CHECKING:
    from vitconvert.api.embedding import embed_dataset
    from vitconvert.api.inference import embed, predict
    from vitconvert.api.pictures import attention_maps, feature_maps
    from vitconvert.auditing.audit import LoadAudit
    from vitconvert.conversion.conversion_plan import ConversionPlan
    from vitconvert.conversion.convert import Conversion
    from vitconvert.conversion.push import Pushed
    from vitconvert.difference import Difference
    from vitconvert.drafting.draft import Draft
    from vitconvert.embedding.embedder import Embedder
    from vitconvert.embedding.options import RunArguments
    from vitconvert.inference.options import ComputeArguments, FeatureArguments
    from vitconvert.inspection import Inspection
    from vitconvert.model import ViT
    from vitconvert.model.attention_maps import attentions
    from vitconvert.model.pruning import prune_heads
    from vitconvert.parity.golden import Golden
    from vitconvert.parity.report import ParityReport
    from vitconvert.pictures.features import FeatureMaps
    from vitconvert.pictures.maps import AttentionMaps
    from vitconvert.pixel_goldens.check import PixelReport
    from vitconvert.pixel_goldens.golden import PixelGolden
    from vitconvert.runtimes.export import Exported

__all__ = [
    "AttentionMaps",
    "Checkpoint",
    "ComputeArguments",
    "Conversion",
    "ConversionPlan",
    "Difference",
    "Draft",
    "Embedder",
    "Exported",
    "FeatureArguments",
    "FeatureMaps",
    "Golden",
    "Inspection",
    "Ledger",
    "LoadAudit",
    "ParityReport",
    "PixelGolden",
    "PixelReport",
    "Preprocessing",
    "Pushed",
    "ReadArguments",
    "RunArguments",
    "ViT",
    "ViTConfig",
    "VitConvertError",
    "WriteArguments",
    "attention_maps",
    "attentions",
    "audit_load",
    "build_lucidrains",
    "check_golden",
    "check_pixels",
    "compare",
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
    "record_pixels",
    "verify",
]

# Classes of results, which nobody needs before a function has returned one; a ViT needs torch.
# Functions whose options are in an optional feature, which may be absent.
_LATE = {
    "AttentionMaps": "vitconvert.pictures.maps",
    "ComputeArguments": "vitconvert.inference.options",
    "Conversion": "vitconvert.conversion.convert",
    "ConversionPlan": "vitconvert.conversion.conversion_plan",
    "Difference": "vitconvert.difference",
    "Draft": "vitconvert.drafting.draft",
    "Embedder": "vitconvert.embedding.embedder",
    "FeatureArguments": "vitconvert.inference.options",
    "FeatureMaps": "vitconvert.pictures.features",
    "Exported": "vitconvert.runtimes.export",
    "Golden": "vitconvert.parity.golden",
    "Inspection": "vitconvert.inspection",
    "LoadAudit": "vitconvert.auditing.audit",
    "ParityReport": "vitconvert.parity.report",
    "PixelGolden": "vitconvert.pixel_goldens.golden",
    "PixelReport": "vitconvert.pixel_goldens.check",
    "Pushed": "vitconvert.conversion.push",
    "RunArguments": "vitconvert.embedding.options",
    "ViT": "vitconvert.model",
    "attention_maps": "vitconvert.api.pictures",
    "attentions": "vitconvert.model.attention_maps",
    "embed": "vitconvert.api.inference",
    "embed_dataset": "vitconvert.api.embedding",
    "feature_maps": "vitconvert.api.pictures",
    "predict": "vitconvert.api.inference",
    "prune_heads": "vitconvert.model.pruning",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
