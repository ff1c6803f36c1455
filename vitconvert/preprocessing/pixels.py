"""The arithmetic that turns an image into numbers, as each project's own code does it.

Projects that agree on "resize to 256, crop 224, normalise" still disagree on pixels: whether
the resizing runs on a Pillow image or on a tensor, where an odd crop falls, when the division by
255 happens. `backends.BACKENDS` states these choices; the functions below follow them.

Letters: C channels, H height, W width. Sizes are (height, width).
"""

import math
import platform
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import InputMismatch, NotRepresentable, UnsafeFile, size_text
from vitconvert.preprocessing.backends import Backend
from vitconvert.preprocessing.steps import Size

Pixels = NDArray[np.uint8] | NDArray[np.float32]
_Numbers = NDArray[np.float64]

# Of a resized image: one of 1 x 100000 is a small file, but huge once its shortest side is 224.
MAX_PIXELS = 2**25

# An image that is shrunk by a whole factor before it is resized stays this much larger than the
# result, as in Pillow's own `thumbnail`.
MARGIN = 2


def resized_size(source: Size, *, resize: str, size: Size) -> Size:
    """The size that an image of size `source` is resized to.

    Raises:
        InputMismatch: A side would have no pixels.
        UnsafeFile: The result would not fit in memory.
    """
    height, width = source
    if resize == "none":
        result = source
    elif resize in ("squash", "cut"):
        result = size
    elif resize == "shortest":
        long = int(size[0] * max(source) / min(source))
        result = (long, size[0]) if width <= height else (size[0], long)
    elif resize == "longest":
        scale = size[0] / max(source)
        result = int(height * scale + 0.5), int(width * scale + 0.5)
    else:
        ratios = height / size[0], width / size[1]
        ratio = min(ratios) if resize == "cover" else max(ratios)
        result = round(height / ratio), round(width / ratio)
    if min(result) < 1:
        raise InputMismatch(
            f"A {size_text(source)} image is too narrow to be resized into {size_text(size)}.",
            evidence={"resized": size_text(result)},
        )
    if result[0] * result[1] > MAX_PIXELS:
        raise UnsafeFile(
            f"Resizing a {size_text(source)} image would make {result[0] * result[1]} pixels.",
            evidence={"resize": f"{resize} to {size_text(size)}", "limit": f"{MAX_PIXELS} pixels"},
        )
    return result


def size_in_patches(source: Size, *, patch_size: int, max_patches: int) -> Size:
    """The largest size in whole patches that keeps the aspect ratio, but for rounding up.

    transformers 5.23, `get_image_size_for_max_num_patches`: the scale is found by bisection, with
    these bounds and this precision.
    """

    def grid(scale: float) -> Size:
        height, width = (max(1, math.ceil(side * scale / patch_size)) for side in source)
        return height, width

    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        scale = (low + high) / 2
        if math.prod(grid(scale)) <= max_patches:
            low = scale
        else:
            high = scale
    height, width = grid(low)
    return height * patch_size, width * patch_size


def resized_on_pil(image: Image.Image, size: Size, interpolation: str) -> Image.Image:
    """Resize with Pillow, whose filters always antialias."""
    return image.resize((size[1], size[0]), Image.Resampling[interpolation.upper()])


def padded_on_pil(image: Image.Image, size: Size) -> Image.Image:
    """Pad to at least `size` with zeros: black, a palette's first colour, or white in CMYK."""
    height, width = max(size[0], image.height), max(size[1], image.width)
    if (height, width) == (image.height, image.width):
        return image
    canvas = Image.new(image.mode, (width, height))
    if palette := image.getpalette():
        canvas.putpalette(palette)
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def resized_middle(
    image: Image.Image,
    source: Size,
    size: Size,
    interpolation: str,
    *,
    kept: Size,
    backend: Backend,
) -> Pixels:
    """The middle of the image resized to `size`: (C, *kept) uint8, nearly equal, but faster.

    `source` is the size of the image before `image_files.shrink`. An image more than `MARGIN`
    times as large as the result is first shrunk by a whole factor.
    """
    vertical, horizontal = (
        _interval(*lengths, backend)
        for lengths in zip(size, kept, source, (image.height, image.width), strict=True)
    )
    (top, bottom), (left, right) = vertical, horizontal
    resample = Image.Resampling[interpolation.upper()]
    box = (left, top, right, bottom)
    return channels_first(image.resize((kept[1], kept[0]), resample, box, MARGIN))


def _interval(
    whole: int, part: int, source: int, available: int, backend: Backend
) -> tuple[float, float]:
    """Begin and end, in the image, of the middle `part` of `whole` resized pixels."""
    # 1, 2, 4 or 8. The decoder rounds sizes up: the last pixel may stand for less than a pixel.
    shrunk = round(source / available)
    start = middle(whole, part, backend)
    to_image = source / whole / shrunk
    return start * to_image, min((start + part) * to_image, available)


def channels_first(image: Image.Image) -> Pixels:
    """A grey or RGB image as (C, H, W) uint8."""
    pixels = np.array(image)  # a copy: torch warns about arrays that cannot be written
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)


def resized_on_tensor(pixels: Pixels, size: Size, interpolation: str, *, antialias: bool) -> Pixels:
    """Resize uint8 or float32 (C, H, W) as torchvision resizes a tensor of that type.

    Half-pixel centres in every mode; "nearest" is torch's `nearest-exact`, as in transformers.
    """
    import torch

    image = torch.from_numpy(pixels)[None]
    if tuple(image.shape[-2:]) == size:
        return pixels
    # torchvision's _do_native_uint8_resize_on_cpu: bilinear takes the detour through float32
    # where it has no vectorised kernel, and the last bit differs.
    vectorised = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    vectorised = vectorised or platform.machine() in ("aarch64", "arm64")
    direct = image.dtype != torch.uint8 or interpolation != "bilinear" or vectorised
    nearest = interpolation == "nearest"
    try:
        result = torch.nn.functional.interpolate(
            image if direct else image.float(),
            size=size,
            mode="nearest-exact" if nearest else interpolation,
            align_corners=None if nearest else False,
            antialias=antialias and not nearest,
        )
    except NotImplementedError as error:
        raise NotRepresentable(
            f"torch {torch.__version__} cannot resize tensors with the {interpolation} filter.",
            hint="a newer torch can.",
        ) from error
    numbers: Pixels = (result if direct else result.round().to(torch.uint8))[0].numpy()
    return numbers


def padded_after(numbers: NDArray[np.float32], size: Size) -> NDArray[np.float32]:
    """(C, H, W) with zeros at the right and below, to `size`."""
    height, width = (after - now for after, now in zip(size, numbers.shape[1:], strict=True))
    return np.pad(numbers, ((0, 0), (0, height), (0, width))) if height or width else numbers


def centred(pixels: Pixels, size: Size, *, fill: tuple[int, ...], backend: Backend) -> Pixels:
    """Crop (C, H, W) to the middle, or pad it with one `fill` value per channel, to `size`."""
    channels, *source = pixels.shape
    larger = [max(pair) for pair in zip(source, size, strict=True)]
    if larger != source:
        canvas = np.empty((channels, *larger), pixels.dtype)
        canvas[:] = np.array(fill, pixels.dtype).reshape(-1, 1, 1)
        top, left = (max(0, -middle(*pair, backend)) for pair in zip(source, size, strict=True))
        canvas[:, top : top + source[0], left : left + source[1]] = pixels
        pixels = canvas
    top, left = (max(0, middle(*pair, backend)) for pair in zip(source, size, strict=True))
    return pixels[:, top : top + size[0], left : left + size[1]]


def middle(whole: int, part: int, backend: Backend) -> int:
    """The first of the middle `part` of `whole` pixels; negative where it is padded."""
    surplus = whole - part
    if surplus < 0:
        return -((backend.pad_first - surplus) // 2)
    # Python's round takes k + 1/2 to the even neighbour, so a surplus of 3 gives 2 and 5 gives 2.
    return round(surplus / 2) if backend.crop_rounding == "even" else surplus // 2


def normalised(
    pixels: Pixels,
    *,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    factor: float | None,
    numbers: str,
) -> NDArray[np.float32]:
    """(pixels * factor - mean) / std in float32, in the order of operations that `numbers` names.

        divide   x / 255, then mean and std
        double   x * factor in float64, rounded to float32, then mean and std
        first    x is already rescaled (before it was resized); then mean and std
        fused    mean and std divided by factor, then (x - mean) / std
        affine   x times factor / std, less mean / std

    Without a factor values stay 0 to 255; without a mean the last step is left out.
    """
    x = pixels.astype(np.float32, order="C")  # a copy; working in place is five times as fast
    if numbers == "affine" and mean is not None and std is not None:
        x *= _per_channel(tuple((factor or 1) / each for each in std))
        x += _per_channel(tuple(-m / each for m, each in zip(mean, std, strict=True)))
        return x
    scale = np.float32(1)
    if numbers == "fused" and factor is not None and mean is not None:
        scale = np.float32(1 / factor)
    elif numbers == "divide":
        x /= np.float32(255)
    elif numbers == "double" and factor is not None:
        x[:] = pixels.astype(np.float64) * factor
    elif numbers in ("fused", "affine") and factor is not None:
        x *= np.float32(factor)
    if mean is not None and std is not None:
        x -= _per_channel(mean) * scale
        x /= _per_channel(std) * scale
    return x


def _per_channel(values: tuple[float, ...]) -> NDArray[np.float32]:
    return np.array(values, np.float32).reshape(-1, 1, 1)


def largest_middle(source: Size, ratio_of: Size) -> tuple[Size, Size]:
    """The largest middle of an image with the aspect ratio of another: its corner and its size."""
    (height, width), (their_height, their_width) = source, ratio_of
    size = (
        max(min(height, int(width * their_height / their_width)), 1),
        max(min(width, int(height * their_width / their_height)), 1),
    )
    return ((height - size[0]) // 2, (width - size[1]) // 2), size


def resized_by_weights(
    pixels: Pixels, size: Size, interpolation: str, *, antialias: bool
) -> Pixels:
    """Resize (C, H, W) as Keras does: weights along each side, then whole numbers, half to even.

    Source: keras 3.15, `keras/src/backend/numpy/image.py`, which follows JAX; TensorFlow's kernels
    are the same. Unlike NumPy's, and like all others, this clips to 0 and 255 and not to what the
    image has. Only on PyTorch, and without antialias, is Keras' cubic another one (a = -0.75).
    """
    if interpolation == "nearest":
        rows, columns = (
            ((np.arange(n, dtype=np.float32) + 0.5) * m / n).astype(np.int64)
            for m, n in zip(pixels.shape[1:], size, strict=True)
        )
        return pixels[:, rows[:, None], columns]
    values = pixels.astype(np.float32)
    for axis, (m, n) in enumerate(zip(pixels.shape[1:], size, strict=True), start=1):
        if m != n:
            # (m, n): what each of m pixels gives to each of n, of which every column sums to 1
            spread = max(m / n, 1.0) if antialias else 1.0
            places = (np.arange(n) + 0.5) * (m / n) - 0.5
            distances = np.abs(places[None, :] - np.arange(m)[:, None]) / spread
            weights = KERNELS[interpolation](distances)
            weights = (weights / weights.sum(axis=0, keepdims=True)).astype(np.float32)
            values = np.moveaxis(np.tensordot(values, weights, axes=(axis, 0)), -1, axis)
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _cubic(x: _Numbers) -> _Numbers:
    """Keys' cubic convolution with a = -0.5."""
    near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


KERNELS: dict[str, Callable[[_Numbers], _Numbers]] = {
    "bilinear": lambda x: np.maximum(0, 1 - x),
    "bicubic": _cubic,
    "lanczos": lambda x: np.where(x <= 3, np.sinc(x) * np.sinc(x / 3), 0),
}
