"""Projects of scripts whose files timm's own loader reads: timm computes what it makes of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import DescribedModel, Program, program_of
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from vitconvert.programs.reference import Reference


class TimmOriginals(Program):
    """A project of scripts with a reference."""

    packages = ("timm, by its checkpoint_filter_fn",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """timm's class for the function, with the tensors as its `checkpoint_filter_fn` has them.

        timm 1.0.31. The names that are compared are timm's reading of them, not vitconvert's.
        """
        from vitconvert.programs.reference import load_strictly, own_tensors, package
        from vitconvert.programs.timm.reference import timm_like

        timm = package("timm", install="timm")
        written = _described_to_timm(checkpoint)
        model = _built(timm, written)
        hybrid = "timm.models.vision_transformer_hybrid" if checkpoint.config.stem else ""
        loader = import_module(hybrid or type(model).__module__)
        tensors = loader.checkpoint_filter_fn(own_tensors(checkpoint), model)
        name = f"timm {timm.__version__} {type(model).__name__}, which reads the original's names"
        load_strictly(model, tensors, name)
        return timm_like(model.eval(), checkpoint.config, name)


def _built(timm: Any, written: dict[str, Any]) -> Any:
    """The model that timm makes of its `config.json`."""
    keys = ("num_classes", "global_pool")
    arguments = {key: written[key] for key in keys if key in written} | written["model_args"]
    try:
        return timm.create_model(written["architecture"], **arguments)
    except Exception as error:  # convolutions in front of a ViT have no argument for their width
        raise NotRepresentable(
            f"timm does not make {written['architecture']} in these sizes: {error}"
        ) from error


def _as_timm_has_it(config: ViTConfig) -> ViTConfig:
    """With biases that timm's loader sets to zero, and periods that timm computes."""
    heads = {"head_bias": True} if config.num_classes else {}
    patches = {} if config.pre_norm else {"patch_bias": True}
    return config.replace(**heads, **patches, rope_periods=False)


def _described_to_timm(checkpoint: Checkpoint) -> dict[str, Any]:
    """An architecture of timm's, and arguments with which it computes the function."""
    model = DescribedModel(config=_as_timm_has_it(checkpoint.config), name=checkpoint.located.name)
    refused = []
    # Its loader keeps biases of q and v apart where the original does: for Eva, not for a ViT.
    keyless = _keyless(checkpoint.table)
    for table in find_tables("timm"):
        if _keyless(table) != keyless:
            continue
        try:
            return dict(program_of(table).fit(table, model).their_config)
        except NotRepresentable as error:
            refused.append(f"{table.name}: {error.in_one_line()}")
    raise NotRepresentable("timm has no architecture that computes this.", details=refused)


def _keyless(table: Table) -> bool:
    """Whether its attention has no bias of keys."""
    row = table.row_of.get("blocks.{i}.attn.qkv.bias")
    return bool(row and row.leaves_out)


PROGRAM = TimmOriginals()
