"""Golden outputs: what a proved model gives for images that anybody can draw again.

They are recorded once, where the model's own project is installed. Whoever has them can compare
other implementations of the same model, and needs neither that project nor a network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.comparison import TOLERANCE, fingerprint
from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError
from vitconvert.model import ViT
from vitconvert.parity.implementations import (
    FEATURES,
    TOKENS,
    Implementation,
    Run,
    of_vit,
)
from vitconvert.parity.sketch import sketch
from vitconvert.parity.verification import check_arguments, verify_checkpoint
from vitconvert.preprocessing.sample_images import edge_images, normalisation, sample_images
from vitconvert.programs.isolation import isolated
from vitconvert.programs.taps import BRANCH, OUTPUT, Tap, Taps, canonical_taps
from vitconvert.sources.references import published
from vitconvert.version import VERSION

MOST_NUMBERS = 2**24  # of a batch of images; there are seven batches
# FFTs of two machines may round differently in the last bit. Rounded to so many, images are equal
# on both, and float32 holds them exactly.
_STEPS = 2**10

_OUTPUTS = {OUTPUT: OUTPUT, TOKENS: "norm", FEATURES: "features"}
"""What is an output of the ViT, and the layer that it is."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Images, said in so few words that they can be drawn again.

    Attributes:
        seed, batch: As for `vitconvert.verify`.
        size: Height and width.
        channels: Of each image.
        mean, std: Of the photograph, one value or one for each channel; (): as `sample_images` has
            them.
    """

    seed: int
    batch: int
    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def images(self) -> Mapping[str, Tensor]:
        """Batches (B, C, H, W) in float64, by kind."""
        usual: dict[str, Any] = {"mean": self.mean, "std": self.std} if self.mean else {}
        sizes: dict[str, Any] = {"size": self.size, "channels": self.channels}
        drawn = {
            **sample_images(**sizes, batch=self.batch, seed=self.seed, **usual),
            **edge_images(**sizes, batch=self.batch, seed=self.seed),
        }
        rounded = {kind: np.round(array * _STEPS) / _STEPS for kind, array in drawn.items()}
        return {kind: torch.from_numpy(array) for kind, array in rounded.items()}


@dataclass(frozen=True, kw_only=True)
class Golden:
    """What a model gave for images, in float64.

    Attributes:
        source: The checkpoint, without the places of the machine where it lay.
        verdict: "equal" to its own project's model when it was recorded, or "not verified".
        reference: That project's model, with its version; or why there was none.
        config: Of the model.
        weights: `fingerprint` of its weights under canonical names.
        drawn: The images.
        images: `fingerprint` of the images.
        not_tested: What the comparison with that project could not see.
        versions: Of vitconvert, torch and NumPy, which computed it.
        shapes: Of the layers of which digests are kept, without the batch.
        kept: Kind of images -> layer -> digests (B, 32), or the layer itself (B, C).
        name: The file's.
    """

    source: str
    verdict: str
    reference: str
    config: ViTConfig
    weights: str
    drawn: Drawn
    images: str
    not_tested: tuple[str, ...]
    versions: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    kept: Mapping[str, Mapping[str, Tensor]] = field(repr=False)
    name: str = ""

    @property
    def title(self) -> str:
        """As reports call it."""
        doubt = "" if self.verdict == "equal" else f" ({self.verdict})"
        return f"{self.name}, recorded of {self.source}{doubt}"

    def redrawn(self) -> Mapping[str, Tensor]:
        """The images again.

        Raises:
            UsageError: They are not those that were recorded.
        """
        images = self.drawn.images()
        if (found := fingerprint(images)) != self.images:
            raise UsageError(
                "The images that are drawn here are not those of the golden file.",
                evidence={
                    "golden": self.name,
                    "sha256 there": f"{self.images} (NumPy {self.versions.get('numpy', '?')})",
                    "sha256 here": f"{found} (NumPy {np.__version__})",
                },
                meaning="Another NumPy may draw other random numbers. No model was compared.",
                hint="record it again with this NumPy, or install the one that drew them.",
            )
        return images

    def view(self, name: str, values: Tensor) -> Tensor:
        """A digest where one was kept of such a layer; another shape stays what it is."""
        shape = self.shapes.get(_OUTPUTS.get(name, name))
        return sketch(values) if shape == tuple(values.shape[1:]) else values

    def implementation(
        self, images: Mapping[str, Tensor], vit: ViT | None = None, taps: Taps | None = None
    ) -> Implementation:
        """Something that gives for the images what was kept.

        Args:
            images: From `redrawn`.
            vit: vitconvert's model of the same weights, to find causes with.
            taps: Where its layers are.
        """

        def prepare(dtype: torch.dtype) -> Any:
            def run(x: Tensor) -> Run:
                kind = next(k for k, batch in images.items() if torch.equal(batch.to(dtype), x))
                layers = {name: values.to(dtype) for name, values in self.kept[kind].items()}
                outputs = {n: layers[layer] for n, layer in _OUTPUTS.items() if layer in layers}
                return Run(outputs, layers)

            return run

        return Implementation(
            name=self.title, prepare=prepare, vit=vit, taps=taps or {}, view=self.view
        )


def record(
    checkpoint: Checkpoint, *, seed: int = 0, batch: int = 2, tolerance: float = TOLERANCE
) -> Golden:
    """Compute what is kept of a checkpoint, once its own project computes the same.

    Raises:
        ParityFailed: vitconvert's ViT does not compute what the checkpoint's own project computes.
        UsageError: The images would be too large, or the outputs are not finite.
    """
    check_arguments(batch, ["float64"])
    drawn = _drawn(checkpoint, seed, batch)
    report = verify_checkpoint(checkpoint, tolerance=tolerance, until_equal=True)
    report.raise_if_failed()
    model = build_model(checkpoint)
    images = drawn.images()
    with isolated():
        side = of_vit(model, name="vitconvert's ViT", taps=recorded_taps(model.config.depth))
        run = side.prepare(torch.float64)
        layers = {kind: run(batch).layers for kind, batch in images.items()}
        shapes = {k: tuple(x.shape[1:]) for k, x in layers["noise"].items() if x.ndim > 2}
        kept = {
            kind: {name: sketch(x) if name in shapes else x for name, x in found.items()}
            for kind, found in layers.items()
        }
    _check_finite(kept)
    return Golden(
        source=published(checkpoint.located.reference),
        verdict=report.verdict,
        reference=report.reference or report.skipped,
        config=model.config,
        weights=fingerprint(model.state_dict()),
        drawn=drawn,
        images=fingerprint(images),
        not_tested=report.not_tested,
        versions=own_versions(),
        shapes=shapes,
        kept=kept,
    )


def _drawn(checkpoint: Checkpoint, seed: int, batch: int) -> Drawn:
    config = checkpoint.config
    usual = normalisation(checkpoint.preprocessing, config.in_channels)
    drawn = Drawn(
        seed=seed,
        batch=batch,
        size=config.image_size,
        channels=config.in_channels,
        **{name: tuple(values) for name, values in usual.items()},
    )
    if (numbers := numbers_of(drawn)) > MOST_NUMBERS:
        raise UsageError(
            "The images are too large to record golden outputs of.",
            evidence={"numbers in a batch": f"{numbers:,}", "at most": f"{MOST_NUMBERS:,}"},
        )
    return drawn


def numbers_of(drawn: Drawn) -> int:
    """How many numbers the largest batch has; one kind of images has at least three."""
    return max(drawn.batch, 3) * drawn.channels * drawn.size[0] * drawn.size[1]


def recorded_taps(depth: int) -> dict[str, Tap]:
    """Where a model is recorded: where it is compared, and what its branches give on their own."""
    parts = [f"blocks.{i}.{part}" for i in range(depth) for part in ("attn", "mlp")]
    return canonical_taps(depth) | {f"{part}{BRANCH}": Tap(part) for part in parts}


def _check_finite(kept: Mapping[str, Mapping[str, Tensor]]) -> None:
    for kind, layers in kept.items():
        for name, values in layers.items():
            if not values.isfinite().all():
                raise UsageError(
                    "The model gives numbers that are NaN or infinite, which equal nothing.",
                    evidence={"layer": name, "images": kind},
                )


def own_versions() -> dict[str, str]:
    """What computes here; `reference` tells the other side's."""
    return {"vitconvert": VERSION, "torch": torch.__version__, "numpy": np.__version__}
