"""Image files of every kind that a user has, which front doors of libraries treat differently."""

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

QUARTER_TURN = 6  # EXIF orientation: the top of the image is at its right
MIRRORED = 7  # EXIF orientation: mirrored, and turned


def write_images(folder: Path, exact: tuple[int, int] = (224, 224)) -> dict[str, Path]:
    """Write a file of each kind, with random pixels; `exact` is (height, width) of one of them."""
    random = np.random.default_rng(0)

    def pixels(height: int, width: int, channels: int) -> np.ndarray:
        # Coarse squares, so that JPEG and resizing leave something of them.
        coarse = random.integers(0, 256, (-(-height // 5), -(-width // 5), channels), np.uint8)
        return coarse.repeat(5, axis=0).repeat(5, axis=1)[:height, :width]

    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = QUARTER_TURN
    mirrored = Image.Exif()
    mirrored[ExifTags.Base.Orientation] = MIRRORED
    rgba = Image.fromarray(pixels(67, 91, 4), "RGBA")
    keyed = Image.fromarray(pixels(44, 71, 3), "RGB")
    palette = Image.fromarray(pixels(59, 83, 3), "RGB").quantize(32)
    files = {
        "rgb.png": (Image.fromarray(pixels(61, 103, 3), "RGB"), {}),
        "tall.jpg": (Image.fromarray(pixels(301, 97, 3), "RGB"), {"quality": 95}),
        "grey.png": (Image.fromarray(pixels(73, 51, 1)[..., 0], "L"), {}),
        "grey_alpha.png": (Image.fromarray(pixels(73, 51, 2), "LA"), {}),
        "rgba.png": (rgba, {}),
        "palette.png": (palette, {"transparency": bytes(range(0, 256, 8))}),
        "cmyk.jpg": (Image.fromarray(pixels(66, 45, 4), "CMYK"), {"quality": 95}),
        "turned.jpg": (Image.fromarray(pixels(57, 88, 3), "RGB"), {"exif": turned}),
        "turned_rgba.png": (rgba, {"exif": turned}),
        "deep.png": (Image.fromarray(pixels(47, 62, 1)[..., 0].astype(np.uint16) * 257), {}),
        "narrow.png": (Image.fromarray(pixels(90, 1, 3), "RGB"), {}),
        "keyed.png": (keyed, {"transparency": keyed.getpixel((0, 0))}),
        "keyed.gif": (keyed.quantize(16), {"transparency": 3}),
        "mirrored.jpg": (Image.fromarray(pixels(57, 88, 3), "RGB"), {"exif": mirrored}),
        "bits.png": (Image.fromarray(pixels(53, 40, 1)[..., 0], "L").convert("1"), {}),
        "turned.webp": (Image.fromarray(pixels(49, 77, 3), "RGB"), {"exif": turned}),
        "float.tif": (Image.fromarray(pixels(58, 43, 1)[..., 0].astype(np.float32) / 255), {}),
        "pages.tif": (
            Image.fromarray(pixels(46, 65, 3), "RGB"),
            {"save_all": True, "append_images": [Image.fromarray(pixels(46, 65, 3), "RGB")]},
        ),
        "moving.gif": (
            Image.fromarray(pixels(55, 48, 3), "RGB").quantize(16),
            {"save_all": True, "append_images": [palette.resize((48, 55))]},
        ),
        "exact.png": (Image.fromarray(pixels(*exact, 3), "RGB"), {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (image, how) in files.items():
        image.save(folder / name, **how)
    return {name: folder / name for name in files}
