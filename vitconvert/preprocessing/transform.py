"""An image through all steps: convert, resize, crop, rescale, normalise, pad; or a recording."""

import io
import wave
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import CorruptFile, InputMismatch, SourceError, size_text
from vitconvert.preprocessing import image_files, pixels
from vitconvert.preprocessing.backends import BACKENDS, SAMPLE_RATE, Backend
from vitconvert.preprocessing.steps import Size, Steps

_PLAIN_MODES = ("L", "RGB")  # converting them before or after resizing gives the same pixels
# Of a spectrogram: samples of a window, from one to the next, and of its Fourier transform
_FRAME, _HOP, _POINTS = 400, 160, 512
_PREEMPHASIS, _FLOOR = 0.97, 1.192092955078125e-07
_HINT = f"ffmpeg -i SOUND -ar {SAMPLE_RATE} -ac 1 -c:a pcm_s16le OUT.wav makes one."


Seen = dict[str, pixels.Pixels]


def transformed(
    image: Image.Image | Path | bytes,
    steps: Steps,
    *,
    fast: bool = False,
    max_pixels: int | None = None,
    seen: Seen | None = None,
    tell: Callable[[str], None] | None = None,
    backend: Backend | None = None,
) -> NDArray[np.float32]:
    """The image, open, a file or the content of one, as the model reads it: (C, H, W).

    `seen` gets what it was on the way, "decoded", "resized" and "cropped", unless it is `fast`;
    `max_pixels` is what the user allows; `tell` is called with what of the file is left out;
    `backend` is other arithmetic than the steps name.

    Raises:
        SourceError, CorruptFile: The file cannot be read, or not as an image.
        InputMismatch: The image is too narrow, or of another size when nothing resizes it.
        UnsafeFile: It is so large, or so narrow, that it would exhaust memory.
    """
    if steps.of_sounds:
        if isinstance(image, Image.Image):
            raise InputMismatch("The model reads recordings, and this is an image.")
        return spectrogram(image, steps)
    backend = backend or BACKENDS[steps.backend]
    # Without antialias, or with the nearest pixel, the result would be entirely different; and what
    # is cut out is not the middle of what was resized.
    antialias = backend.antialias and steps.interpolation != "nearest"
    shrunk = fast and antialias and steps.resize_size is not None and steps.resize != "cut"
    with ExitStack() as held:
        if ours := not isinstance(image, Image.Image):
            image = held.enter_context(image_files.open_image(image, max_pixels=max_pixels))
        if tell:
            for fact in image_files.left_out(image, backend):
                tell(fact)
        source = None
        if ours and shrunk:  # read smaller, which no resizing shows
            at_least = pixels.MARGIN * max(steps.resize_size or steps.image_size)
            source = image_files.shrink(image, at_least, upright=backend.upright)
        held.enter_context(
            image_files.memory_for(image, backend, steps.transparency, max_pixels=max_pixels)
        )
        image_files.load(image)
        with image_files.decoding(image_files.path_of(image)):  # no filter takes every mode
            if shrunk:
                values = _nearly_resized(image, source, steps, backend)
            else:
                values = _resized(image, steps, backend, seen, ours=ours)
    if steps.crop:
        fill = (0,) * steps.channels
        if steps.resize == "border" and not backend.black_border:
            # Only timm pads with the mean colour, in its border mode.
            fill = tuple(round(255 * value) for value in steps.mean)
        values = pixels.centred(values, steps.image_size, fill=fill, backend=backend)
    fits = values.shape[1:] == steps.image_size
    if steps.pad:
        fits = all(n <= m for n, m in zip(values.shape[1:], steps.image_size, strict=True))
    if not fits:
        made, read = size_text(values.shape[1:]), size_text(steps.image_size)
        why, hint = (
            f"is {made}, the model reads {read}, and this preprocessing resizes nothing",
            None,
        )
        if steps.resize == "patches":
            why = f"keeps its aspect ratio and becomes {made}, but the model reads {read}"
            hint = (
                f"`vitconvert convert MODEL --image-size {made} -o DIR` makes a model of that size."
            )
        raise InputMismatch(f"The image {why}.", evidence={"from": steps.origin}, hint=hint)
    _keep(seen, "cropped", values)
    rescaled = backend.numbers == "first" and values.dtype == np.uint8
    numbers = pixels.normalised(
        values,
        mean=steps.mean if steps.normalize else None,
        std=steps.std if steps.normalize else None,
        factor=steps.rescale_factor,
        numbers="fused" if rescaled else backend.numbers,
    )
    return pixels.padded_after(numbers, steps.image_size) if steps.pad else numbers


def _keep(seen: Seen | None, step: str, values: Image.Image | pixels.Pixels) -> None:
    if seen is not None:
        if isinstance(values, Image.Image):
            seen[step] = pixels.channels_first(values)
        else:
            seen[step] = values.copy()


def _resized(
    image: Image.Image, steps: Steps, backend: Backend, seen: Seen | None, *, ours: bool = False
) -> pixels.Pixels:
    """Resized with the operations of the source project, on all pixels: uint8 or float32.

    If the image is ours, its memory is needed no longer once it is converted.
    """
    if not backend.converts_last or backend.resize != "pil":  # only Pillow resizes any mode
        original, image = image, _converted(image, steps, backend)
        if ours:
            original.close()
    size = size_resized(steps, (image.height, image.width))
    _keep(seen, "decoded", image)
    if backend.resize == "pil":
        image = pixels.resized_on_pil(image, size, steps.interpolation)
        _keep(seen, "resized", image)
        if backend.converts_last:
            image = _converted(pixels.padded_on_pil(image, steps.image_size), steps, backend)
        return pixels.channels_first(image)
    values = pixels.channels_first(image)
    del image  # two of them and the numbers would take a third more memory
    if backend.resize == "weights":
        if steps.resize == "cut":
            (top, left), (height, width) = pixels.largest_middle(
                (values.shape[1], values.shape[2]), size
            )
            values = values[:, top : top + height, left : left + width]
        values = pixels.resized_by_weights(
            values, size, steps.interpolation, antialias=backend.antialias
        )
        _keep(seen, "resized", values)
        return values
    if backend.resize == "float":
        values = values.astype(np.float32)
    if backend.numbers == "first":
        values *= np.float32(steps.rescale_factor or 1)
    values = pixels.resized_on_tensor(
        values, size, steps.interpolation, antialias=backend.antialias
    )
    values = np.trunc(values) if backend.truncate else values
    _keep(seen, "resized", values)
    return values


def _nearly_resized(
    image: Image.Image, source: Size | None, steps: Steps, backend: Backend
) -> pixels.Pixels:
    """Resized nearly the same, but faster: only what the crop keeps, from fewer pixels: uint8.

    `source` is the size of the image before it was shrunk; None if it was not.
    """
    if backend.converts_last and image.mode not in _PLAIN_MODES:
        return _resized(image, steps, backend, None)
    image = _converted(image, steps, backend)
    source = source or (image.height, image.width)
    height, width = size = size_resized(steps, source)
    kept = min(height, steps.image_size[0]), min(width, steps.image_size[1])
    return pixels.resized_middle(
        image,
        source,
        size,
        steps.interpolation,
        kept=kept if steps.crop else size,
        backend=backend,
    )


def _converted(image: Image.Image, steps: Steps, backend: Backend) -> Image.Image:
    return image_files.converted(
        image,
        channels=steps.channels,
        transparency=steps.transparency,
        upright=backend.upright,
        opens=backend.opens,
    )


def size_resized(steps: Steps, source: Size) -> Size:
    """The size that an image of size `source`, turned as the steps turn it, is resized to.

    Raises:
        InputMismatch, UnsafeFile: There is no such size, or it is too large.
    """
    if steps.patch_size and steps.max_patches:
        return pixels.size_in_patches(
            source, patch_size=steps.patch_size, max_patches=steps.max_patches
        )
    size = steps.resize_size or steps.image_size
    return pixels.resized_size(source, resize=steps.resize, size=size)


@dataclass(frozen=True, kw_only=True)
class ImagePlacement:
    """The place of a model's image in the original one; sizes are (height, width).

    Attributes:
        original: The size of the whole image, once it is turned upright, if the project does so.
        resized: The size of the whole before it is cropped.
        offset: How many of these rows and columns are cut off at the top and at the left; negative
            where rows or columns are added.
        image_size: Of the image that is cut out.
    """

    original: Size
    resized: tuple[float, float]
    offset: tuple[float, float]
    image_size: Size

    def in_original(self, row: float, column: float) -> tuple[float, float]:
        """A place in the image, in pixels from its top left corner, in pixels of the original.

        It lies outside of the original where the image is padded.
        """
        y, x = (
            (place + offset) * whole / resized
            for place, offset, whole, resized in zip(
                (row, column), self.offset, self.original, self.resized, strict=True
            )
        )
        return y, x

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Top, left, bottom and right of the image, in pixels of the original."""
        return (*self.in_original(0, 0), *self.in_original(*self.image_size))


def placement(steps: Steps, original: Size) -> ImagePlacement:
    """The place of the image that these steps make in an original of this size.

    The size is that of the original as the steps turn it: `image_files.size_of`.

    Raises:
        InputMismatch, UnsafeFile: The original cannot be resized.
    """
    size = size_resized(steps, original)
    resized: tuple[float, float] = size
    backend, offset = BACKENDS[steps.backend], (0.0, 0.0)
    if steps.resize == "cut":
        corner, cut = pixels.largest_middle(original, steps.image_size)
        down, across = (made / part for made, part in zip(steps.image_size, cut, strict=True))
        resized = original[0] * down, original[1] * across
        offset = corner[0] * down, corner[1] * across
    elif steps.crop:
        top, left = (
            pixels.middle(*pair, backend) for pair in zip(size, steps.image_size, strict=True)
        )
        offset = top, left
    return ImagePlacement(
        original=original, resized=resized, offset=offset, image_size=steps.image_size
    )


def spectrogram(file: Path | bytes, steps: Steps) -> NDArray[np.float32]:
    """A recording, or its content, as (1, mel filters, times): cut off, or filled with zeros.

    transformers 5.24, `ASTFeatureExtractor` without torchaudio, and `audio_utils.spectrogram`:
    Kaldi's logarithms of mel filters.

    Raises:
        SourceError: There is no such file.
        CorruptFile: It is no WAV file.
        InputMismatch: It is of another rate, of several channels, not of 16 bit, or too short.
    """
    filters, times = steps.image_size
    samples = _samples(file, (times - 1) * _HOP + _FRAME) / np.float32(2**15)
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), _FRAME)[::_HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate((frames[:, :1], frames[:, :-1]), axis=1)
    windowed = (frames - _PREEMPHASIS * before) * np.hanning(_FRAME)
    power = np.abs(np.fft.rfft(windowed, _POINTS).astype(np.complex64), dtype=np.float64) ** 2
    mel = np.log(np.maximum(_FLOOR, mel_filters(filters) @ power.T)).astype(np.float32)
    whole = np.pad(mel, ((0, 0), (0, times - mel.shape[1])))
    if steps.normalize:
        whole = (whole - np.float32(steps.mean[0])) / np.float32(steps.std[0])
    return np.ascontiguousarray(whole[None])


def _samples(file: Path | bytes, most: int) -> NDArray[np.int16]:
    if isinstance(file, Path) and not file.is_file():
        raise SourceError("There is no such file.", evidence={"sound": file})
    path, opening = (file, str(file)) if isinstance(file, Path) else (None, io.BytesIO(file))
    named = {} if path is None else {"sound": path}
    try:
        with (
            image_files.decoding(path, kind="sound"),
            wave.open(opening) as opened,
        ):
            said = (opened.getframerate(), opened.getnchannels(), 8 * opened.getsampwidth())
            content = opened.readframes(most) if said == (SAMPLE_RATE, 1, 16) else b""
    except CorruptFile as error:
        error.hint = _HINT
        raise
    if said != (SAMPLE_RATE, 1, 16):
        found = "{} samples a second, {} channels of {} bit".format(*said)
        wanted = f"{SAMPLE_RATE} samples a second, 1 channel of 16 bit"
        evidence = {**named, "found": found, "wanted": wanted}
        raise InputMismatch("The model reads other recordings.", evidence=evidence, hint=_HINT)
    samples = np.frombuffer(content[: len(content) // 2 * 2], "<i2")
    if len(samples) < _FRAME:
        evidence = {**named, "samples": len(samples), "at least": _FRAME}
        raise InputMismatch("This recording is too short for a spectrogram.", evidence=evidence)
    return samples


def mel_filters(count: int) -> NDArray[np.float64]:
    """(filters, frequencies): triangles on the mel scale, from 20 Hertz to the highest."""
    frequencies = np.arange(_POINTS // 2 + 1) * (SAMPLE_RATE / _POINTS)
    mel = 1127.0 * np.log(1.0 + np.append(frequencies, (20.0, SAMPLE_RATE / 2)) / 700.0)
    ends = np.linspace(float(mel[-2]), float(mel[-1]), count + 2)[:, None]
    rising = (mel[:-2] - ends[:-2]) / (ends[1:-1] - ends[:-2])
    falling = (ends[2:] - mel[:-2]) / (ends[2:] - ends[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling))
