"""Small models of odd sizes that hide nothing: every number is random."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitconvert.config import ViTConfig

# Arguments of timm.create_model.
SMALL_TIMM: dict[str, Any] = {
    "depth": 2,
    "embed_dim": 30,
    "num_heads": 3,
    "mlp_ratio": 1.5,
    "num_classes": 7,
}
_SMALL: dict[str, Any] = {
    "image_size": (32, 24),
    "patch_size": (8, 8),
    "in_channels": 3,
    "num_classes": 7,
    "embed_dim": 30,
    "depth": 3,
    "num_heads": 3,
    "head_dim": 10,
    "mlp_dim": 50,
    "activation": "gelu",
    "norm_eps": 1e-6,
    "pooling": "token",
}


def small_config(**changes: Any) -> ViTConfig:
    """A plain ViT: 4 patches down, 3 across, 3 heads of 10."""
    return ViTConfig(**(_SMALL | changes))


def tiny_config(**changes: Any) -> ViTConfig:
    """A plain ViT of the smallest sizes, for tests of many models: 3 patches down, 2 across."""
    tiny = {"image_size": (12, 8), "patch_size": (4, 4), "num_classes": 5, "depth": 2}
    tiny |= {"embed_dim": 12, "head_dim": 4, "mlp_dim": 9}
    return small_config(**(tiny | changes))


def small_timm(name: str = "VisionTransformer", **arguments: Any) -> nn.Module:
    """A class of timm in the sizes of `small_config`."""
    import timm

    sizes = {"img_size": (32, 24), "patch_size": 8, "num_classes": 7}
    sizes |= {"embed_dim": 30, "depth": 3, "num_heads": 3, "mlp_ratio": 50 / 30}
    return getattr(timm.models, name)(**(sizes | arguments))


def randomise(model: nn.Module) -> nn.Module:
    """Fill parameters with noise around 0, around 1 where they are factors; returns the model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            factor = parameter.ndim == 1 and name.endswith(("weight", "gamma", "lambda1"))
            parameter.normal_(std=0.2).add_(1.0 if factor else 0.05)
        _randomise_statistics(model)
    return model.eval()


def randomise_calmly(model: nn.Module) -> nn.Module:
    """Likewise, with each vector around 0.5: signals stay small in deep models."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2).add_(0.5 if parameter.ndim == 1 else 0.05)
        _randomise_statistics(model)
    return model.eval()


def _randomise_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2.0)
            module.num_batches_tracked.fill_(9)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest output."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())


def assert_same_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """The same names, types, shapes and bytes."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def save_openclip(model: nn.Module, config: Mapping[str, Any], folder: Path) -> Path:
    """As `open_clip.push_to_hf_hub.save_for_hf` writes a directory."""
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    text = json.dumps({"model_cfg": config, "preprocess_cfg": {}})
    (folder / "open_clip_config.json").write_text(text)
    return folder


def with_numbers(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of OpenAI's CLIP: three numbers lie beside the weights."""
    numbers = {"input_resolution": 24, "context_length": 7, "vocab_size": 40}
    return model.state_dict() | {name: torch.tensor(n) for name, n in numbers.items()}
