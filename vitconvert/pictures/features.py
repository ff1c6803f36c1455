"""The features of patches in images: components as colours, similarity, and norms.

Letters: N tokens (prefix tokens, then patches row by row), D width.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError, VitConvertError
from vitconvert.inference.batches import check_fit
from vitconvert.model import ViT
from vitconvert.pictures.components import Basis, coloured_components
from vitconvert.pictures.overlay import coloured, overlaid, raw_colours, raw_map
from vitconvert.pictures.page import Plane, stills
from vitconvert.pictures.seen import (
    MapsOfImage,
    Query,
    Unseen,
    prefix_names,
    query_name,
    read_image,
    tokens_of,
)
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.finding import ImageSource, find_images
from vitconvert.settings import plain_arithmetic

KINDS = ("components", "norms", "similarity")
# Darcet et al., figure 3: in DINOv2 nearly all norms are below 100, and those of outliers above 150
OUTLIER = 3.0


@dataclass(frozen=True, kw_only=True, repr=False)
class FeatureMaps(MapsOfImage):
    """The features of a model in one image.

    Attributes:
        photograph, prefix: What the model saw, and names of the tokens before the patches.
        tokens: After the last block and the final norm, (N, D).
        norms: Lengths of the tokens after the last block, before the final norm, (N,).
        norms_by_block: For each block, the median and the largest norm of the patches after it.
        colours: The first three components of the foreground, (rows, columns, 3) from 0 to 1.
        foreground: Which patches it is, (rows, columns).
        basis: What all images that were read together were projected on.
    """

    tokens: Tensor
    norms: Tensor
    norms_by_block: tuple[tuple[float, float], ...]
    colours: Tensor
    foreground: Tensor
    basis: Basis

    def similarity(self, query: Query = None) -> Tensor:
        """The cosine of a token's features and those of each patch, (rows, columns).

        Args:
            query: "patch:ROW,COLUMN" or (row, column), counted from 0, "class", "register:0", ...;
                by default the patch in the middle. "mean" is the mean of all patches' features.

        Raises:
            UsageError: The model has no such token.
        """
        rows, columns = self.grid
        name = query_name(query, f"patch:{rows // 2},{columns // 2}")
        asked = self.tokens[tokens_of(name, self.prefix, self.grid)].mean(0)
        return F.cosine_similarity(asked, self.patches, dim=-1).reshape(self.grid)

    @property
    def patches(self) -> Tensor:
        """The tokens of the patches, row by row."""
        return self.tokens[len(self.prefix) :]

    @property
    def patch_norms(self) -> Tensor:
        """The norms of the patches, (rows, columns).

        A few very long ones are the outliers that registers cure: Darcet et al., "Vision
        Transformers Need Registers", https://arxiv.org/abs/2309.16588.
        """
        return self.norms[len(self.prefix) :].reshape(self.grid)

    @property
    def outliers(self) -> list[tuple[int, int]]:
        """Rows and columns of patches whose norm is more than 3 times the median."""
        norms = self.patch_norms
        found = torch.nonzero(norms > OUTLIER * norms.median()).tolist()
        return [(row, column) for row, column in found]

    def picture(
        self, kind: str = "components", query: Query = None, *, raw: bool = False
    ) -> Image.Image:
        """One of "components", "norms" and "similarity", at the image's own size.

        Args:
            kind: What to show.
            query: Of "similarity", as there.
            raw: The features alone, each patch flat, transparent where the model saw nothing;
                else smoothly over the image.

        Raises:
            UsageError: There is no such kind or token.
            VitConvertError: The file can no longer be read, or has changed.
        """
        place = self.photograph.placement
        if kind == "components":
            patches = component_pixels(self)
            if raw:
                return raw_colours(patches, place)
        else:
            if kind not in KINDS:
                known = ", ".join(KINDS)
                raise UsageError(f"There is no image of {kind!r}.", evidence={"known": known})
            values = self.patch_norms if kind == "norms" else self.similarity(query)
            if raw:
                return raw_map(values, place)
            patches = coloured(values)
        return overlaid(self.photograph.picture(), patches, place)

    def to_dict(self) -> dict[str, Any]:
        """Norms and components in numbers, as JSON types."""
        norms = self.patch_norms
        return {
            "norms": {
                "median": float(norms.median()),
                "largest": float(norms.max()),
                "outliers": [list(place) for place in self.outliers],
                "prefix": dict(zip(self.prefix, self.norms.tolist(), strict=False)),
                "patches": norms.tolist(),
                "by_block": [list(pair) for pair in self.norms_by_block],
            },
            "components": {
                "threshold": self.basis.threshold,
                "foreground_above": self.basis.above,
                "foreground": float(self.foreground.double().mean()),
                "explained": list(self.basis.explained),
            },
        }

    def planes(self) -> Iterator[Plane]:
        """Similarity and norms for a page."""
        unit = F.normalize(self.tokens, dim=-1)
        yield Plane(what="similarity", rows=unit @ unit.T)
        yield Plane(what="norms", rows=self.norms[None])

    def _repr_html_(self) -> str:
        row, column = (side // 2 for side in self.grid)
        return stills(
            {
                "components": self.picture("components"),
                "norms of the tokens": self.picture("norms"),
                f"similarity to patch:{row},{column}": self.picture("similarity"),
            }
        )

    def _repr_png_(self) -> bytes:
        return self.picture()._repr_png_() or b""


def component_pixels(features: FeatureMaps) -> Image.Image:
    """The colours of the components, a pixel for each patch."""
    return Image.fromarray((features.colours * 255).round().byte().numpy())


def feature_maps(
    model: ViT,
    images: ImageSource | Iterable[ImageSource],
    preprocessing: Preprocessing,
    *,
    foreground: float | None = None,
    background: bool = True,
    recursive: bool = False,
    max_pixels: int | None = None,
) -> list[FeatureMaps | Unseen]:
    """The features of a model in each image, with one basis of components for all.

    Args:
        images: Files, folders, patterns and open images.
        foreground, background: The `threshold` and `background` of `coloured_components`.
        recursive: Look into subfolders too.
        max_pixels: The most of an image that the user allows.

    Raises:
        InputMismatch: The preprocessing does not make the images that the model reads.
        UsageError: The threshold is not from 0 to 1.
    """
    model.config.require_images("A map of features over an image")
    config = check_fit(model, preprocessing)
    if foreground is not None and not 0 <= foreground <= 1:
        raise UsageError(f"The foreground's threshold must be from 0 to 1, not {foreground:g}.")
    sources = find_images(images, recursive=recursive)
    found = [_read(model, config, source, preprocessing, max_pixels) for source in sources]
    patches = [one.patches.reshape(*one.grid, -1) for one in found if isinstance(one, FeatureMaps)]
    if not patches:
        return found
    basis, *rest = coloured_components(patches, foreground, background=background)
    shown = zip(*rest, strict=True)
    projected: list[FeatureMaps | Unseen] = []
    for one in found:
        if isinstance(one, FeatureMaps):
            colours, chosen = next(shown)
            one = dataclasses.replace(one, basis=basis, colours=colours, foreground=chosen)
        projected.append(one)
    return projected


@plain_arithmetic()
def _read(
    model: ViT,
    config: ViTConfig,
    source: Path | Image.Image,
    preprocessing: Preprocessing,
    max_pixels: int | None,
) -> FeatureMaps | Unseen:
    """The tokens of an image, and no components of them: these are of all images together."""
    try:
        photograph, image = read_image(source, preprocessing, config, max_pixels=max_pixels)
        stream = model.hidden_states(image.to(next(model.parameters())))
        tokens = model.norm(stream[-1])[0].float().cpu()
        if not tokens.isfinite().all():
            raise VitConvertError(
                "The features are not finite.", evidence={"image": photograph.path or "in memory"}
            )
    except VitConvertError as error:
        return Unseen.of(source, error)
    lengths = [states[0].float().norm(dim=-1).cpu() for states in stream[1:]]
    of_patches = [each[model.config.num_prefix_tokens :] for each in lengths]
    return FeatureMaps(
        photograph=photograph,
        prefix=prefix_names(model.config),
        tokens=tokens,
        norms=lengths[-1],
        norms_by_block=tuple((float(each.median()), float(each.max())) for each in of_patches),
        colours=torch.empty(0),
        foreground=torch.empty(0),
        basis=Basis(threshold=None, above=True, explained=()),
    )
