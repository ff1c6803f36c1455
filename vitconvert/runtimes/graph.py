"""What becomes a file: a model, with what may stand before and after it, traced by torch."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, NotRepresentable, what_was_raised
from vitconvert.model import ViT
from vitconvert.model.heads import scores_of
from vitconvert.model.positions import Positions
from vitconvert.preprocessing import Preprocessing

OUTPUTS = ("logits", "features", "tokens")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a graph takes and gives.

    Attributes:
        output: One of OUTPUTS: what the head gives, what it reads, or all tokens after the last
            norm.
        scores: What becomes of logits, "softmax" or "sigmoid"; "none": they stay.
        pixels: What uint8 images (B, H, W, C) are normalised by; None: the graph takes float32
            images (B, C, H, W) that are normalised already.
        batch: The one batch size; None: any.
        probes: Whether the embedded tokens and those of each block are outputs too. The last block
            computes all tokens then.
    """

    output: str = "logits"
    scores: str = "none"
    pixels: Preprocessing | None = None
    batch: int | None = None
    probes: bool = False


def output_names(count: int) -> list[str]:
    """Of a graph with so many outputs: one, or those of probes too."""
    return ["output", "embedded", *(f"blocks.{layer}" for layer in range(count - 2))][:count]


class Graph(nn.Module):
    """Images in, an output; float32 or uint8 outside, whatever the weights are inside."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: ViT, shape: Shape) -> None:
        super().__init__()
        self.model, self.shape = _settled(model.eval().requires_grad_(False)), shape
        self.dtype = model.patch_embed.a_weight().dtype
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
            if pixels.pad:
                raise NotRepresentable(
                    "The graph cannot hold this preprocessing: it pads after normalising.",
                    evidence={"from": pixels.origin},
                    hint="export without it: the file takes normalised images.",
                )
            scale = 1 / (pixels.rescale_factor or 1)  # to levels from 0 to 255
            for name, values in (("mean", pixels.mean), ("std", pixels.std)):
                levels = torch.tensor([value * scale for value in values], dtype=torch.float32)
                self.register_buffer(name, levels.view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """(B, C, H, W) or (B, C, T, H, W) float32, or (B, H, W, C) uint8 with `pixels`."""
        if self.shape.pixels is not None:
            images = (images.permute(0, 3, 1, 2).float() - self.mean) / self.std
        images = images.to(self.dtype)
        tokens = self.shape.output == "tokens"
        if not self.shape.probes:
            return self._output(
                self.model.forward_features(images) if tokens else self.model(images)
            )
        states = self.model.hidden_states(images)
        last: Tensor = self.model.neck(self.model.norm(states[-1]))
        out = self._output(last if tokens else self.model.forward_head(last))
        return out, *(state.float() for state in states)

    def _output(self, out: Tensor) -> Tensor:
        return scores_of(out.float(), self.shape.scores)

    def example(self, batch: int) -> Tensor:
        """Images such as it takes, all of them zeros."""
        config = self.model.config
        if self.shape.pixels is not None:
            size = (batch, *config.image_size, config.in_channels)
            return torch.zeros(size, dtype=torch.uint8)
        return torch.zeros(batch, *config.input_shape, dtype=torch.float32)


class _SettledPositions(Positions):
    """Positions that were fitted to the image once and for all."""

    result: Tensor

    def __init__(self, config: ViTConfig, result: Tensor) -> None:
        super().__init__(config)
        self.register_buffer("result", result, persistent=False)

    def fitted(self) -> Tensor:
        return self.result


class _SettledRope(nn.Module):
    """Sines and cosines that were computed once and for all, a buffer for each that differs."""

    def __init__(self, tables: Iterable[Tensor]) -> None:
        super().__init__()
        self.names: list[str] = []
        known: dict[int, str] = {}
        for table in list(tables):
            name = known.setdefault(id(table), f"table_{len(known)}")
            self.register_buffer(name, table, persistent=False)
            self.names.append(name)

    def tables(self, like: Tensor) -> list[Tensor]:
        return [self.get_buffer(name) for name in self.names]


def _settled(model: ViT) -> ViT:
    """The model, whose positions are resized and rotations computed here, not for each batch.

    OpenVINO 2026.4 has no antialiased bicubic interpolation, and exporters fold small tables only.
    The caller's model stays as it is.
    """
    settled = copy.copy(model)  # which shares all parts, and the dictionary of them
    settled._modules = dict(model._modules)
    if (fitted := model.positions.fitted()) is not None:
        settled._modules["positions"] = _SettledPositions(model.config, fitted)
    if model.rope is not None:
        settled._modules["rope"] = _SettledRope(model.rope.tables(model.patch_embed.a_weight()))
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
