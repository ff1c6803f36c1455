"""A user's images as a graph takes them, and those that int8 is calibrated with.

Eight bits hold 256 numbers, so a file has to say which range of an activation they stand for: the
range that images of its user make. Every second image is held out, and nothing is rounded by it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitconvert.errors import UsageError, VitConvertError
from vitconvert.preprocessing import Preprocessing
from vitconvert.runtimes.graph import Shape

Picture = Path | Image.Image
LEAST, MOST = 20, 512  # images; of more, as many are taken, spread over all


def prepared(
    image: Picture, preprocessing: Preprocessing, shape: Shape, max_pixels: int | None
) -> Tensor:
    """A user's image, resized and cropped, as a graph takes it."""
    x = preprocessing(image, max_pixels=max_pixels)[None]
    return x if shape.pixels is None else as_levels(x, preprocessing)


def told(image: Picture, error: VitConvertError) -> str:
    """Which image could not be read, and why."""
    name = f"{image.name}: " if isinstance(image, Path) else ""
    return f"{name}{error.fact} {error.hint or ''}".strip()


def as_levels(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """(B, C, H, W) normalised, to the (B, H, W, C) uint8 that it was before."""
    mean, std = (
        torch.tensor(v, dtype=torch.float32).view(-1, 1, 1)
        for v in (preprocessing.mean, preprocessing.std)
    )
    return levels((images * std + mean) / (255 * (preprocessing.rescale_factor or 1)))


def levels(images: Tensor) -> Tensor:
    """(B, C, H, W) from 0 to 1, to (B, H, W, C) uint8."""
    return (255 * images).round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What activations are measured with.

    Attributes:
        images: Half of those that can be read.
        held_out: The other half.
        unreadable: Which could not be, and why.
        sha256: Of the first half, as the graph takes it.
        preprocessing, shape: What makes the input of the graph.
        max_pixels: The most of an image that the user allows.
    """

    images: Sequence[Picture]
    held_out: Sequence[Picture]
    unreadable: Sequence[str]
    sha256: str
    preprocessing: Preprocessing
    shape: Shape
    max_pixels: int | None

    @classmethod
    def of(
        cls,
        images: Iterable[Picture],
        preprocessing: Preprocessing,
        shape: Shape,
        *,
        max_pixels: int | None = None,
    ) -> "Calibration":
        """Choose among images, all of which are read once here.

        Raises:
            UsageError: They are too few.
        """
        every = list(images)
        chosen = every[:: -(-len(every) // MOST) or 1]
        readable: list[Picture] = []
        failed: list[str] = []
        digest = hashlib.sha256()
        for image in chosen:
            try:
                x = prepared(image, preprocessing, shape, max_pixels)
            except VitConvertError as error:
                failed.append(told(image, error))
                continue
            readable.append(image)
            if len(readable) % 2:
                digest.update(x.contiguous().numpy().data)
        if len(readable) < LEAST:
            raise UsageError(
                f"int8 is calibrated with {LEAST} images or more, half of which are held out.",
                evidence={
                    "named": len(every),
                    "readable": len(readable),
                    **({"failed": failed[0]} if failed else {}),
                },
                hint="name more: a folder or a pattern, such as those that the model is used for.",
            )
        return cls(
            images=readable[::2],
            held_out=readable[1::2],
            unreadable=failed,
            sha256=digest.hexdigest(),
            preprocessing=preprocessing,
            shape=shape,
            max_pixels=max_pixels,
        )

    def batches(self) -> Iterator[Tensor]:
        """The first half, as many at once as the graph takes, or one."""
        rest, size = iter(self.images), self.shape.batch or 1
        while some := list(islice(rest, size)):
            some += some[-1:] * (size - len(some))
            yield torch.cat([self._prepared(image) for image in some])

    def _prepared(self, image: Picture) -> Tensor:
        return prepared(image, self.preprocessing, self.shape, self.max_pixels)

    def record(self) -> dict[str, object]:
        """What a file says of the images, which are known again by the sum of what was made of
        them.
        """
        named = [image.name for image in self.images if isinstance(image, Path)]
        counts = {"images": len(self.images), "held_out": len(self.held_out)}
        return {**counts, "sha256": self.sha256, "names": named}
