"""What becomes a file: a model, with what may stand before and after it, traced by torch."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, NotRepresentable, what_was_raised
from vitconvert.model import ViT
from vitconvert.model.positions import Positions
from vitconvert.preprocessing import Preprocessing

OUTPUTS = ("logits", "features", "tokens")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a graph takes and gives.

    Attributes:
        output: One of OUTPUTS: what the head gives, what it reads, or all tokens after the last
            norm.
        softmax: Whether logits become probabilities.
        pixels: What uint8 images (B, H, W, C) are normalised by; None: the graph takes float32
            images (B, C, H, W) that are normalised already.
        batch: The one batch size; None: any.
    """

    output: str = "logits"
    softmax: bool = False
    pixels: Preprocessing | None = None
    batch: int | None = None


class Graph(nn.Module):
    """Images in, one output; float32 or uint8 outside, whatever the weights are inside."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: ViT, shape: Shape) -> None:
        super().__init__()
        self.model, self.shape = _settled(model.eval().requires_grad_(False)), shape
        self.dtype = model.patch_embed.proj.weight.dtype
        if shape.pixels is not None:
            pixels = shape.pixels
            if pixels.channels != model.config.in_channels:
                raise ConflictingFact(
                    "The preprocessing does not make the images that the model reads.",
                    evidence={"makes": f"{pixels.channels} channels", "from": pixels.origin},
                    meaning=f"The model reads {model.config.in_channels} channels.",
                )
            if pixels.of_sounds:
                raise ConflictingFact("The model reads spectrograms, and no pixels of images.")
            scale = 1 / (pixels.rescale_factor or 1)  # to levels from 0 to 255
            for name, values in (("mean", pixels.mean), ("std", pixels.std)):
                levels = torch.tensor([value * scale for value in values]).view(-1, 1, 1)
                self.register_buffer(name, levels, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) float32, or (B, H, W, C) uint8 with `pixels`, to float32."""
        if self.shape.pixels is not None:
            images = (images.permute(0, 3, 1, 2).float() - self.mean) / self.std
        images = images.to(self.dtype)
        tokens = self.shape.output == "tokens"
        out: Tensor = self.model.forward_features(images) if tokens else self.model(images)
        out = out.float()
        return out.softmax(-1) if self.shape.softmax else out

    def example(self, batch: int) -> Tensor:
        """Images such as it takes, all of them zeros."""
        config = self.model.config
        if self.shape.pixels is not None:
            size = (batch, *config.image_size, config.in_channels)
            return torch.zeros(size, dtype=torch.uint8)
        return torch.zeros(batch, config.in_channels, *config.image_size)


class _SettledPositions(Positions):
    """Positions that were fitted to the image once and for all."""

    result: Tensor

    def __init__(self, config: ViTConfig, result: Tensor) -> None:
        super().__init__(config)
        self.register_buffer("result", result, persistent=False)

    def fitted(self) -> Tensor:
        return self.result


def _settled(model: ViT) -> ViT:
    """The model, whose positions are resized here, and not by a runtime for each batch.

    OpenVINO 2026.4 has no antialiased bicubic interpolation. The caller's model stays as it is.
    """
    fitted = model.positions.fitted()
    if fitted is None:
        return model
    settled = copy.copy(model)  # which shares all parts, and the dictionary of them
    positions = _SettledPositions(model.config, fitted)
    settled._modules = model._modules | {"positions": positions}
    return settled


def traced(graph: Graph) -> torch.export.ExportedProgram:
    """The graph as torch exports it, for one batch size or for any.

    Raises:
        NotRepresentable: torch's exporter does not take this model.
    """
    batch = graph.shape.batch
    # Not of one image: torch would take a size of 1 for a fact of the model.
    shapes = None if batch else ({0: torch.export.Dim("batch", min=1)},)
    try:
        program = torch.export.export(graph, (graph.example(batch or 2),), dynamic_shapes=shapes)
    except Exception as error:  # exporters raise anything
        raise NotRepresentable(
            "torch cannot export this model.",
            evidence={"raised": what_was_raised(error)},
            hint="--batch-size N fixes the batch size, which may help.",
        ) from error
    for node in program.graph.nodes:  # which files and lines of this machine made it
        node.meta.pop("stack_trace", None)
    return program
