"""Google's vision_transformer and big_vision: scripts, whose .npz files timm's loader reads."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import Program

if TYPE_CHECKING:
    from torch import nn

    from vitconvert.programs.reference import Reference

_STEM = {"stem_style": "timm"}


class Npz(Program):
    """Projects of scripts with a reference."""

    packages = ("timm",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """timm's class for the configuration, which reads the file by itself.

        timm 1.0.31, `VisionTransformer.load_pretrained`. It reads the published numbering of
        Google's files and big_vision's; it has no layer before the head, which is put back here.
        """
        from vitconvert.programs.reference import package
        from vitconvert.programs.timm.reference import timm_like

        timm = package("timm", install="timm")
        config = checkpoint.config
        if config.computed_positions:
            raise NotRepresentable("timm's .npz loader needs stored positions; this file has none.")
        name = f"timm {timm.__version__}'s .npz loader"
        model = _read(checkpoint, config, name)
        if config.representation_size:
            _restore_pre_logits(model, checkpoint, config)
        _require_complete(model, name)
        return replace(
            timm_like(model.eval(), config, name),
            notes=_notes(config),
            adapts=_STEM if config.stem else {},
        )


def _read(checkpoint: Checkpoint, config: ViTConfig, name: str) -> "nn.Module":
    from vitconvert.programs.timm.reference import vision_transformer

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
    return model


def _restore_pre_logits(model: "nn.Module", checkpoint: Checkpoint, config: ViTConfig) -> None:
    """Kernels are (inputs, outputs) in Flax."""
    from torch import nn

    from vitconvert.programs.reference import own_tensors
    from vitconvert.programs.timm.reference import put_back_pre_logits

    put_back_pre_logits(model, config)
    tensors = own_tensors(checkpoint)
    for name, place in (("pre_logits", "head.fc"), ("head", "head.head")):
        layer = model.get_submodule(place)
        if isinstance(layer, nn.Linear):
            kernel = next(key for key in tensors if key.endswith(f"{name}/kernel"))
            layer.weight.copy_(tensors[kernel].T)
            layer.bias.copy_(tensors[kernel.removesuffix("kernel") + "bias"])


def _require_complete(model: "nn.Module", name: str) -> None:
    import torch

    unset = [key for key, value in model.named_parameters() if torch.isnan(value).any()]
    if unset:
        raise NotRepresentable(f"{name} does not set {', '.join(unset)}.")


def _notes(config: ViTConfig) -> tuple[str, ...]:
    notes = []
    if config.representation_size:
        notes.append("timm has no layer before the head; the file's own arrays were put there")
    if config.stem:
        notes.append("the ResNet stem was compared in timm's arithmetic, which is not Google's")
    return tuple(notes)


PROGRAM = Npz()
