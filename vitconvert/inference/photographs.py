"""A model and its preprocessing, ready for photographs, from a checkpoint or as they are given."""

import torch

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.images import needed_preprocessing
from vitconvert.errors import MissingFact
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing


def ready(
    model: ViT | Checkpoint,
    preprocessing: Preprocessing | None,
    *,
    num_classes: int | None = None,
    fast: bool,
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> tuple[ViT, Preprocessing]:
    """The model to run, and what makes its input.

    Args:
        model: A model is used as it is; a checkpoint is built with the arguments that follow.
        preprocessing: By default, the checkpoint's own; needed with a model.
        num_classes, fast, dtype, device: As for `build_model`.

    Raises:
        MissingFact: Nothing says how images are prepared.
        ConflictingFact: They have other channels than photographs.
    """
    if isinstance(model, ViT):
        return model, preprocessing or _needed()
    built = build_model(model, num_classes=num_classes, dtype=dtype, fast=fast, device=device)
    return built, preprocessing or needed_preprocessing(model)


def _needed() -> Preprocessing:
    raise MissingFact(
        "A model does not say how its images are prepared.",
        hint="preprocessing=load_checkpoint(...).preprocessing, or the checkpoint itself "
        "instead of the model.",
    )
