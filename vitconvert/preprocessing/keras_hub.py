"""KerasHub 0.32: an `image_converter.json`, read and written."""

from collections.abc import Mapping

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.steps import Size, Steps, height_width, numbers, short

_INTERPOLATIONS = {
    "nearest": "nearest",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "lanczos3": "lanczos",
}
_OF_OLD = ("height", "width", "mean", "variance")  # that ImageConverter still reads


def is_image_converter(stated: JsonObject) -> bool:
    """Whether a file on images is KerasHub's."""
    return str(stated.get("class_name")).endswith("ImageConverter")


def from_image_converter(stated: JsonObject, *, image_size: Size, channels: int) -> JsonDict:
    """Fields of `Steps`, as `ImageConverter` reads the file; sizes and channels are the model's."""
    config = stated.get("config")
    if not isinstance(config, Mapping):
        raise ConflictingFact(f"config = {short(config)} should be an object.")
    size, filter_ = config.get("image_size"), config.get("interpolation", "bilinear")
    unread = [key for key in ("pad_to_aspect_ratio", *_OF_OLD) if config.get(key)]
    unread += [] if filter_ in _INTERPOLATIONS else ["interpolation"]
    if unread:
        said_so = f"{unread[0]} = {short(config[unread[0]])}"
        raise NotRepresentable(f"{said_so} of an ImageConverter is not supported.")
    # x * scale + offset, in the words of a mean and a deviation
    stated_scale, stated_offset = config.get("scale"), config.get("offset")
    factor = None if stated_scale is None else 1 / 255
    if stated_scale is None and stated_offset:
        fact = f"offset = {short(stated_offset)} without a scale is added to whole numbers"
        raise NotRepresentable(f"{fact}, and overflows.")
    scale = numbers(1.0 if stated_scale is None else stated_scale, "scale", channels)
    if not all(scale):
        raise ConflictingFact(f"scale = {short(stated_scale)} makes all pixels alike.")
    std = tuple((factor or 1.0) / each for each in scale)
    offset = numbers(stated_offset or 0.0, "offset", channels)
    cuts = bool(config.get("crop_to_aspect_ratio", True)) and size is not None
    made = image_size if size is None else height_width(size, "image_size")
    return {
        "image_size": made,
        "interpolation": _INTERPOLATIONS[filter_],
        "resize": "cut" if cuts else "none" if size is None else "squash",
        "resize_size": None if size is None else made,
        "crop": cuts,
        "backend": "keras_antialias" if config.get("antialias") else "keras",
        "mean": tuple(-each * deviation for each, deviation in zip(offset, std, strict=True)),
        "std": std,
        "rescale_factor": factor,
    }


def to_image_converter(steps: Steps) -> JsonDict:
    """The arguments that say the same, or come near.

    Raises:
        NotRepresentable: KerasHub has no such resizing.
    """
    words = {ours: theirs for theirs, ours in _INTERPOLATIONS.items()}
    if steps.pad or steps.resize in ("border", "patches") or steps.interpolation not in words:
        raise NotRepresentable(
            f"KerasHub cannot express this resizing: {steps.resize} with {steps.interpolation}.",
            evidence={"from": steps.origin},
        )
    factor = steps.rescale_factor or 1.0
    return {
        "image_size": None if steps.resize == "none" else list(steps.image_size),
        "scale": [factor / deviation for deviation in steps.std],
        "offset": [-mean / std for mean, std in zip(steps.mean, steps.std, strict=True)],
        "interpolation": words[steps.interpolation],
        "antialias": BACKENDS[steps.backend].antialias,
        "crop_to_aspect_ratio": steps.resize not in ("squash", "none"),
        "pad_to_aspect_ratio": False,
    }
