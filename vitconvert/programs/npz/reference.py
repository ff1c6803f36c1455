"""Google's and big_vision's .npz files, through timm's own loader of them."""

import math
from dataclasses import replace

import torch
from torch import nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.reference import Reference, own_tensors, package
from vitconvert.programs.timm.reference import put_back_pre_logits, timm_like, vision_transformer

_STEM = {"stem_style": "timm"}


def npz_reference(checkpoint: Checkpoint) -> Reference:
    """Build timm's class for the configuration and let it read the file by itself.

    timm 1.0.31, `VisionTransformer.load_pretrained`. It reads the published numbering of Google's
    files and big_vision's; it has no layer before the head, which is put back here.

    Raises:
        NotRepresentable: timm's loader does not read this file, or not all of it.
    """
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


def _read(checkpoint: Checkpoint, config: ViTConfig, name: str) -> nn.Module:
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


def _restore_pre_logits(model: nn.Module, checkpoint: Checkpoint, config: ViTConfig) -> None:
    """Kernels are (inputs, outputs) in Flax."""
    put_back_pre_logits(model, config)
    tensors = own_tensors(checkpoint)
    for name, layer in (("pre_logits", model.get_submodule("head.fc")), ("head", _head(model))):
        if isinstance(layer, nn.Linear):
            kernel = next(key for key in tensors if key.endswith(f"{name}/kernel"))
            layer.weight.copy_(tensors[kernel].T)
            layer.bias.copy_(tensors[kernel.removesuffix("kernel") + "bias"])


def _head(model: nn.Module) -> nn.Module:
    return model.get_submodule("head.head")


def _require_complete(model: nn.Module, name: str) -> None:
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
