"""The `[preprocessing]` section of a table in `weights_map/`: what its project does, read."""

from collections.abc import Mapping
from typing import Any

from vitconvert.errors import TableError
from vitconvert.preprocessing.timm import size_before_crop
from vitconvert.preprocessing.values import Size, height_width, numbers

_REQUIRED = {"resize", "interpolation", "mean", "std", "backend"}
_OPTIONAL = {"crop_pct", "resize_size", "crop", "transparency"}
_OF_TENSORS = {"mean_in", "std_in"}  # which tensors hold them, for `checkpoint.images`


def from_section(section: Mapping[str, Any], *, image_size: Size, channels: int) -> dict[str, Any]:
    """Fields of `Steps`.

    Raises:
        TableError: A key is unknown, missing, or contradicts another.
    """
    _check_keys(section)
    fields = {key: value for key, value in section.items() if key not in _OF_TENSORS}
    resize_size = size_before_crop(image_size, fields.pop("crop_pct", 1.0))
    if "resize_size" in fields:
        resize_size = height_width(fields["resize_size"], "resize_size")
    cover = section["resize"] == "shortest" and resize_size[0] != resize_size[1]
    return {
        "crop": resize_size != image_size or section["resize"] != "squash",
        **fields,
        # A size that is not square has no one shortest side. open_clip and timm do the same.
        "resize": "cover" if cover else section["resize"],
        "image_size": image_size,
        "resize_size": None if section["resize"] == "none" else resize_size,
        "mean": numbers(section["mean"], "mean", channels),
        "std": numbers(section["std"], "std", channels),
    }


def _check_keys(section: Mapping[str, Any]) -> None:
    unknown = sorted(set(section) - _REQUIRED - _OPTIONAL - _OF_TENSORS)
    missing = sorted(_REQUIRED - set(section))
    if unknown or missing:
        raise TableError(
            "A [preprocessing] section has unknown or missing keys.",
            evidence={"unknown": ", ".join(unknown) or "-", "missing": ", ".join(missing) or "-"},
        )
    if "crop_pct" in section and "resize_size" in section:
        raise TableError("A [preprocessing] section states both crop_pct and resize_size.")
