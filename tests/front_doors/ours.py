"""vitconvert's own front doors: `predict`, `embed` and `load_model`, held to each other."""

from pathlib import Path
from typing import Any

import torch

import vitconvert
from tests.front_doors.judge import EQUAL, Asked
from tests.small_models import randomise_calmly


def classes(model: Path, **reading: Any) -> Asked:
    """Logits, as `predict` has them; `load_model` of the prepared image gives the same."""
    checkpoint = vitconvert.load_checkpoint(model, **reading)
    built = vitconvert.load_model(checkpoint)

    def ask(image: Path) -> torch.Tensor:
        (found,) = vitconvert.predict(checkpoint, image, topk=checkpoint.config.num_classes)
        if found.error:
            raise found.error
        logits = torch.tensor([each.logit for each in sorted(found.top, key=lambda c: c.index)])
        _require_near(built(checkpoint.preprocessing(image)[None])[0], logits)
        return logits

    return ask


def features(model: Path, which: dict[str, Any] | None = None, **reading: Any) -> Asked:
    """Features, as `embed` has them, of `which` kind."""
    checkpoint = vitconvert.load_checkpoint(model, **reading)

    def ask(image: Path) -> torch.Tensor:
        (found,) = vitconvert.embed(checkpoint, image, **which or {})
        if found.error:
            raise found.error
        assert found.features is not None
        return found.features

    return ask


def _require_near(one: torch.Tensor, other: torch.Tensor) -> None:
    if (one - other).abs().max() > EQUAL * other.abs().max():
        raise AssertionError("load_model and predict differ")


def sharp(model: torch.nn.Module) -> torch.nn.Module:
    """A random model whose answers depend much on the image, and little on biases and positions."""
    randomise_calmly(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 4 and parameter.shape[-1] > 1 and "pos" not in name:
                parameter.mul_(5)
            elif name.endswith("bias"):
                parameter.sub_(0.4)
    return model
