"""A file in the runtime that it is for, compared with vitconvert's own model."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconvert.comparison import Comparison, compare_outputs
from vitconvert.config import ViTConfig
from vitconvert.config.properties import pixels_of
from vitconvert.errors import ConflictingFact, VitConvertError
from vitconvert.model import ViT
from vitconvert.model.heads import scores_of
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.pixels import normalised
from vitconvert.preprocessing.sample_images import normalisation, sample_images
from vitconvert.runtimes.check_onnx import (
    differences,
    onnxruntime_engine,
    read_model,
    sampled,
)
from vitconvert.runtimes.check_onnx import (
    images as golden_images,
)
from vitconvert.runtimes.graph import Shape, output_names
from vitconvert.runtimes.images import Picture, levels, prepared, told
from vitconvert.runtimes.runtime import Run
from vitconvert.version import VERSION

BATCHES = (1, 3)  # a runtime may mix the images of a batch, or have a size built in
_AT_ONCE = 8  # images, where any number is allowed


class Expected:
    """vitconvert's own model, for the images that an exported graph takes.

    The path to each output, and the arithmetic with pixels, are others than in the graph.
    """

    def __init__(self, model: ViT, shape: Shape) -> None:
        self.model, self.shape = model, shape

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Float32 or uint8 images, as the graph takes them, to its output."""
        model, x = self.model, self._normalised(images)
        if self.shape.output == "logits":
            return scores_of(model(x), self.shape.scores)
        tokens = model.forward_features(x)
        pooled = self.shape.output == "features"
        return model.forward_head(tokens, pre_logits=True) if pooled else tokens

    @torch.no_grad()
    def states(self, images: Tensor) -> tuple[Tensor, ...]:
        """The same images to what `Shape.probes` adds: the embedded tokens, and each block's."""
        return self.model.hidden_states(self._normalised(images))

    def _normalised(self, images: Tensor) -> Tensor:
        pixels = self.shape.pixels
        if pixels is None:
            return images
        array = normalised(
            images.permute(0, 3, 1, 2).numpy(),
            mean=pixels.mean,
            std=pixels.std,
            factor=pixels.rescale_factor,
            numbers="double",
        )
        return torch.from_numpy(array)

    def images(self, preprocessing: Preprocessing | None, *, batch: int) -> Mapping[str, Tensor]:
        """Noise and a sample image, as the graph takes them."""
        config = self.model.config
        usual = normalisation(preprocessing, config.in_channels)
        usual = usual if self.shape.pixels is None else {"mean": (0.0,), "std": (1.0,)}
        arrays = sample_images(
            batch=batch, channels=config.in_channels, size=config.image_size, seed=0, **usual
        )
        images = {kind: torch.from_numpy(array).float() for kind, array in arrays.items()}
        if self.shape.pixels is None:
            return images
        images["noise"] = 0.5 + images["noise"] / 4
        return {kind: levels(x) for kind, x in images.items()}


@dataclass(frozen=True, kw_only=True)
class Agreement(Comparison):
    """A comparison on a user's images.

    Attributes:
        cosine: Of the outputs of an image, the smallest.
    """

    cosine: float

    @classmethod
    def of(
        cls,
        ours: Tensor,
        theirs: Tensor,
        *,
        images: str,
        dtype: str,
        tolerance: float = 1.0,
        output: str = "output",
    ) -> "Agreement":
        """Of two outputs, as `compare_outputs`."""
        how = {"images": images, "dtype": dtype, "output": output}
        compared = compare_outputs(ours, theirs, tolerance=tolerance, **how)
        cosine = float(F.cosine_similarity(ours.double(), theirs.double(), dim=-1).min())
        return cls(**vars(compared), cosine=cosine)

    @property
    def in_words(self) -> str:
        """Such as people read."""
        return f"{in_words(self)}, cosine at least {self.cosine:.4f}"


def in_words(found: Comparison) -> str:
    """A comparison such as people read."""
    return (
        f"largest difference {found.relative:.1e} of the largest output, "
        f"{found.agreed} of {found.rows} with the same maximum"
    )


def compare_exported(
    run: Run,
    expected: Expected,
    preprocessing: Preprocessing | None,
    *,
    tolerance: float,
    dtype: str = "float32",
) -> tuple[Comparison, ...]:
    """Run a file on noise and a sample image, one and three at once, or as many as it takes.

    Args:
        run: The file in its runtime.
        expected: The same by vitconvert's own model.
        preprocessing: How an image is normalised.
        tolerance: The relative difference that is allowed.
        dtype: Of the file's weights.
    """
    batches = (expected.shape.batch,) if expected.shape.batch else BATCHES
    return tuple(
        compare_outputs(
            run(images),
            expected(images),
            images=f"{kind}, {batch} at once",
            dtype=dtype,
            tolerance=tolerance,
            output=expected.shape.output,
        )
        for batch in batches
        for kind, images in expected.images(preprocessing, batch=batch).items()
    )


def compare_at_size(
    run: Run,
    expected: Expected,
    preprocessing: Preprocessing | None,
    *,
    rest: tuple[int, int],
    tolerance: float,
    dtype: str,
) -> Iterator[Comparison]:
    """Run a file of free image size on images of the size of the expected model.

    Args:
        run, preprocessing, tolerance, dtype: As for `compare_exported`.
        expected: vitconvert's own model, built for that size.
        rest: Rows and columns of pixels that the file gets besides, and leaves out.
    """
    height, width = expected.model.config.image_size
    size = f"{height + rest[0]}x{width + rest[1]} pixels"
    last = [] if expected.shape.pixels is None else [0, 0]  # channels, which are not padded
    padding = [*last, 0, rest[1], 0, rest[0]]
    batch = expected.shape.batch or 2
    for kind, images in expected.images(preprocessing, batch=batch).items():
        yield compare_outputs(
            run(F.pad(images, padding, value=1).contiguous()),
            expected(images),
            images=f"{kind}, {size}",
            dtype=dtype,
            tolerance=tolerance,
            output=expected.shape.output,
        )


def other_sizes_to_check(config: ViTConfig) -> Iterator[ViTConfig]:
    """The model at a smaller size, a larger one and two oblong ones, if it can have them."""
    rows, columns = config.grid_size
    grids = (
        (max(5 * rows // 8, 2), max(5 * columns // 8, 2)),
        (9 * rows // 8 + 1, 9 * columns // 8 + 1),
        (max(rows // 2, 2), columns + 3),
        (rows + 2, max(columns // 3, 2)),
    )
    down, across = (side * config.stem_stride for side in config.patch_size)
    for grid in grids:
        try:
            yield config.replace(image_size=pixels_of(grid, (down, across), config.patch_stride))
        except ConflictingFact:  # positions that are not resampled are too few
            continue


def agreement(
    run: Run,
    expected: Expected,
    preprocessing: Preprocessing,
    images: Iterable[Picture],
    *,
    dtype: str,
    tolerance: float,
    called: str = "photographs",
    max_pixels: int | None = None,
) -> tuple[Agreement | None, list[str]]:
    """Compare on a user's images, all of them, which are `called` so.

    Returns:
        The comparison, None where no image could be read; and which could not, and why.
    """
    failed: list[str] = []
    pairs = []

    def readable() -> Iterator[Tensor]:
        for image in images:
            try:
                yield prepared(image, preprocessing, expected.shape, max_pixels)
            except VitConvertError as error:
                failed.append(told(image, error))

    fixed, every = expected.shape.batch, readable()
    while batch := list(islice(every, fixed or _AT_ONCE)):
        # A batch of a fixed size is filled up with its last image.
        missing = fixed - len(batch) if fixed else 0
        x = torch.cat([*batch, *batch[-1:] * missing])
        pairs.append((run(x)[: len(batch)], expected(x)[: len(batch)]))
    if not pairs:
        return None, failed
    ours, theirs = (torch.cat(outputs) for outputs in zip(*pairs, strict=True))
    how = {"images": called, "dtype": dtype, "output": expected.shape.output}
    return Agreement.of(ours, theirs, tolerance=tolerance, **how), failed


def worst(comparisons: Sequence[Comparison]) -> Comparison:
    """The one that is farthest apart."""
    return max(comparisons, key=lambda comparison: comparison.relative)


def golden_of(expected: Expected, *, dtype: str, tolerance: float) -> str:
    """The outputs of a graph, those of `probes` first, for the golden images."""
    config, shape = expected.model.config, expected.shape
    pixels = shape.pixels is not None
    both = torch.from_numpy(golden_images(config.in_channels, *config.image_size, pixels=pixels))
    states = expected.states(both) if shape.probes else ()
    output, *probes = output_names(1 + len(states))
    answers = dict(zip((*probes, output), (*states, expected(both)), strict=True))
    kept = {
        name: {
            "shape": list(answer.shape[1:]),
            "float32": base64.b64encode(sampled(answer.numpy()).astype("<f4").tobytes()).decode(),
        }
        for name, answer in answers.items()
    }
    stated = {"version": 1, "dtype": dtype, "tolerance": tolerance, "producer": VERSION}
    size = {"image_size": list(config.image_size)} if shape.dynamic_size else {}
    return json.dumps({**stated, **size, "outputs": kept})


def as_measured(golden: str, path: Path) -> str:
    """The same, which allows twice what ONNX Runtime itself departs by: for a file of 8 bits.

    Weights that were rounded give other answers than the model, and how far differs from model to
    model. Engines that round activations at other places are as far from ONNX Runtime at most.
    """
    model = read_model(path)
    found = differences(model, onnxruntime_engine(path, model, None))
    return json.dumps({**json.loads(golden), "tolerance": float(f"{2 * max(found.values()):.1e}")})
