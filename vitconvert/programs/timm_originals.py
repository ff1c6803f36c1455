"""Projects of scripts whose files timm's own loader reads: timm computes what it makes of them."""

from importlib import import_module

from vitconvert.checkpoint import Checkpoint
from vitconvert.documents import JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import DescribedModel, Program
from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package
from vitconvert.programs.timm import PROGRAM as TIMM
from vitconvert.programs.timm.reference import timm_like
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table


class TimmOriginals(Program):
    """A project of scripts with a reference."""

    packages = ("timm, by its checkpoint_filter_fn",)

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """timm's class for the function, with the tensors as its `checkpoint_filter_fn` has them.

        timm 1.0.31. The names that are compared are timm's reading of them, not vitconvert's.
        """
        timm = package("timm", install="timm")
        written = _described_to_timm(checkpoint)
        keys = ("num_classes", "global_pool")
        arguments = {key: written[key] for key in keys if key in written} | written["model_args"]
        try:
            model = timm.create_model(written["architecture"], **arguments)
        except Exception as error:
            # As for a stem, for whose width there is no argument.
            raise NotRepresentable(
                f"timm does not make {written['architecture']} in these sizes: {error}"
            ) from error
        hybrid = "timm.models.vision_transformer_hybrid" if checkpoint.config.stem else ""
        loader = import_module(hybrid or type(model).__module__)
        tensors = loader.checkpoint_filter_fn(own_tensors(checkpoint), model)
        name = f"timm {timm.__version__} {type(model).__name__}, which reads the original's names"
        load_strictly(model, tensors, name)
        return timm_like(model.eval(), checkpoint.config, name)


def _described_to_timm(checkpoint: Checkpoint) -> JsonObject:
    """An architecture of timm's, and arguments with which it computes the function."""
    config = checkpoint.config
    # timm's loader sets biases to zero that a file lacks, and timm computes periods.
    biases = {"head_bias": True} if config.num_classes else {}
    biases |= {} if config.pre_norm else {"patch_bias": True}
    theirs = config.replace(**biases, rope_periods=False)
    model = DescribedModel(config=theirs, name=checkpoint.located.name)
    refused = []
    # Its loader keeps biases of q and v apart where the original does: for Eva, not for a ViT.
    keyless = _keyless(checkpoint.table)
    for table in find_tables("timm"):
        if _keyless(table) != keyless:
            continue
        try:
            return TIMM.fit(table, model).their_config
        except NotRepresentable as error:
            refused.append(f"{table.name}: {error.in_one_line()}")
    raise NotRepresentable("timm has no architecture that computes this.", details=refused)


def _keyless(table: Table) -> bool:
    """Whether its attention has no bias of keys."""
    row = table.row_of.get("blocks.{i}.attn.qkv.bias")
    return bool(row and row.leaves_out)


PROGRAM = TimmOriginals()
