"""Opening an output with the programs it is for, and comparing what they compute."""

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.errors import ParityFailed

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.model import ViT

TOLERANCE = 2e-5  # of max |logit|, float32 on a CPU
# What timm and transformers raise for weights or arguments that they do not take.
_REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, AssertionError)


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
            "transformers": _timm_wrapper,
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
    except _REFUSALS as error:
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


def _timm_wrapper(directory: Path) -> "Callable[[Tensor], Tensor]":
    from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

    config = AutoConfig.from_pretrained(directory)
    model = _loaded(AutoModelForImageClassification if config.num_labels else AutoModel, directory)
    output = "logits" if config.num_labels else "pooler_output"
    return lambda images: getattr(model(images), output)


def _transformers(directory: Path) -> "Callable[[Tensor], Tensor]":
    import transformers

    from vitconvert.parity.references.huggingface import run

    config = transformers.AutoConfig.from_pretrained(directory)
    model = _loaded(getattr(transformers, config.architectures[0]), directory)
    return lambda images: run(model, images)


def _loaded(kind: Any, directory: Path) -> Any:
    """A model whose every weight is of the file; transformers would make up what it misses."""
    model, problems = kind.from_pretrained(directory, dtype="float32", output_loading_info=True)
    found = [
        f"{problem}: {', '.join(sorted(map(str, names)))}"
        for problem, names in problems.items()
        if names
    ]
    if found:
        raise ValueError("; ".join(found))
    return model.eval()
