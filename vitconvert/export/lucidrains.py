"""vit-pytorch's ViT as it is released, changed where a configuration needs it."""

from typing import TYPE_CHECKING

from vitconvert.checkpoint import Source, read_header
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import fit_target
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.export.targets import reason
from vitconvert.sources import locate
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import nn


def build_lucidrains(source: Source | ViTConfig) -> "nn.Module":
    """Build the installed vit-pytorch's ViT or SimpleViT for a checkpoint, and load it strictly.

    The class has no arguments for three things, which are exchanged in the module where the
    configuration says so: the two norms around the patch projection become `nn.Identity`, GELU
    another activation, and the epsilon of the norms another number. After vit-pytorch 1.26.

    Args:
        source: What `convert(..., to="lucidrains")` wrote, or any checkpoint of vit-pytorch. A
            configuration alone gives a module with random weights.

    Returns:
        A module of vit-pytorch, on the CPU and in eval mode; weights in half precision become
        float32.

    Raises:
        MissingPackage: vit-pytorch is not installed.
        NotRepresentable: Its class cannot compute this function, even changed.
        UsageError: The checkpoint is another project's.
        VitConvertError: One of the errors of `load_checkpoint`.

    Example:
        >>> model = build_lucidrains("out")               # doctest: +SKIP
        >>> logits = model(images)                        # doctest: +SKIP
    """
    from vitconvert.parity.references.lucidrains import lucidrains_reference, vit_pytorch_model
    from vitconvert.parity.references.reference import package

    package("vit_pytorch", install="vit-pytorch")
    if isinstance(source, ViTConfig):
        _require_class(source)
        return vit_pytorch_model(source)[0].eval()
    reading = read_header(locate(source))
    if reading.table.ecosystem != "lucidrains":
        raise UsageError(
            "This checkpoint is not spelled as vit-pytorch's are.",
            evidence={"source": source, "dialect": f"{reading.dialect} ({reading.table.file})"},
            hint='convert it first: --to lucidrains (in Python, to="lucidrains").',
        )
    with reading.container:
        return lucidrains_reference(reading).model


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
        return reason(error)
    return None
