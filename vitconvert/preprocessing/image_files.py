"""Opens images, and reads them safely: no program in one is run, and its memory is bounded."""

import io
import stat
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitconvert.errors import CorruptFile, SourceError, UnsafeFile, size_text
from vitconvert.preprocessing.backends import Backend
from vitconvert.preprocessing.finding import SOUND
from vitconvert.preprocessing.steps import Size

# Bytes of one image while it is decoded, converted and resized: enough for images of 50
# megapixels, whatever is done with them. Pillow itself refuses more than 179 million pixels.
MOST_MEMORY = 13 * 2**26
_MUCH_MEMORY = 2**28  # images that need so much wait for each other
_one_large_image = threading.Lock()

_IN_MEMORY = Path("in memory")  # what an image without a file is called
_LAST_UNTURNED = 4  # EXIF orientations 5 to 8 exchange rows and columns

# Pillow 13 raises the first four for damaged files of fourteen formats; decompressors and struct
# raise the rest.
_DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    RuntimeError,
    EOFError,
    IndexError,
    OverflowError,
    struct.error,
    zlib.error,
)


def open_image(file: Path | bytes) -> Image.Image:
    """Open an image file, or its content; its pixels are read when they are asked for.

    Raises:
        SourceError: There is no such file, or it may not be read.
        CorruptFile: It is not an image, or it is damaged.
        UnsafeFile: It declares more pixels than Pillow's limit, or is a program.
    """
    path = file if isinstance(file, Path) else _IN_MEMORY
    with _decoding(path):
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
    with _decoding(_path_of(image)):
        image.load()


@contextmanager
def memory_for(image: Image.Image, backend: Backend, transparency: str) -> Iterator[None]:
    """Make sure that there is memory for all that is done with an image inside the block.

    Large ones wait for each other, so that threads do not need as much as many times.

    Args:
        image: Open; its pixels may still be in the file.
        backend: What is done with it.
        transparency: One of backends.TRANSPARENCIES.

    Raises:
        UnsafeFile: It takes too much, whoever waits.
    """
    # The most that is held at a time for each pixel: Pillow has three channels in four bytes. An
    # image is held while it is turned and converted, and, for "white", the background and both
    # together; then as an array of uint8, and of float32.
    stored = 1 if image.mode in ("1", "L", "P") else 4
    turned = stored if backend.upright else 0
    composed = 12 if transparency != "drop" and _is_transparent(image) else 0
    arrays = {"pil": 0, "uint8": 4 + 3 + 4, "float": 3 + 12, "weights": 3 + 12 + 12}
    per_pixel = max(stored + turned + composed + 4, arrays[backend.resize])
    needed = image.width * image.height * per_pixel
    if needed > MOST_MEMORY:
        raise UnsafeFile(
            "The image has more pixels than can be decoded safely.",
            evidence={
                "image": _path_of(image),
                "size": size_text((image.height, image.width)),
                "memory": f"{needed:,} bytes; {MOST_MEMORY:,} at most",
            },
            hint="save it smaller.",
        )
    with _one_large_image if needed > _MUCH_MEMORY else nullcontext():
        yield


def _path_of(image: Image.Image) -> Path:
    filename = getattr(image, "filename", "")
    return Path(filename) if filename else _IN_MEMORY


def shrink(image: Image.Image, at_least: int, *, upright: bool) -> Size:
    """Have an open file read smaller where that is faster; the size of the whole image.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if both sides keep `at_least` pixels: the high
    frequencies are never computed. Other files are read as they are. So is an image that must be
    turned `upright` and whose sides are not multiples of 8: the decoder rounds sizes up at the
    right and the bottom, and turning would move these edges.
    """
    with _decoding(_path_of(image)):
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
    with _decoding(_path_of(image)):
        turned = _orientation(image, upright=upright) > _LAST_UNTURNED
        return image.size if turned else (image.height, image.width)


def _orientation(image: Image.Image, *, upright: bool) -> int:
    stated = image.getexif().get(ExifTags.Base.Orientation, 1) if upright else 1
    return int(stated) if stated in range(1, 9) else 1  # as `exif_transpose`, whatever it is


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Turn whatever Pillow raises inside into an error that names the file."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnsafeFile(
            "The image declares more pixels than can be decoded safely.",
            evidence={"image": path, "Pillow": error},
        ) from error
    except _DECODING_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:  # it is the system that refuses
            raise SourceError(f"{error.strerror}.", evidence={"image": path}) from error
        reason = str(error).replace(str(path), path.name) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image in a format that Pillow knows"
            if path.suffix.lower() == SOUND:
                reason = "a recording, which models of spectrograms read"
        raise CorruptFile(
            "This file cannot be read as an image.", evidence={"image": path, "Pillow": reason}
        ) from error


def converted(
    image: Image.Image, *, channels: int, transparency: str, upright: bool
) -> Image.Image:
    """The image as 8-bit RGB, or as grey for one channel.

    Raises:
        CorruptFile: Pillow reads the file only now, and it is damaged; or Pillow cannot convert
            from its colours.
    """
    with _decoding(_path_of(image)):
        if upright:
            image = ImageOps.exif_transpose(image)
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


def _is_transparent(image: Image.Image) -> bool:
    return "A" in image.getbands() or image.info.get("transparency") is not None


def _on_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA"))
