"""Google's vision_transformer and big_vision: scripts, whose .npz files timm's loader reads."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import Program
from vitconvert.programs.reference import Reference, own_tensors, package
from vitconvert.programs.timm.reference import put_back_pre_logits, timm_like, vision_transformer
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import nn


class Npz(Program):
    """Projects of scripts with a reference."""

    packages = ("timm",)

    def readers(self, table: Table, config: ViTConfig) -> tuple[str, ...]:
        """As timm's .npz loader: it needs stored positions (1.0.31), and filled the layer before
        the head until 0.5.4, which read Google's numbering alone.
        """
        if config.computed_positions:
            return ()
        if config.representation_size:
            return ("timm before 0.6",) if table.ecosystem == "jax" else ()
        return self.packages

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """timm's class for the configuration, which reads the file by itself.

        timm 1.0.31, `VisionTransformer.load_pretrained`. It reads the published numbering of
        Google's files and big_vision's; it has no layer before the head, which is put back here.
        """
        import torch

        timm = package("timm", install="timm")
        config, notes = checkpoint.config, []
        if config.computed_positions:
            raise NotRepresentable("timm's .npz loader needs stored positions; this file has none.")
        name = f"timm {timm.__version__}'s .npz loader"
        model = vision_transformer(
            config.replace(num_classes=0) if config.representation_size else config
        )
        for parameter in model.parameters():
            parameter.fill_(math.nan)  # whatever the loader does not set stays NaN
        try:
            model.load_pretrained(str(checkpoint.weights.container.path))  # type: ignore[operator]
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise NotRepresentable(
                f"{name} does not read this file.", evidence={"problem": error}
            ) from None
        if config.representation_size:
            _restore_pre_logits(model, checkpoint)
            notes.append("timm has no layer before the head; the file's own arrays were put there")
        unset = [key for key, value in model.named_parameters() if torch.isnan(value).any()]
        if unset:
            raise NotRepresentable(f"{name} does not set {', '.join(unset)}.")
        if config.stem:
            notes.append("the ResNet stem was compared in timm's arithmetic, which is not Google's")
        adapts = {"stem_style": "timm"} if config.stem else {}
        found = timm_like(model.eval(), config, name)
        return replace(found, notes=tuple(notes), adapts=adapts)


def _restore_pre_logits(model: "nn.Module", checkpoint: Checkpoint) -> None:
    """Kernels are (inputs, outputs) in Flax."""
    from torch import nn

    put_back_pre_logits(model, checkpoint.config)
    tensors = own_tensors(checkpoint)
    for name, place in (("pre_logits", "head.fc"), ("head", "head.head")):
        layer = model.get_submodule(place)
        if isinstance(layer, nn.Linear):
            kernel = next(key for key in tensors if key.endswith(f"{name}/kernel"))
            layer.weight.copy_(tensors[kernel].T)
            layer.bias.copy_(tensors[kernel.removesuffix("kernel") + "bias"])


PROGRAM = Npz()
