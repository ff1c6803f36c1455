"""What a model sees in images: maps of attention and of features."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vitconvert.api.loading import Source, checkpoint_or_model
from vitconvert.arguments import checked, refuse
from vitconvert.checkpoint import Checkpoint
from vitconvert.inference.options import ComputeOptions
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic

if TYPE_CHECKING:
    import torch

    from vitconvert.model import ViT
    from vitconvert.pictures.features import FeatureMaps
    from vitconvert.pictures.maps import AttentionMaps
    from vitconvert.pictures.seen import Unseen
    from vitconvert.preprocessing.finding import ImageSource


@checked()
@plain_arithmetic()
def attention_maps(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    layers: int | Sequence[int] | None = None,
    recursive: bool = False,
    max_image_pixels: int | None = None,
    device: "torch.device | str" = "cpu",
) -> "Iterator[AttentionMaps | Unseen]":
    """Yield attention maps of each image: what each token of a model attends to.

    `maps.map()` is a map over the patches of one block, `maps.rollout()` one through all blocks.
    `maps.picture()` lays a map over the image, in the image's own size and with the crop undone.
    `maps.to_html()` is a page to explore all maps. An image that cannot be read has an `error`.

    Args:
        model: A reference as for `load_model` or a checkpoint (computed in float32), or a model
            (used as it is).
        images: As for `predict`.
        preprocessing: By default, the checkpoint's own. It must be given with a model.
        layers: The blocks whose maps are kept: a number of last blocks, or a list (negative: from
            the end). By default all; for 224 pixels this is 22 MB for each image (ViT-B/16).
        recursive: Search subfolders too.
        max_image_pixels: As for `predict`.
        device: The device of the model.

    Returns:
        The maps of each image, computed during the iteration.

    Raises:
        VitConvertError: One of the errors of `load_checkpoint`.
        MissingFact: No file states the preprocessing of images.
        InputMismatch: The preprocessing makes other images than the model reads.
        UsageError: There are no such blocks, or their maps would take more than 2 GiB.

    Example:
        >>> for maps in vitconvert.attention_maps("my-vit", "photos"):
        ...     maps.picture(layer=-1).save("attention.png")
    """
    from vitconvert.pictures.maps import attention_maps as attention_maps_with

    built, prepared, labels = _in_float32(model, preprocessing, device)
    return attention_maps_with(
        built,
        images,
        prepared,
        layers=layers,
        recursive=recursive,
        labels=labels,
        max_pixels=max_image_pixels,
    )


@checked()
@plain_arithmetic()
def feature_maps(
    model: "ViT | Source",
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing | None = None,
    *,
    foreground: float | None = None,
    background: bool = True,
    recursive: bool = False,
    max_image_pixels: int | None = None,
    device: "torch.device | str" = "cpu",
) -> "list[FeatureMaps | Unseen]":
    """The features of patches: principal components as colours, similarity and norms.

    All images have the same basis, so a colour means the same in each. The first component over
    all patches separates foreground from background, as in DINOv2's figures.

    Args:
        model, images, preprocessing, recursive, max_image_pixels, device: As for `attention_maps`.
        foreground: The threshold of the first component, from 0 to 1; by default, it is computed.
        background: Whether the images have a background. If not, all patches are coloured.

    Returns:
        For each image its features, or the reason why there are none.

    Raises:
        VitConvertError: As for `attention_maps`.

    Example:
        >>> maps = vitconvert.feature_maps("my-vit", "photos")
        >>> len(maps), maps[0].tokens.shape
        (10, torch.Size([17, 48]))
    """
    from vitconvert.pictures.features import feature_maps as feature_maps_with

    if foreground is not None and not background:
        refuse(["foreground"], "this is for background=True, which is not given.")
    built, prepared, _ = _in_float32(model, preprocessing, device)
    return feature_maps_with(
        built,
        images,
        prepared,
        foreground=foreground,
        background=background,
        recursive=recursive,
        max_pixels=max_image_pixels,
    )


def _in_float32(
    model: "ViT | Source", preprocessing: Preprocessing | None, device: "torch.device | str"
) -> "tuple[ViT, Preprocessing, Sequence[str] | None]":
    """A model, its preprocessing and the names of its classes, with the usual arithmetic."""
    import torch

    from vitconvert.inference.batches import ready

    opened = checkpoint_or_model(model, read_in=torch.float32, device=device)
    usual = ComputeOptions(fast=False, dtype=torch.float32, device=device)
    found = ready(opened, preprocessing, usual)
    labels = opened.labels if isinstance(opened, Checkpoint) else None
    return found.model, found.preprocessing, labels
