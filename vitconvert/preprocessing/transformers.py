"""transformers 5.23: `preprocessor_config.json`, read and written."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable, size_text
from vitconvert.preprocessing.backends import CLIP, HALVES, IMAGENET, SAMPLE_RATE
from vitconvert.preprocessing.steps import (
    Size,
    Steps,
    height_width,
    numbers,
    positive,
    whole_numbers,
)

_AST = "ASTFeatureExtractor"
# Pillow's numbers for its filters
_RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


@dataclass(frozen=True, kw_only=True)
class _Processor:
    """The defaults of an image processor, where its file is silent."""

    mean_std: tuple[tuple[float, ...], tuple[float, ...]]
    resample: int
    own_resample: bool = False  # whatever the file says
    size: Mapping[str, int]
    crop: bool = False
    crop_size: int | None = None
    convert_rgb: bool = False
    square: bool = True  # a whole number as size means both sides, not the shortest
    rescale_first: bool = False  # before resizing
    pillow: bool = True  # whether there is a variant for Pillow; another falls back to torchvision
    pillow_only: bool = False
    of_crop: tuple[int, int] | None = None  # the shortest side, over what is cropped of it
    rescale_factor: float = 1 / 255
    offset: bool = False  # whether 1 is taken away after rescaling, before the mean is
    patches: bool = False  # the size follows from a limit of patches
    # Images keep their size, as far as it is in whole squares of so many patches and within limits
    squares: int = 0
    patch: int = 14
    limits: str = "pixels"  # of an image, of its "frames" together, of its "sides" or "tokens"
    frames: int = 2  # those that count together, where the file does not say
    merge: str = "merge_size"  # what the file calls the side of such a square
    normalize: bool = True
    multiple: str = ""  # what the file calls the number that sizes are rounded to multiples of
    pad: int | None = None  # by zeros, at the right and below, after normalising: pad_size
    refused: Mapping[str, str] = field(default_factory=dict)  # options, and why


_SQUARE, _SHORTEST = {"height": 224, "width": 224}, {"shortest_edge": 224}
_CLIP_LIKE = _Processor(
    mean_std=CLIP,
    resample=3,
    size=_SHORTEST,
    crop=True,
    crop_size=224,
    convert_rgb=True,
    square=False,
)
_QWEN = _Processor(
    mean_std=CLIP,
    resample=3,
    size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    convert_rgb=True,
    squares=2,
)
_GLM = dataclasses.replace(
    _QWEN,
    size={"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000},
    limits="frames",
)
# Of each frame of a clip. Classes of image processors have variants for Pillow, of videos none.
_VIDEOMAE = dataclasses.replace(
    _CLIP_LIKE,
    mean_std=HALVES,
    resample=2,
    convert_rgb=False,
    refused={"do_sample_frames": "which frames it takes depends on the video's rate"},
)
_VIVIT = dataclasses.replace(
    _VIDEOMAE, size={"shortest_edge": 256}, rescale_factor=1 / 127.5, offset=True
)
_PROCESSORS = {
    "ViTImageProcessor": _Processor(mean_std=HALVES, resample=2, size=_SQUARE),
    "DeiTImageProcessor": _Processor(
        mean_std=HALVES,
        resample=3,
        size={"height": 256, "width": 256},
        crop=True,
        crop_size=224,
    ),
    "BitImageProcessor": _CLIP_LIKE,
    "BlipImageProcessor": _Processor(
        mean_std=CLIP, resample=3, size={"height": 384, "width": 384}, convert_rgb=True
    ),
    "ChineseCLIPImageProcessor": _CLIP_LIKE,
    "CLIPImageProcessor": _CLIP_LIKE,
    "BeitImageProcessor": _Processor(mean_std=HALVES, resample=3, size=_SQUARE, crop_size=224),
    "SiglipImageProcessor": _Processor(
        mean_std=HALVES, resample=3, size=_SQUARE, convert_rgb=True, square=False
    ),
    "DINOv3ViTImageProcessor": _Processor(
        mean_std=IMAGENET, resample=2, size=_SQUARE, rescale_first=True, pillow=False
    ),
    "VideoMAEImageProcessor": _VIDEOMAE,
    "VideoMAEVideoProcessor": dataclasses.replace(_VIDEOMAE, pillow=False),
    "VJEPA2VideoProcessor": dataclasses.replace(
        _VIDEOMAE, mean_std=IMAGENET, crop_size=256, pillow=False, of_crop=(256, 224)
    ),
    "VivitImageProcessor": dataclasses.replace(_VIVIT, pillow_only=True),
    "VivitVideoProcessor": dataclasses.replace(_VIVIT, pillow=False),
    "Siglip2ImageProcessor": _Processor(mean_std=HALVES, resample=2, size={}, patches=True),
    "Qwen2VLImageProcessor": _QWEN,
    "Glm4vImageProcessor": _GLM,
    "Glm46VImageProcessor": _GLM,
    "PixtralImageProcessor": dataclasses.replace(
        _QWEN, size={"longest_edge": 1024}, squares=1, patch=16, limits="sides"
    ),
    "CohereCompassImageProcessor": _QWEN,
    "Cosmos3EdgeImageProcessor": dataclasses.replace(
        _QWEN,
        mean_std=HALVES,
        size={"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
        patch=16,
        limits="frames",
        frames=1,
    ),
    "HunYuanVLImageProcessor": dataclasses.replace(
        _QWEN,
        own_resample=True,
        size={"shortest_edge": 512 * 512, "longest_edge": 2048 * 2048},
        patch=16,
    ),
    "PaddleOCRVLImageProcessor": dataclasses.replace(
        _QWEN, size={"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}
    ),
    "FlavaImageProcessor": _Processor(
        mean_std=CLIP,
        resample=3,
        size=_SQUARE,
        crop=True,
        crop_size=224,
        refused={"return_image_mask": "the model would read masked patches"},
    ),
    "Ernie4_5_VLMoeImageProcessor": dataclasses.replace(
        _QWEN, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 6177}
    ),
    "VideoLlama3ImageProcessor": dataclasses.replace(_QWEN, mean_std=HALVES, squares=1),
    "Gemma4ImageProcessor": dataclasses.replace(
        _QWEN,
        mean_std=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        size={},
        squares=3,
        patch=16,
        limits="tokens",
        merge="pooling_kernel_size",
        normalize=False,
    ),
    "SamImageProcessor": _Processor(
        mean_std=IMAGENET,
        resample=2,
        size={"longest_edge": 1024},
        convert_rgb=True,
        pad=1024,
    ),
    "Sam2ImageProcessor": _Processor(
        mean_std=IMAGENET,
        resample=2,
        size={"height": 1024, "width": 1024},
        convert_rgb=True,
        pillow=False,
    ),
    "Sam3ImageProcessor": _Processor(
        mean_std=HALVES,
        resample=2,
        size={"height": 1008, "width": 1008},
        convert_rgb=True,
        pillow=False,
    ),
    "OwlViTImageProcessor": _Processor(
        mean_std=CLIP,
        resample=3,
        size={"height": 768, "width": 768},
        crop_size=768,
        convert_rgb=True,
    ),
    "DPTImageProcessor": _Processor(
        mean_std=HALVES,
        resample=3,
        size={"height": 384, "width": 384},
        multiple="ensure_multiple_of",
        refused={
            "keep_aspect_ratio": "sizes depend on the image",
        },
    ),
    "Gemma3ImageProcessor": _Processor(
        mean_std=HALVES,
        resample=2,
        size=_SQUARE,
        convert_rgb=True,
        refused={"do_pan_and_scan": "it cuts an image into several"},
    ),
    "GotOcr2ImageProcessor": _Processor(
        mean_std=CLIP,
        resample=3,
        size={"height": 384, "width": 384},
        convert_rgb=True,
        refused={"crop_to_patches": "it cuts an image into several"},
    ),
}
# Processors whose models read several images, or another one, for each: why none is read
_TILES = "it cuts an image into tiles, whose number depends on the image"
_OTHERS = {
    "LlavaNextImageProcessor": _TILES,
    "LlavaOnevisionImageProcessor": _TILES,
    "Idefics2ImageProcessor": "the size depends on the image, and it splits images into several",
    "JanusImageProcessor": "it pads to a square with the mean of its colours, on both sides",
    "Llama4ImageProcessor": _TILES,
    "Phi4MultimodalImageProcessor": _TILES,
    "Idefics3ImageProcessor": "it resizes an image twice, and splits it into several",
    "SmolVLMImageProcessor": "it resizes an image twice, and splits it into several",
    "Kimi_K25ImageProcessor": "it fits images into a number of patches, and pads them to squares",
    "SLANeXtImageProcessor": "it resizes by whole numbers, as OpenCV does, and pads to a square",
    "Owlv2ImageProcessor": "it pads to a square, and blurs before it resizes",
}
# models/auto: the processor of a model whose file names none
_MODEL_TYPES = {
    "vit": "ViTImageProcessor",
    "videomae": "VideoMAEImageProcessor",
    "vit_mae": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "beit": "BeitImageProcessor",
    "data2vec-vision": "BeitImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
    "blip": "BlipImageProcessor",
    "blip-2": "BlipImageProcessor",
    "chinese_clip": "ChineseCLIPImageProcessor",
    "clip": "CLIPImageProcessor",
    "clipseg": "ViTImageProcessor",
    "git": "CLIPImageProcessor",
    "kosmos-2": "CLIPImageProcessor",
    "flava": "FlavaImageProcessor",
    "got_ocr2": "GotOcr2ImageProcessor",
    "qianfan_ocr": "GotOcr2ImageProcessor",
    "cosmos3_edge": "Cosmos3EdgeImageProcessor",
    "hunyuan_vl": "HunYuanVLImageProcessor",
    "paddleocr_vl": "PaddleOCRVLImageProcessor",
    "slanext": "SLANeXtImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip2": "Siglip2ImageProcessor",
    "sam": "SamImageProcessor",
    "sam_hq": "SamImageProcessor",
    "sam3": "Sam3ImageProcessor",
    "owlvit": "OwlViTImageProcessor",
    "dpt": "DPTImageProcessor",
    "gemma3": "Gemma3ImageProcessor",
}


def from_preprocessor_config(
    config: JsonObject,
    *,
    backend: str,
    model_type: str | None,
    image_size: Size | None,
) -> JsonDict:
    """Fields of `Steps`, as transformers reads the file; see `Preprocessing.from_huggingface`.

    A missing key means the processor's own default; a key that is null switches its step off.
    """
    if backend not in ("torchvision", "pil"):
        raise ConflictingFact(f"backend = {backend!r} is not one of torchvision, pil.")
    if config.get("feature_extractor_type") == _AST:
        return _of_sounds(config)
    name = _processor_name(config, model_type)
    processor = _PROCESSORS[name]
    # Those of any size pad batches only.
    padding = processor.pad or processor.squares
    for key in ("do_center_crop",) if padding else ("do_pad", "use_square_size"):
        if config.get(key):
            raise NotRepresentable(f"{key} of {name} is not supported.")
    for key, why in processor.refused.items():
        if config.get(key):
            raise NotRepresentable(f"{key} of {name} is not supported: {why}.")
    if processor.of_crop:  # whatever size the file has
        (crop, _), (whole, part) = _crop_size(config, processor), processor.of_crop
        config = {**config, "size": {"shortest_edge": int(crop * whole / part)}}
    sizes = _sizes(config, name, image_size)
    # One number serves all channels that the other list names.
    mean = config.get("image_mean", processor.mean_std[0])
    std = config.get("image_std", processor.mean_std[1])
    listed = [len(values) for values in (mean, std) if isinstance(values, list | tuple)]
    channels = max(listed, default=3)
    normalize = bool(config.get("do_normalize", processor.normalize))
    rescale = bool(config.get("do_rescale", True))
    factor = config.get("rescale_factor", processor.rescale_factor)
    if processor.rescale_first and not rescale:
        raise NotRepresentable(f"{name} cannot normalise without do_rescale.")
    code, interpolation = config.get("resample", processor.resample), "bilinear"
    if processor.own_resample:
        code = processor.resample
    if sizes["resize"] != "none":
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code < len(_RESAMPLE):
            raise ConflictingFact(
                f"resample = {code!r} is not the number of a filter of Pillow.",
                evidence={"known": ", ".join(f"{i} {name}" for i, name in enumerate(_RESAMPLE))},
            )
        interpolation = _RESAMPLE[code]
    if processor.rescale_first:
        arithmetic = "transformers_float"
    else:
        on_pillow = processor.pillow_only or (backend == "pil" and processor.pillow)
        arithmetic = "transformers_pil" if on_pillow else "transformers"
    means = numbers(mean, "image_mean", channels) if normalize else (0.0,) * channels
    if processor.offset and rescale and (processor.pillow is False or config.get("offset", True)):
        means, normalize = tuple(each + 1 for each in means), True
        std = std if config.get("do_normalize", processor.normalize) else 1.0
    return {
        **sizes,
        "mean": means,
        "std": numbers(std, "image_std", channels) if normalize else (1.0,) * channels,
        "rescale_factor": positive(factor, "rescale_factor") if rescale else None,
        "normalize": normalize,
        "interpolation": interpolation,
        "backend": arithmetic,
        # `load_image`, through which a path goes, leaves no alpha that do_convert_rgb could see.
        "transparency": "key" if config.get("do_convert_rgb", processor.convert_rgb) else "drop",
    }


def _of_sounds(config: JsonObject) -> JsonDict:
    if (rate := config.get("sampling_rate", SAMPLE_RATE)) != SAMPLE_RATE:
        raise NotRepresentable(f"Recordings of {rate} samples a second are not supported.")
    (filters,) = whole_numbers(config.get("num_mel_bins", 128), "num_mel_bins", 1)
    (times,) = whole_numbers(config.get("max_length", 1024), "max_length", 1)
    normalize = bool(config.get("do_normalize", True))
    mean = numbers(config.get("mean", -4.2677393), "mean", 1)
    deviation = positive(config.get("std", 4.5689974), "std")
    return {
        "image_size": (filters, times),
        "mean": mean if normalize else (0.0,),
        "std": (2 * deviation if normalize else 1.0,),  # it divides by twice the deviation
        "normalize": normalize,
        "interpolation": "bilinear",
        "resize": "none",
        "resize_size": None,
        "crop": False,
        "backend": "kaldi",
    }


def of_any_size(config: JsonObject, model_type: str | None) -> bool:
    """Whether the file's processor is one that keeps the shape of images, for models of any."""
    try:
        return bool(_PROCESSORS[_processor_name(config, model_type)].squares)
    except (MissingFact, NotRepresentable):
        return False


def _processor_name(config: JsonObject, model_type: str | None) -> str:
    """The class that AutoImageProcessor takes: the file's, its old extractor's, the model's."""
    legacy = str(config.get("feature_extractor_type") or "")
    named = config.get("image_processor_type") or config.get("video_processor_type")
    named = named or legacy.replace("FeatureExtractor", "ImageProcessor")
    name = str(named or _MODEL_TYPES.get(str(model_type), ""))
    name = name.removesuffix("Fast").removesuffix("Pil")
    if not name:
        raise MissingFact(
            "The preprocessing file names no image processor.",
            evidence={"keys": ", ".join(sorted(config)) or "none", "model_type": model_type},
            hint='write one into it, e.g. "image_processor_type": "ViTImageProcessor".',
        )
    if name not in _PROCESSORS:
        why = f": {_OTHERS[name]}" if name in _OTHERS else ""
        raise NotRepresentable(
            f"Images processed by {name} are not supported{why}.",
            evidence={"supported": ", ".join(sorted(_PROCESSORS))},
        )
    return name


def _sizes(config: JsonObject, name: str, image_size: Size | None) -> JsonDict:
    """The sizes of resizing and cropping; `image_size` is the model's."""
    processor = _PROCESSORS[name]
    any_size = processor.squares and config.get("do_resize", True)
    if any_size and image_size:
        check_kept(config, name, image_size)
    resize, resize_size = ("squash", image_size) if any_size else _resize(config, processor)
    crop = bool(config.get("do_center_crop", processor.crop))
    pad = bool(processor.pad and config.get("do_pad", True))
    if pad:
        image_size = _stated_size(config.get("pad_size") or processor.pad, "pad_size")
    elif crop:
        image_size = _crop_size(config, processor)
    elif resize == "squash":
        image_size = resize_size
    if image_size is None or (resize in ("shortest", "longest") and not crop and not pad):
        raise MissingFact(
            "The size of the processed images depends on the image itself.",
            evidence={"processor": name, "size": config.get("size"), "do_center_crop": crop},
        )
    sizes = {"resize": resize, "resize_size": resize_size, "crop": crop, "image_size": image_size}
    sizes["pad"] = pad
    if resize != "patches":
        return sizes
    (patch_size,) = whole_numbers(config.get("patch_size", 16), "patch_size", 1)
    (most,) = whole_numbers(config.get("max_num_patches", 256), "max_num_patches", 1)
    return {**sizes, "patch_size": patch_size, "max_patches": most}


def _crop_size(config: JsonObject, processor: _Processor) -> Size:
    crop_size = config.get("crop_size", processor.crop_size)
    if crop_size is None:
        raise MissingFact("do_center_crop is set, and crop_size is not.")
    return _stated_size(crop_size, "crop_size")


def check_kept(config: JsonObject, name: str, image_size: Size) -> None:
    """Refuse a size that the processor would not keep: `smart_resize`, or Pixtral's own."""
    processor = _PROCESSORS[name]
    patch = _stated_size(config.get("patch_size") or processor.patch, "patch_size")
    (side,) = whole_numbers(config.get(processor.merge, processor.squares), processor.merge, 1)
    height, width = patch[0] * side, patch[1] * side
    fits = image_size[0] % height == image_size[1] % width == 0
    size = config.get("size") or processor.size
    if not isinstance(size, Mapping):
        raise ConflictingFact(f"size = {size!r} should be an object with limits.")
    if processor.limits == "tokens":
        (most,) = whole_numbers(config.get("max_soft_tokens", 280), "max_soft_tokens", 1)
        fits = fits and math.prod(image_size) <= most * height * width
    elif processor.limits == "sides":
        longest = _stated_size(size.get("longest_edge") or size, "size")
        fits = fits and image_size[0] <= longest[0] and image_size[1] <= longest[1]
    else:
        said = config if processor.limits == "pixels" else {}  # Qwen's has older names, too
        least, limit = (
            positive(said.get(old) or size.get(edge), edge)
            for old, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
        )
        frames = 1
        if processor.limits == "frames":
            (frames,) = whole_numbers(
                config.get("temporal_patch_size", processor.frames), "frames", 1
            )
        fits = fits and least <= frames * math.prod(image_size) <= limit
    if not fits:
        raise NotRepresentable(
            f"{name} would give an image of {size_text(image_size)} another size.",
            evidence={
                "multiples of": size_text((height, width)),
                "size": dict(size),
                "min_pixels, max_pixels": f"{config.get('min_pixels')}, {config.get('max_pixels')}",
            },
            hint="state an image_size that it keeps.",
        )


def _resize(config: JsonObject, processor: _Processor) -> tuple[str, Size | None]:
    if not config.get("do_resize", True):
        return "none", None
    if processor.patches:
        return "patches", None
    size = config.get("size", processor.size)
    square = bool(config.get("default_to_square", processor.square))
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
    if isinstance(size, Mapping):
        size = {side: pixels for side, pixels in size.items() if pixels is not None}
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        (edge,) = whole_numbers(size["shortest_edge"], "size.shortest_edge", 1)
        return "shortest", (edge, edge)
    if processor.pad:  # which knows no other size
        if not isinstance(size, Mapping) or set(size) != {"longest_edge"}:
            raise NotRepresentable(f"size = {size!r} is not supported; longest_edge is.")
        (edge,) = whole_numbers(size["longest_edge"], "size.longest_edge", 1)
        return "longest", (edge, edge)
    height, width = _stated_size(size, "size")
    (of,) = whole_numbers(config.get(processor.multiple) or 1, processor.multiple, 1)
    return "squash", (round(height / of) * of, round(width / of) * of)


def _stated_size(size: object, name: str) -> Size:
    if isinstance(size, Mapping):
        if set(size) != {"height", "width"}:
            raise NotRepresentable(
                f"{name} = {dict(size)} is not supported.",
                hint="height and width, or shortest_edge, are.",
            )
        size = (size["height"], size["width"])
    return height_width(size, name)


def to_preprocessor_config(steps: Steps) -> JsonDict:
    """The file that says the same, as far as transformers can.

    Raises:
        NotRepresentable: transformers has no such resizing.
    """
    if steps.of_sounds:
        filters, times = steps.image_size
        return {
            "feature_extractor_type": _AST,
            "feature_size": 1,
            "sampling_rate": SAMPLE_RATE,
            "num_mel_bins": filters,
            "max_length": times,
            "do_normalize": steps.normalize,
            "mean": steps.mean[0],
            "std": steps.std[0] / 2,
        }
    if steps.resize == "cut":  # nearly the same, where it is square
        square = len(set(steps.image_size)) == 1
        steps = dataclasses.replace(steps, resize="shortest" if square else "cover")
    if steps.resize in ("cover", "border") or steps.interpolation in ("box", "hamming"):
        raise NotRepresentable(
            f"transformers cannot express this resizing: {steps.resize} with "
            f"{steps.interpolation}.",
            evidence={"from": steps.origin},
        )
    foreign = not steps.backend.startswith("transformers")
    named = "DeiTImageProcessor" if steps.cuts else "ViTImageProcessor"
    if steps.backend == "transformers_float":
        named = "DINOv3ViTImageProcessor"
    elif steps.resize == "patches":
        named = "Siglip2ImageProcessor"
    elif steps.resize == "shortest":
        named = "BitImageProcessor"
    elif steps.pad:
        named = "SamImageProcessor"
    config: JsonDict = {
        "image_processor_type": named,
        "do_resize": steps.resize != "none",
        "resample": _RESAMPLE.index(steps.interpolation),
        "do_center_crop": steps.cuts,
        "do_rescale": steps.rescale_factor is not None,
        "do_normalize": steps.normalize,
        "image_mean": list(steps.mean),
        "image_std": list(steps.std),
        # Other projects open any image as RGB; a processor left alone refuses grey ones.
        "do_convert_rgb": steps.transparency != "drop" or (foreign and steps.channels == 3),
    }
    if steps.resize_size is not None:
        height, width = steps.resize_size
        config["size"] = {"height": height, "width": width}
        if steps.resize in ("shortest", "longest"):
            config["size"] = {f"{steps.resize}_edge": height}
    if steps.pad:
        height, width = steps.image_size
        config |= {"do_pad": True, "pad_size": {"height": height, "width": width}}
    if steps.cuts:
        height, width = steps.image_size
        config["crop_size"] = {"height": height, "width": width}
    if steps.rescale_factor is not None:
        config["rescale_factor"] = steps.rescale_factor
    if steps.resize == "patches":
        config |= {"patch_size": steps.patch_size, "max_num_patches": steps.max_patches}
    return config
