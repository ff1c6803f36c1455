"""A photograph as a model saw it: its own pixels, and where each patch lies in them."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import IntegrityError, VitConvertError, size_text
from vitconvert.inference.batches import prepare_image
from vitconvert.preprocessing import Preprocessing, image_files
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.transform import Placement, placement


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """One photograph, and the part of it that a model's patches cover.

    Attributes:
        source: A file, or an open image.
        preprocessing: What the model read of it.
        grid: Patches down and across.
        placement: Where the patches lie; its `image_size` is that of all patches together.
    """

    source: Path | Image.Image
    preprocessing: Preprocessing
    grid: tuple[int, int]
    placement: Placement

    @property
    def path(self) -> Path | None:
        """None for an open image."""
        return _path_of(self.source)

    def picture(self) -> Image.Image:
        """All of it in RGB and at its own size, turned as the model saw it.

        Raises:
            SourceError, CorruptFile, UnsafeFile: The file can no longer be read.
            IntegrityError: It has another size now.
        """
        if isinstance(self.source, Image.Image):
            found = self._converted(self.source)
        else:
            with image_files.open_image(self.source) as opened:
                found = self._converted(opened)
        if (found.height, found.width) != self.placement.original:
            raise IntegrityError(
                "The photograph has changed since the model read it.",
                evidence={"image": self.path, "was": size_text(self.placement.original)},
            )
        return found

    def _converted(self, image: Image.Image) -> Image.Image:
        steps = self.preprocessing
        backend = BACKENDS[steps.backend]
        with image_files.memory_for(image, backend, steps.transparency):
            return image_files.converted(
                image, channels=3, transparency=steps.transparency, upright=backend.upright
            )


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """A photograph that the model could not read, and why."""

    path: Path | None
    error: VitConvertError

    @classmethod
    def of(cls, source: Path | Image.Image, error: VitConvertError) -> "Unseen":
        """Of a file, or an open image."""
        return cls(path=_path_of(source), error=error)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        path = None if self.path is None else str(self.path)
        return {"path": path, "error": self.error.to_dict()}


def read_photograph(
    source: Path | Image.Image, preprocessing: Preprocessing, config: ViTConfig
) -> tuple[Photograph, Tensor]:
    """A photograph, and the images (1, C, H, W) that a model of this configuration reads.

    Raises:
        VitConvertError: It cannot be read, or does not fit; the error names it.
    """
    path, image = prepare_image(source, preprocessing)
    if isinstance(image, VitConvertError):
        raise image
    upright = BACKENDS[preprocessing.backend].upright
    if path is None:
        size = image_files.size_of(source, upright=upright)  # type: ignore[arg-type]
    else:
        with image_files.open_image(path) as opened:
            size = image_files.size_of(opened, upright=upright)
    grid, whole = config.grid_size, placement(preprocessing, size)
    # Patches leave out what is left over at the bottom and at the right.
    stride = config.stem_stride
    covered = tuple(n * side * stride for n, side in zip(grid, config.patch_size, strict=True))
    photograph = Photograph(
        source=source,
        preprocessing=preprocessing,
        grid=grid,
        placement=dataclasses.replace(whole, image_size=(covered[0], covered[1])),
    )
    return photograph, image[None]


def _path_of(source: Path | Image.Image) -> Path | None:
    return None if isinstance(source, Image.Image) else source
