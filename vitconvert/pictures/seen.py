"""An image as a model saw it: its pixels, where each patch lies in them, and names of tokens."""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.config.properties import pixels_of
from vitconvert.errors import IntegrityError, UsageError, VitConvertError, size_text
from vitconvert.inference.preparing import LeftOut, prepare_image
from vitconvert.preprocessing import Preprocessing, image_files
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.transform import ImagePlacement, placement

CLASS, POOLING, MEAN, PATCH = "class", "pooling", "mean", "patch:"

Query = str | tuple[int, int] | None


def prefix_names(config: ViTConfig) -> tuple[str, ...]:
    """The tokens before the patches, in their order: class, distillation, register:0, ..."""
    named = [CLASS] * config.class_token + ["distillation"] * config.dist_token
    return (*named, *(f"register:{i}" for i in range(config.num_registers)))


def query_name(query: Query, default: str) -> str:
    """One spelling for a query: `register 0` and `register:0`, `(3, 7)` and `patch:3,7`.

    Raises:
        UsageError: It is neither a name nor a row and a column.
    """
    if query is None:
        return default
    if not isinstance(query, str):
        if not isinstance(query, Sequence) or len(query) != 2:
            raise UsageError(
                f"{query!r} is not a query.",
                hint='a name such as "class" or "patch:3,7", or a row and a column: (3, 7).',
            )
        return f"{PATCH}{query[0]},{query[1]}"
    word, _, rest = query.strip().lower().replace(" ", ":", 1).partition(":")
    return f"{word}:{''.join(rest.lstrip(':').split())}" if rest else word


def tokens_of(name: str, prefix: tuple[str, ...], grid: tuple[int, int]) -> list[int]:
    """Numbers of the tokens that are asked: one, or all patches for the mean over them.

    Raises:
        UsageError: The model has no such token.
    """
    rows, columns = grid
    first = len(prefix)
    if name == MEAN:
        return list(range(first, first + rows * columns))
    if name in prefix:
        return [prefix.index(name)]
    if name.startswith(PATCH):
        place = [part.strip() for part in name.removeprefix(PATCH).split(",")]
        if len(place) == 2 and all(part.isdecimal() and len(part) < 6 for part in place):
            row, column = map(int, place)
            if row < rows and column < columns:
                return [first + row * columns + column]
    patches = f"patch:0,0 to patch:{rows - 1},{columns - 1} (row, column)"
    raise UsageError(
        f"The model has no token {name!r}.",
        evidence={"tokens": ", ".join((*prefix, patches)), "or": f"{MEAN} (over all patches)"},
    )


@dataclass(frozen=True, kw_only=True)
class SeenImage:
    """One image, and the part of it that a model's patches cover.

    Attributes:
        source: A file, or an open image.
        preprocessing: What the model read of it.
        grid: Patches down and across.
        placement: Where the patches lie; its `image_size` is that of all patches together.
        max_pixels: The most that the user allows.
    """

    source: Path | Image.Image
    preprocessing: Preprocessing
    grid: tuple[int, int]
    placement: ImagePlacement
    max_pixels: int | None = None

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
        steps, backend = self.preprocessing, BACKENDS[self.preprocessing.backend]
        with ExitStack() as stack:
            image = self.source
            if not isinstance(image, Image.Image):
                opened = image_files.open_image(image, max_pixels=self.max_pixels)
                image = stack.enter_context(opened)
            stack.enter_context(
                image_files.memory_for(
                    image, backend, steps.transparency, max_pixels=self.max_pixels
                )
            )
            found = image_files.converted(
                image,
                channels=3,
                transparency=steps.transparency,
                upright=backend.upright,
                opens=backend.opens,
            )
        if (found.height, found.width) != self.placement.original:
            raise IntegrityError(
                "The image has changed since the model read it.",
                evidence={"image": self.path, "was": size_text(self.placement.original)},
            )
        return found


@dataclass(frozen=True, kw_only=True)
class MapsOfImage:
    """Maps of one image.

    Attributes:
        photograph: What the model saw.
        prefix: Names of the tokens before the patches.
    """

    photograph: SeenImage
    prefix: tuple[str, ...]
    error: ClassVar[None] = None

    @property
    def path(self) -> Path | None:
        """The image's; None for an open image."""
        return self.photograph.path

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.photograph.grid

    def __repr__(self) -> str:
        """In one line, without numbers."""
        shapes = {"grid": size_text(self.grid)}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                shapes[name] = size_text(value.shape)
        said = (f"{name} {shape}" for name, shape in shapes.items())
        path = "an open image" if self.path is None else repr(str(self.path))
        return f"<{type(self).__name__} of {path}: {', '.join(said)}>"


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """An image that the model could not read, and why."""

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


def read_image(
    source: Path | Image.Image,
    preprocessing: Preprocessing,
    config: ViTConfig,
    *,
    max_pixels: int | None = None,
) -> tuple[SeenImage, Tensor]:
    """An image, and the batch (1, C, H, W) that a model of this configuration reads.

    Raises:
        VitConvertError: It cannot be read, or does not fit; the error names it.
    """
    path, image, remarks = prepare_image(source, preprocessing, max_pixels=max_pixels)
    left_out = LeftOut()
    left_out.add(source, remarks)
    left_out.warn()
    if isinstance(image, VitConvertError):
        raise image
    upright = BACKENDS[preprocessing.backend].upright
    if path is None:
        size = image_files.size_of(source, upright=upright)  # type: ignore[arg-type]
    else:
        with image_files.open_image(path, max_pixels=max_pixels) as opened:
            size = image_files.size_of(opened, upright=upright)
    grid, whole = config.grid_size, placement(preprocessing, size)
    # Patches leave out what is left over at the bottom and at the right.
    pixels = pixels_of(grid, config.patch_size, config.patch_stride)
    covered = [side * config.stem_stride for side in pixels]
    seen = SeenImage(
        source=source,
        preprocessing=preprocessing,
        grid=grid,
        placement=dataclasses.replace(whole, image_size=(covered[0], covered[1])),
        max_pixels=max_pixels,
    )
    return seen, image[None]


def _path_of(source: Path | Image.Image) -> Path | None:
    return None if isinstance(source, Image.Image) else source
