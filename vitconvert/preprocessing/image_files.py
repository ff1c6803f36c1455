"""Opens images, and reads them safely: no program in one is run, and its memory is bounded."""

import io
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vitconvert.errors import (
    CorruptFile,
    NotRepresentable,
    SourceError,
    UnsafeFile,
    VitConvertError,
    nearest,
    size_text,
)
from vitconvert.preprocessing.backends import Backend
from vitconvert.preprocessing.finding import SOUND
from vitconvert.preprocessing.steps import Size
from vitconvert.settings import without_warnings

# Bytes of one image while it is decoded, converted and resized: enough for images of 50
# megapixels, whatever is done with them. Pillow itself refuses more than 179 million pixels. Both
# give way to a number of pixels that the user states.
MOST_MEMORY = 13 * 2**26
_MUCH_MEMORY = 2**28  # images that need so much wait for each other
_one_large_image: AbstractContextManager[object] = threading.Lock()

# What decodes a file, and what it is read as
_DECODERS = {"image": ("Pillow", "an image"), "sound": ("wave", "a WAV file of plain samples")}
_IN_MEMORY = Path("in memory")  # what an image without a file is called
_LAST_UNTURNED = 4  # EXIF orientations 5 to 8 exchange rows and columns

# What brings an image upright, by its EXIF orientation; as Pillow's `exif_transpose`
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(file: Path | bytes, *, max_pixels: int | None = None) -> Image.Image:
    """Open an image file, or its content; its pixels are read when they are asked for.

    Args:
        file: Its path, or its content.
        max_pixels: What the user allows. Pillow's own limit, which it has for the whole process, is
            raised to that.

    Raises:
        SourceError: There is no such file, or it may not be read.
        CorruptFile: It is not an image, or it is damaged.
        UnsafeFile: It declares more pixels than Pillow's limit, or is a program.
    """
    path = file if isinstance(file, Path) else _IN_MEMORY
    if max_pixels and Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, max_pixels)
    with decoding(path):
        if isinstance(file, Path):
            mode = file.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe may block for ever
                raise SourceError("This is not a regular file.", evidence={"image": file})
        image = Image.open(file if isinstance(file, Path) else io.BytesIO(file))
    if image.format == "EPS":
        image.close()
        raise UnsafeFile(
            "This is a PostScript file, which is a program: Pillow has Ghostscript run it.",
            evidence={"image": path},
            hint="save it as PNG.",
        )
    return image


def load(image: Image.Image) -> None:
    """Read the pixels of an image that is open.

    Raises:
        CorruptFile: The file is damaged.
    """
    with decoding(path_of(image)):
        image.load()


@contextmanager
def memory_for(
    image: Image.Image, backend: Backend, transparency: str, *, max_pixels: int | None = None
) -> Iterator[None]:
    """Make sure that there is memory for all that is done with an image inside the block.

    Large ones wait for each other, so that threads do not need as much as many times.

    Args:
        image: Open; its pixels may still be in the file.
        backend: What is done with it.
        transparency: One of backends.TRANSPARENCIES.
        max_pixels: What the user allows, whatever memory that takes; by default, as many as
            MOST_MEMORY holds.

    Raises:
        UnsafeFile: It has more pixels, or takes too much memory, whoever waits.
    """
    # The most that is held at a time for each pixel: Pillow has three channels in four bytes. An
    # image is held while it is turned and converted, and, for "white", the background and both
    # together; then as an array of uint8, and of float32.
    stored = 1 if image.mode in ("1", "L", "P") else 4
    turned = stored if backend.upright else 0
    composed = 12 if transparency != "drop" and _is_transparent(image) else 0
    arrays = {"pil": 0, "uint8": 4 + 3 + 4, "float": 3 + 12, "weights": 3 + 12 + 12}
    per_pixel = max(stored + turned + composed + 4, arrays[backend.resize])
    pixels = image.width * image.height
    needed, most = pixels * per_pixel, max_pixels or MOST_MEMORY // per_pixel
    if pixels > most:
        raise UnsafeFile(
            "The image has more pixels than are allowed.",
            evidence={
                "image": path_of(image),
                "size": f"{size_text((image.height, image.width))} = {pixels:,} pixels",
                "allowed": f"{most:,} pixels",
                "memory": f"about {-(-needed // 10**6):,} MB",
            },
            hint=f"{allowing(pixels)} allows it; or save it smaller.",
        )
    with _one_large_image if needed > _MUCH_MEMORY else nullcontext():
        yield


def share_turns(turns: AbstractContextManager[object]) -> None:
    """Have large images wait for those of other processes, which have the same lock."""
    global _one_large_image
    _one_large_image = turns


def allowing(pixels: int) -> str:
    """The option by which a user allows so many pixels."""
    return f"--max-image-pixels {pixels} (in Python, max_image_pixels={pixels})"


def path_of(image: Image.Image) -> Path:
    """What an open image is called in messages."""
    filename = getattr(image, "filename", "")
    return Path(filename) if filename else _IN_MEMORY


def left_out(image: Image.Image, backend: Backend) -> Iterator[str]:
    """What the 8-bit image that a model reads shows no more of an open file, in words.

    Pillow's convert("RGB") does this, and so every project whose users open files with Pillow.
    """
    if backend.opens == "opencv" and image.mode.startswith("I"):
        yield "16-bit numbers, of which the upper 8 bits are read"
    elif image.mode == "F":
        yield "float numbers become whole ones from 0 to 255, so that all from 0 to 1 are black"
    elif image.mode.startswith("I"):
        yield "16-bit or 32-bit numbers, of which all above 255 are white"
    if image.format == "MPO":  # of a camera, which adds a preview
        return
    try:
        several = getattr(image, "is_animated", False)
    except Exception:  # the second image is damaged
        image.seek(0)
        several = True
    if several:
        yield "the file has several images, of which the first is read"


def shrink(image: Image.Image, at_least: int, *, upright: bool) -> Size:
    """Have an open file read smaller where that is faster; the size of the whole image.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if both sides keep `at_least` pixels: the high
    frequencies are never computed. Other files are read as they are. So is an image that must be
    turned `upright` and whose sides are not multiples of 8: the decoder rounds sizes up at the
    right and the bottom, and turning would move these edges.
    """
    with decoding(path_of(image)):
        width, height = image.size
        orientation = _orientation(image, upright=upright)
        if orientation == 1 or width % 8 == height % 8 == 0:
            image.draft(None, (at_least, at_least))
        return (width, height) if orientation > _LAST_UNTURNED else (height, width)


def size_of(image: Image.Image, *, upright: bool) -> Size:
    """Of an open image, once it is turned `upright`; its pixels are not read.

    Raises:
        CorruptFile: What says how it is turned is damaged.
    """
    with decoding(path_of(image)):
        turned = _orientation(image, upright=upright) > _LAST_UNTURNED
        return image.size if turned else (image.height, image.width)


def is_turned(image: Image.Image, *, upright: bool) -> bool:
    """Whether an open image still has to be turned, or flipped, to be `upright`.

    Raises:
        CorruptFile: What says how it is turned is damaged.
    """
    with decoding(path_of(image)):
        return _orientation(image, upright=upright) != 1


def _orientation(image: Image.Image, *, upright: bool) -> int:
    """The EXIF orientation that is still to be applied: Pillow turns TIFFs itself, size and all."""
    if not upright or image.format == "TIFF":
        return 1
    stated = image.getexif().get(ExifTags.Base.Orientation, 1)
    return int(stated) if stated in _TURNS else 1


def _names_like(path: Path) -> list[str]:
    """Three files beside the place of one that is not there, by their names."""
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 (as names alone)
    except OSError:
        return []
    return [str(path.with_name(name)) for name in nearest(path.name, names, 3)]


@contextmanager
def decoding(path: Path | None, *, kind: str = "image") -> Iterator[None]:
    """Turn whatever a decoder raises inside into an error that names the file.

    Of which type that is depends on the decoder and on the damage: Pillow 13 alone raises ten for
    files of fourteen formats, and `wave` others. What Pillow only warns of (tags that are damaged,
    of a file whose pixels it reads) names no file, and is no error where warnings are errors.
    """
    named = {} if path is None else {kind: path}
    by, thing = _DECODERS[kind]
    try:
        with without_warnings(UserWarning):
            yield
    except VitConvertError:
        raise
    except MemoryError as error:
        raise UnsafeFile("There is not enough memory for this file.", evidence=named) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnsafeFile(
            "The image declares more pixels than can be decoded safely.",
            evidence={**named, "Pillow": error},
            hint="--max-image-pixels N (in Python, max_image_pixels=N) allows as many pixels as "
            "you trust the file and this machine with.",
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # it is the system that refuses
            near = _names_like(path) if path and isinstance(error, FileNotFoundError) else []
            hint = f"did you mean {' or '.join(near)}?" if near else None
            raise SourceError(f"{error.strerror}.", evidence=named, hint=hint) from error
        reason = str(error) or type(error).__name__
        if path is not None:
            reason = reason.replace(str(path), path.name)
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image in a format that Pillow knows"
            if path is not None and path.suffix.lower() == SOUND:
                reason = "a recording, which models of spectrograms read"
        raise CorruptFile(
            f"This file cannot be read as {thing}.", evidence={**named, by: reason}
        ) from error


def converted(
    image: Image.Image, *, channels: int, transparency: str, upright: bool, opens: str = "pillow"
) -> Image.Image:
    """The image as 8-bit RGB, or as grey for one channel.

    `opens` is one of `Backend.opens`.

    Raises:
        NotRepresentable: OpenCV opens such images otherwise, and in no way that is known here.
        CorruptFile: Pillow reads the file only now, and it is damaged; or Pillow cannot convert
            from its colours.
    """
    with decoding(path_of(image)):
        image.load()  # after which Pillow states no orientation of a TIFF
        if (orientation := _orientation(image, upright=upright)) != 1:
            # Not `exif_transpose`, which writes the other tags again and fails at odd types.
            image = image.transpose(_TURNS[orientation])
        if opens == "opencv":
            image = _as_opencv_opens(image)
        mode = "L" if channels == 1 else "RGB"
        if transparency == "white" and _is_transparent(image):
            image = _on_white(image)
        elif isinstance(image.info.get("transparency"), bytes):
            # The same pixels as without this step, but no warning of Pillow's about palettes.
            image = image.convert("RGBA")
        image = image.convert(mode)
        if transparency == "key" and _is_transparent(image):
            image = _on_white(image).convert(mode)
        return image


def _as_opencv_opens(image: Image.Image) -> Image.Image:
    """An image whose conversion to RGB gives what `cv2.imread` gives of the same file.

    opencv-python-headless 5.0.0. It reads 8-bit grey and RGB as Pillow does, and drops alpha.

    Raises:
        NotRepresentable: OpenCV opens no such image, or in another way.
    """
    keyed = image.format == "GIF" and image.info.get("transparency") is not None
    reason = ""
    if image.mode == "F":
        reason = "an image of float numbers"
    elif keyed and image.mode != "P":
        reason = "a transparent GIF without a palette"
    elif image.format == "TIFF" and image.mode not in ("1", "L", "P", "I;16", "RGB"):
        reason = f"a TIFF of {image.mode}"
    if reason:
        raise NotRepresentable(
            f"The model's library opens images with OpenCV, which reads {reason} differently.",
            evidence={"image": path_of(image)},
            hint="save it as PNG, in RGB.",
        )
    if keyed:  # what is transparent shows the background
        palette = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
        palette[image.info["transparency"]] = palette[image.info.get("background", 0)]
        return Image.fromarray(palette[np.asarray(image)])
    if image.mode == "CMYK":  # icvCvt_CMYK2BGR: of the inks as JPEG holds them, in whole numbers
        inks = 255 - np.asarray(image, np.int32)
        black = inks[..., 3:]
        return Image.fromarray((black - ((255 - inks[..., :3]) * black >> 8)).astype(np.uint8))
    if image.mode.startswith("I"):
        levels = np.asarray(image, np.int32)
        return Image.fromarray((levels >> 8).clip(0, 255).astype(np.uint8))
    return image


def _is_transparent(image: Image.Image) -> bool:
    return "A" in image.getbands() or image.info.get("transparency") is not None


def _on_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA"))
