"""vit-pytorch's ViT as it is released, changed where a configuration needs it."""

from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import fit_target
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import nn


def build_vit_pytorch(source: Checkpoint | ViTConfig) -> "nn.Module":
    """Build vit-pytorch's class, and load a checkpoint; see `vitconvert.build_lucidrains`."""
    from vitconvert.programs.reference import package
    from vitconvert.programs.vit_pytorch.reference import vit_pytorch_model, vit_pytorch_reference

    package("vit_pytorch", install="vit-pytorch")
    if isinstance(source, ViTConfig):
        _require_class(source)
        return vit_pytorch_model(source)[0].eval()
    if source.table.program != "vit_pytorch":
        raise UsageError(
            "This checkpoint is not spelled as vit-pytorch's are.",
            evidence={
                "source": source.located.reference,
                "dialect": f"{source.dialect} ({source.table.file})",
            },
            hint='convert it first: --to lucidrains (in Python, to="lucidrains").',
        )
    with source.weights.container:
        return vit_pytorch_reference(source).model


def _require_class(config: ViTConfig) -> None:
    current = (table for table in find_tables("lucidrains") if not table.install)
    refused = {table.name: _refusal(table, config) for table in current}
    if all(refused.values()):
        raise NotRepresentable(
            "vit-pytorch's class cannot compute this function, even changed.",
            details=[f"{name}: {why}" for name, why in refused.items()],
        )


def _refusal(table: Table, config: ViTConfig) -> str | None:
    try:
        fit_target(table, config)
    except NotRepresentable as error:
        return error.in_one_line()
    return None
