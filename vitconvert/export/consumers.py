"""Opening an output with the programs it is for, and comparing what they compute."""

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.containers import open_container
from vitconvert.errors import ParityFailed

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.model import ViT

TOLERANCE = 2e-5  # of max |logit|, float32 on a CPU


@dataclass(frozen=True, kw_only=True)
class Opened:
    """One program's verdict on an output."""

    consumer: str
    relative: float | None  # max |difference| over max |logit|; None: it was not tried
    bit_equal: bool = False
    why_not: str | None = None

    def raise_if_failed(self) -> None:
        """Raise ParityFailed if the program computes something else."""
        if self.relative is not None and not self.relative <= TOLERANCE:
            raise ParityFailed(
                f"{self.consumer} loads the output and computes something else.",
                evidence={"relative difference": f"{self.relative:.3g}", "tolerance": TOLERANCE},
                hint="Nothing was written. Please report this with the checkpoint's name.",
            )

    def summary(self) -> str:
        """The verdict in one line."""
        if self.relative is None:
            return f"{self.consumer}: not tried, {self.why_not}"
        equal = "bit-equal" if self.bit_equal else f"relative difference {self.relative:.1e}"
        return f"{self.consumer}: {equal}"

    def to_dict(self) -> dict[str, Any]:
        """For `vitconvert.json` and `--json`."""
        return asdict(self)


def open_with_consumers(directory: Path, ecosystem: str, model: "ViT") -> tuple[Opened, ...]:
    """Load the directory with timm and transformers, where its layout is theirs."""
    openers: dict[str, dict[str, Callable[[Path], Callable[[Tensor], Tensor]]]] = {
        "timm": {
            "timm": _timm_resnet_d if model.config.resnet_d_stem else _timm,
            "transformers": _transformers,
        },
        "hf": {"transformers": _transformers},
    }
    return tuple(
        _compare(consumer, opener, directory, model)
        for consumer, opener in openers.get(ecosystem, {}).items()
    )


def _compare(
    consumer: str,
    opener: "Callable[[Path], Callable[[Tensor], Tensor]]",
    directory: Path,
    model: "ViT",
) -> Opened:
    import torch

    from vitconvert.parity.isolation import isolated, silent_transformers

    if importlib.util.find_spec(consumer) is None:
        return Opened(consumer=consumer, relative=None, why_not="not installed")
    config, model = model.config, model.float()
    generator = torch.Generator().manual_seed(0)
    shape = (2, config.in_channels, *config.image_size)
    images = torch.randn(shape, generator=generator)
    with isolated(), silent_transformers():
        theirs = _open(consumer, opener, directory)(images).double()
        # Bare transformers models give tokens, or what their pooler makes of the first.
        ours = (model(images) if theirs.ndim == 2 else model.forward_features(images)).double()
    scale = ours.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    return Opened(
        consumer=consumer,
        relative=((ours - theirs).abs().max() / scale).item(),
        bit_equal=torch.equal(ours, theirs),
    )


def _open(
    consumer: str, opener: "Callable[[Path], Callable[[Tensor], Tensor]]", directory: Path
) -> "Callable[[Tensor], Tensor]":
    try:
        return opener(directory)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ParityFailed(
            f"{consumer} cannot load the output.",
            evidence={"problem": str(error).splitlines()[0]},
            hint="Nothing was written. Please report this with the checkpoint's name.",
        ) from error


def _timm(directory: Path) -> "Callable[[Tensor], Tensor]":
    import timm

    model: Callable[[Tensor], Tensor] = timm.create_model(
        f"local-dir:{directory}", pretrained=True
    ).eval()
    return model


def _timm_resnet_d(directory: Path) -> "Callable[[Tensor], Tensor]":
    """As `_timm`, but for ImageNet weights of the stem, which timm 1.0.31 would download first."""
    import timm

    model: Callable[[Tensor], Tensor] = timm.create_model(
        f"local-dir:{directory}", checkpoint_path=directory / "model.safetensors"
    ).eval()
    return model


def _transformers(directory: Path) -> "Callable[[Tensor], Tensor]":
    from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

    config = AutoConfig.from_pretrained(directory)
    classifies = any("ImageClassification" in name for name in config.architectures or ())
    timm_classifies = config.model_type == "timm_wrapper" and config.num_labels > 0
    if classifies or timm_classifies:
        model = AutoModelForImageClassification.from_pretrained(directory, dtype="float32").eval()
        return lambda images: model(images).logits
    bare = AutoModel.from_pretrained(directory, dtype="float32").eval()
    # A pooler that the weights lack would be made up at random by transformers.
    with open_container(directory / "model.safetensors") as container:
        has_pooler = any("pooler" in name for name in container.manifest)
    pooled = has_pooler or config.model_type == "timm_wrapper"
    output = "pooler_output" if pooled else "last_hidden_state"
    return lambda images: getattr(bare(images), output)
