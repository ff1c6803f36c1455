"""What becomes a file: a model, with what may stand before and after it, traced by torch."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.config.buckets import BUCKETED
from vitconvert.errors import ConflictingFact, NotRepresentable, what_was_raised
from vitconvert.model import ViT
from vitconvert.model.heads import scores_of
from vitconvert.model.open_sizes import Grid, counted
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
        dynamic_size: Whether height and width of the images are free too.
        probes: Whether the embedded tokens and those of each block are outputs too. The last block
            computes all tokens then.
    """

    output: str = "logits"
    scores: str = "none"
    pixels: Preprocessing | None = None
    batch: int | None = None
    probes: bool = False
    dynamic_size: bool = False


def output_names(count: int) -> list[str]:
    """Of a graph with so many outputs: one, or those of probes too."""
    return ["output", "embedded", *(f"blocks.{layer}" for layer in range(count - 2))][:count]


def require_open_sizes(config: ViTConfig) -> None:
    """Refuse a model that no graph can hold for images of any size.

    Raises:
        NotRepresentable: One of its parts has another form for each size.
    """
    spread = config.block_relative_positions or config.shared_relative_positions
    reasons = {
        "the padding of its convolutional stem depends on the size": config.stem
        and not config.mobileclip_stem,
        "windows of attention are filled up by size": config.windowed,
        "its windows are as many for every size": config.window_count > 1,
        "its positions are the first of a table": config.position_resampling == "first"
        and config.learned_positions,
        "its positions are of buckets": config.position_resampling in BUCKETED,
        "attention reads vectors for each offset of rows and columns": config.decomposed_positions,
        "timm spreads its relative positions by a search": spread
        and config.relative_resampling == "geometric",
        "its patches are merged in squares": config.merge_size > 0,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise NotRepresentable(
            "This model cannot be exported for images of any size.",
            evidence={"because": "; ".join(found)},
            hint="--image-size N exports it for one size; in PyTorch, "
            "load_model(..., dynamic_size=True) takes any.",
        )


class Graph(nn.Module):
    """Images in, an output; float32 or uint8 outside, whatever the weights are inside."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: ViT, shape: Shape, *, stops: bool = True) -> None:
        """The graph of a model.

        Args:
            model: The model; its images are of any size if it was built so.
            shape: What the graph takes and gives.
            stops: Whether a reshape that does not fit stops the runtime. Otherwise outputs are NaN
                for images of a free size that are no whole number of patches.
        """
        super().__init__()
        model = model.eval().requires_grad_(False)
        self.model, self.shape = model if shape.dynamic_size else _settled(model), shape
        self.whole_only = not model.config.patch_stride and not model.patch_embed.cuts_off
        # A stem's convolutions take images of other sizes, too.
        self.sized_in_patches = self.whole_only and stops and not model.config.stem
        if shape.dynamic_size:
            model.patch_embed.product_of_whole = self.sized_in_patches
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
        outputs = self._outputs(images)
        if self.shape.dynamic_size and self.whole_only and not self.sized_in_patches:
            # Not to the images: a ReLU may make 0 of NaN (OpenVINO 2026.4).
            added = self._nothing_or_nan(images)
            outputs = tuple(output + added for output in outputs)
        return outputs if self.shape.probes else outputs[0]

    def _outputs(self, images: Tensor) -> tuple[Tensor, ...]:
        tokens = self.shape.output == "tokens"
        if not self.shape.probes:
            out = self.model.forward_features(images) if tokens else self.model(images)
            return (self._output(out),)
        states = self.model.hidden_states(images)
        grid = self.model.grid_of(images)
        last = self.model.finished(states[-1], grid)
        out = self._output(last if tokens else self.model.forward_head(last, grid=grid))
        return out, *(state.float() for state in states)

    def _output(self, out: Tensor) -> Tensor:
        return scores_of(out.float(), self.shape.scores)

    def _nothing_or_nan(self, images: Tensor) -> Tensor:
        """(1,): 0 for images of whole patches, and NaN for others."""
        rests = [
            counted(size, images.device) % side
            for size, side in zip(images.shape[2:], _patch_of(self.model.config), strict=True)
        ]
        whole = rests[0] + rests[1] == 0
        return torch.where(whole, torch.zeros(1), torch.full((1,), torch.nan))

    def example(self, batch: int) -> Tensor:
        """Images such as it takes, all of them zeros."""
        config, size = self.model.config, self.model.config.image_size
        if self.shape.dynamic_size:  # no size that the graph could take for one of the model's own
            patch, (rows, columns) = _patch_of(config), config.grid_size
            size = ((rows + 3) * patch[0], (columns + 5) * patch[1])
        if self.shape.pixels is not None:
            return torch.zeros(batch, *size, config.in_channels, dtype=torch.uint8)
        frames = (config.frames,) if config.clips else ()
        return torch.zeros(batch, config.in_channels, *frames, *size, dtype=torch.float32)

    def open_sizes(self) -> dict[int, Any]:
        """The axes of the input that are open, with their names."""
        found: dict[int, Any] = {}
        if self.shape.batch is None:
            found[0] = torch.export.Dim("batch", min=1)
        if self.shape.dynamic_size:
            axes = (2, 3) if self.shape.pixels is None else (1, 2)
            names = ("rows", "columns") if self.sized_in_patches else ("height", "width")
            for axis, name, side in zip(axes, names, _patch_of(self.model.config), strict=True):
                # torch takes a single row for a fact of the model, as it does a single image.
                dim = torch.export.Dim(name, min=2 if self.sized_in_patches else 2 * side)
                found[axis] = side * dim if self.sized_in_patches else dim
        return found


def _patch_of(config: ViTConfig) -> tuple[int, int]:
    """Pixels of a patch, down and across."""
    down, across = config.patch_size
    return down * config.stem_stride, across * config.stem_stride


class _SettledPositions(Positions):
    """Positions that were fitted to the image once and for all."""

    result: Tensor

    def __init__(self, config: ViTConfig, result: Tensor) -> None:
        super().__init__(config)
        self.register_buffer("result", result, persistent=False)

    def fitted(self, grid: Grid) -> Tensor:
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

    def tables(self, like: Tensor, grid: Grid) -> list[Tensor]:
        return [self.get_buffer(name) for name in self.names]


def _settled(model: ViT) -> ViT:
    """The model, whose positions are resized and rotations computed here, not for each batch.

    OpenVINO 2026.4 has no antialiased bicubic interpolation, and exporters fold small tables only.
    The caller's model stays as it is.
    """
    settled = copy.copy(model)  # which shares all parts, and the dictionary of them
    settled._modules = dict(model._modules)
    grid = model.config.grid_size
    if (fitted := model.positions.fitted(grid)) is not None:
        settled._modules["positions"] = _SettledPositions(model.config, fitted)
    if model.rope is not None:
        tables = model.rope.tables(model.patch_embed.a_weight(), grid)
        settled._modules["rope"] = _SettledRope(tables)
    return settled


def traced(graph: Graph) -> torch.export.ExportedProgram:
    """The graph as torch exports it, for one batch size or for any.

    Raises:
        NotRepresentable: torch's exporter does not take this model.
    """
    batch = graph.shape.batch
    # Not of one image: torch would take a size of 1 for a fact of the model.
    sizes = graph.open_sizes()
    shapes = (sizes,) if sizes else None
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
