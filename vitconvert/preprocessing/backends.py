"""How projects compute with pixels: the words in which a preprocessing is stated."""

from dataclasses import dataclass

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
_TENSOR_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
RESIZES = (
    "shortest",  # the shortest side to resize_size, the other truncated (torchvision, transformers)
    "cover",  # the aspect ratio kept: the smallest size that covers resize_size, rounded (timm)
    "border",  # the aspect ratio kept: the largest size inside resize_size, rounded (timm)
    "longest",  # the longest side to resize_size, the other rounded half up (Segment Anything)
    "squash",  # both sides to resize_size
    "cut",  # the largest middle of resize_size's aspect ratio, squashed to it (KerasHub)
    "patches",  # the aspect ratio nearly kept: as many patches as SigLIP 2 allows
    "none",  # the image already has its size
)
TRANSPARENCIES = (
    "drop",  # the alpha channel is ignored: Pillow's convert("RGB")
    "white",  # composed over white
    # The alpha channel is ignored, and an image with one transparent colour (of a GIF or a PNG's
    # tRNS, which Pillow's convert("RGB") keeps) is composed over white: transformers
    "key",
)

SAMPLE_RATE = 16_000  # of recordings, a second

# Mean and standard deviation of each channel, which several projects share
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How one project computes with pixels."""

    resize: str  # on "pil" images, "uint8" tensors or "float" tensors, or by Keras' "weights"
    interpolations: tuple[str, ...] = _TENSOR_INTERPOLATIONS
    antialias: bool = True
    truncate: bool = False  # to whole numbers after resizing, towards zero
    crop_rounding: str = "down"  # of an offset k + 1/2: "down", or to the "even" neighbour
    pad_first: bool = False  # an odd row or column of padding goes first
    converts_last: bool = False  # to RGB after resizing and padding, which changes palettes, CMYK
    black_border: bool = False  # for resize "border"; timm's border has the mean colour
    upright: bool  # EXIF orientation is applied
    opens: str = "pillow"  # or "opencv": whose words for other modes differ
    numbers: str  # "divide", "double", "first", "fused" or "affine": see `pixels.normalised`


BACKENDS = {
    # torchvision.transforms on Pillow images: timm, torchvision, DINO, MAE, jeonsworld. They do
    # not read EXIF. Source: timm 1.0.31, torchvision 0.29.2.
    "torchvision": Backend(
        resize="pil",
        interpolations=INTERPOLATIONS,
        crop_rounding="even",
        upright=False,
        numbers="divide",
    ),
    # OpenAI CLIP, clip.py; open_clip 3.3, transform.py: Pillow images of any mode.
    "open_clip": Backend(
        resize="pil",
        interpolations=("bilinear", "bicubic"),
        crop_rounding="even",
        converts_last=True,
        black_border=True,
        upright=False,
        numbers="divide",
    ),
    # transformers 5.23, image_processing_backends.py; `load_image` applies the EXIF orientation.
    "transformers": Backend(resize="uint8", upright=True, numbers="fused"),
    "transformers_pil": Backend(
        resize="pil",
        interpolations=INTERPOLATIONS,
        pad_first=True,
        upright=True,
        numbers="double",
    ),
    # DINOv3ViTImageProcessor rescales before it resizes, "to preserve order of transforms".
    "transformers_float": Backend(resize="float", upright=True, numbers="first"),
    # tf.image.resize without antialias: google-research/vision_transformer, input_pipeline.py;
    # big_vision, pp/ops_image.py, which casts back to uint8. Not compared with TensorFlow itself.
    # No "bicubic": TensorFlow's cubic filter has a = -0.5, torch's has -0.75.
    "tensorflow": Backend(
        resize="float",
        interpolations=("bilinear",),
        antialias=False,
        upright=False,
        numbers="fused",
    ),
    "big_vision": Backend(
        resize="float",
        interpolations=("bilinear",),
        antialias=False,
        truncate=True,
        upright=False,
        numbers="divide",
    ),
    # KerasHub 0.32, image_converter.py, of images that were read as whole numbers.
    "keras": Backend(resize="weights", antialias=False, upright=False, numbers="affine"),
    "keras_antialias": Backend(resize="weights", upright=False, numbers="affine"),
    # segment-anything 1.0, ResizeLongestSide and SamPredictor: torchvision on a Pillow image, of
    # what `cv2.imread` gives, as its scripts have it (scripts/amg.py).
    "segment_anything": Backend(
        resize="pil",
        interpolations=("bilinear",),
        upright=True,
        numbers="fused",
        opens="opencv",
    ),
    # mmpretrain 1.2, `ImageClassificationInferencer`, with Pillow's resizing; mmcv 2.1 opens images
    # with `cv2.imread`.
    "mmpretrain": Backend(
        resize="pil",
        interpolations=INTERPOLATIONS,
        crop_rounding="even",
        upright=True,
        numbers="fused",
        opens="opencv",
    ),
    # A recording and no image: `transform.spectrogram`
    "kaldi": Backend(resize="float", upright=False, numbers="affine"),
}
