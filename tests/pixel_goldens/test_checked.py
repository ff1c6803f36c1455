"""A port with a planted mistake: the step that departs first, and the cause that is named."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageOps
from safetensors.numpy import save_file

from tests.pixel_goldens.conftest import MEAN, STD, STEPS, Port, shortest
from vitconvert.api import check_pixels
from vitconvert.errors import UsageError
from vitconvert.pixel_goldens.check import UNKNOWN
from vitconvert.pixel_goldens.golden import record


def on_tensors(mode, antialias=None, then=lambda values: values, **options):
    def resize(image, size):
        tensor = torch.from_numpy(np.array(image, np.float32)).permute(2, 0, 1)[None]
        how = options | ({} if antialias is None else {"antialias": antialias})
        made = torch.nn.functional.interpolate(tensor, size, mode=mode, **how)
        return then(made[0].permute(1, 2, 0).numpy())

    return resize


def on_pillow(name):
    return lambda image, size: np.asarray(image.resize(size[::-1], Image.Resampling[name]))


def from_corner(image, size):
    """Bilinear between the pixels right below places that are counted from the corner."""
    values = np.asarray(image, np.float64)
    for axis, new in enumerate(size):
        places = np.arange(new) * values.shape[axis] / new
        below = np.floor(places).astype(int)
        above = np.minimum(below + 1, values.shape[axis] - 1)
        share = np.expand_dims(places - below, (1, 2) if axis == 0 else (0, 2))
        values = values.take(below, axis) * (1 - share) + values.take(above, axis) * share
    return values


def clipped(values):
    return np.clip(values, 0, 255)


def middle_square(image):
    side = min(image.size)
    left, top = ((whole - side) // 2 for whole in image.size)
    return image.crop((left, top, left + side, top + side))


def on(colour):
    def decode(image):
        if image.mode != "RGBA":
            return image.convert("RGB")
        return Image.alpha_composite(Image.new("RGBA", image.size, colour), image).convert("RGB")

    return decode


def low_byte_lost(image):
    levels = np.asarray(image)
    if levels.dtype == np.uint16:
        image = Image.fromarray((levels >> 8).astype(np.uint8))
    return image.convert("RGB")


def inverted(image):
    return (ImageChops.invert(image) if image.mode == "CMYK" else image).convert("RGB")


BICUBIC = "not as the golden's bicubic"
FAULTS = {
    "bilinear": (
        Port(filter=on_pillow("BILINEAR")),
        f"resized by bilinear on Pillow images, {BICUBIC}",
    ),
    "lanczos": (
        Port(filter=on_pillow("LANCZOS")),
        f"resized by lanczos on Pillow images, {BICUBIC}",
    ),
    "opencv's linear": (
        Port(filter=on_tensors("bilinear", False, np.rint)),
        "resized by bilinear without antialias, as OpenCV's and torch's, "
        f"rounded to whole numbers, {BICUBIC}",
    ),
    "no antialias": (
        Port(filter=on_tensors("bicubic", False, clipped)),
        "resized by bicubic without antialias, as OpenCV's and torch's, "
        f"clipped to 0 to 255, {BICUBIC}",
    ),
    "sharp's affine": (
        Port(filter=from_corner),
        "resized by bilinear without antialias, counted from the corner of pixels, as sharp's "
        f"affine, {BICUBIC}",
    ),
    "corners": (
        Port(filter=on_tensors("bilinear", align_corners=True)),
        f"resized by bilinear with align_corners, {BICUBIC}",
    ),
    "nearest": (
        Port(filter=on_tensors("nearest")),
        f"resized by nearest, counted from the corner of pixels, {BICUBIC}",
    ),
    "truncated": (
        Port(filter=on_tensors("bicubic", True, lambda x: np.trunc(clipped(x)))),
        "resized by bicubic with antialias on float tensors, "
        f"truncated to whole numbers, {BICUBIC}",
    ),
    "not rounded": (
        Port(filter=on_tensors("bicubic", True, clipped)),
        f"resized by bicubic with antialias on float tensors, clipped to 0 to 255, {BICUBIC}",
    ),
    "crop first": (
        Port(cut=middle_square, size=lambda *_: (48, 48)),
        "cropped to the aspect ratio before resizing",
    ),
    "crop first and last": (
        Port(cut=middle_square, size=lambda *_: (63, 63)),
        "cropped to the aspect ratio before resizing, and a margin after it",
    ),
    "squash": (
        Port(size=lambda *_: (48, 48)),
        "squashed to the result's size: the aspect ratio is not kept, and no margin cropped",
    ),
    "no margin": (
        Port(size=lambda *sides: shortest(48, *sides)),
        "the shortest side to 48, and no margin cropped",
    ),
    "top left": (
        Port(corner=lambda _: 0),
        "the crop begins at the top left, not in the middle",
    ),
    "half a pixel": (
        Port(corner=lambda surplus: surplus // 2),
        "the crop's corner is rounded down, one pixel off where the surplus is odd",
    ),
    "blue first": (
        Port(decode=lambda image: Image.fromarray(np.asarray(image.convert("RGB"))[..., ::-1])),
        "the channels are in the order blue, green, red",
    ),
    "halves": (
        Port(normalise=lambda x: x / 127.5 - 1),
        "normalised by mean 0.5 and std 0.5 (-1 to 1)",
    ),
    "no mean": (
        Port(normalise=lambda x: x / 255),
        "normalised by no mean and std: pixels stay 0 to 1",
    ),
    "no scale": (
        Port(normalise=lambda x: (x - MEAN) / STD),
        "normalised by mean and std of pixels from 0 to 1, on pixels from 0 to 255",
    ),
    "twice": (
        Port(normalise=lambda x: (x / 255**2 - MEAN) / STD),
        "normalised by the division by 255 made twice",
    ),
    "256": (
        Port(normalise=lambda x: (x / 256 - MEAN) / STD),
        "normalised by the division by 256, not by 255",
    ),
    "mean of blue": (
        Port(normalise=lambda x: (x / 255 - MEAN[::-1]) / STD[::-1]),
        "normalised by mean and std, in the order blue, green, red",
    ),
    "variance": (
        Port(normalise=lambda x: (x / 255 - MEAN) / STD**2),
        "normalised by variance in place of std",
    ),
    "no std": (Port(normalise=lambda x: x / 255 - MEAN), "normalised by mean without std"),
    "another mean": (
        Port(normalise=lambda x: (x / 255 - 0.3) / 0.2),
        "normalised as if of pixels from 0 to 1 the mean is 0.3, 0.3, 0.3 "
        "and the std 0.2, 0.2, 0.2",
    ),
    "exif": (
        Port(decode=lambda image: ImageOps.exif_transpose(image).convert("RGB")),
        "turned.jpg: the EXIF orientation is applied",
    ),
    "white": (Port(decode=on("white")), "alpha.png: transparent pixels are put on white"),
    "black": (Port(decode=on("black")), "alpha.png: transparent pixels are put on black"),
    "inks": (Port(decode=inverted), "cmyk.jpg: the inks of CMYK are read inverted"),
    "16 bits": (
        Port(decode=low_byte_lost),
        "grey16.png: numbers of 16 bits lose their low byte (>> 8)",
    ),
}


IN_EVERY_RUN = ("bilinear", "crop first", "half a pixel", "halves", "exif")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=() if f in IN_EVERY_RUN else pytest.mark.coverage) for f in FAULTS],
)
def test_a_mistake_is_named_by_the_result_alone(golden, fault):
    port, said = FAULTS[fault]
    report = check_pixels(golden.folder, port.results(golden))
    assert not report.ok
    assert report.causes == (said,)


def test_a_faithful_port_is_equal(golden):
    port = Port()
    arrays = {
        f"{name}/{step}": array
        for name in golden.images
        for step, array in port.steps(golden.folder / name).items()
    }
    report = check_pixels(golden.folder, arrays)
    assert report.ok
    assert len(report.compared) == 4 * len(golden.images)


def test_dropped_transparency_is_told_where_a_project_puts_it_on_white(tmp_path):
    golden = record(
        replace(STEPS, transparency="white"), tmp_path / "white", source="vit.pth", own=None
    )
    report = check_pixels(golden.folder, Port().results(golden))
    assert report.causes == ("alpha.png: transparency is dropped, and the colours beneath show",)


def test_mistakes_in_several_steps_are_told_apart(golden):
    port = Port(
        size=lambda *sides: shortest(48, *sides),
        filter=on_tensors("bilinear", False, np.rint),
        normalise=lambda x: x[..., ::-1] / 127.5 - 1,
        decode=lambda image: ImageOps.exif_transpose(image).convert("RGB"),
    )
    assert check_pixels(golden.folder, port.results(golden)).causes == (
        FAULTS["no margin"][1],
        FAULTS["opencv's linear"][1],
        FAULTS["blue first"][1],
        FAULTS["halves"][1],
        FAULTS["exif"][1],
    )


def test_the_first_step_that_departs_is_found_where_steps_are_given(golden, tmp_path):
    port = Port(filter=on_pillow("BILINEAR"), corner=lambda _: 0, normalise=lambda x: x / 255)
    steps = port.steps(golden.folder / "edges.png")
    steps["decoded"] = np.moveaxis(steps["decoded"], 0, -1) / 255  # rows, columns, channels
    arrays = {f"edges/{step}": np.ascontiguousarray(array) for step, array in steps.items()}
    save_file(arrays, tmp_path / "theirs.safetensors")
    report = check_pixels(golden.folder, tmp_path / "theirs.safetensors")
    assert report.compared["edges.png", "decoded"].equal
    assert report.first == ("edges.png", "resized")
    assert report.within == ("resized",)
    assert report.causes == (FAULTS["bilinear"][1],)
    del arrays["edges/resized"]
    assert check_pixels(golden.folder, arrays).within == ("resized", "cropped")


def test_another_size_is_a_departure_that_names_both(golden):
    array = Port(size=lambda *_: (63, 63)).steps(golden.folder / "wide.png")["resized"]
    report = check_pixels(golden.folder, {"wide.png/resized": array})
    assert str(report.compared["wide.png", "resized"]) == "3x63x63, not 3x63x137"
    assert report.causes == ("squashed to the size before the crop: the aspect ratio is not kept",)


def test_what_is_no_known_mistake_is_unknown(golden):
    noise = np.random.default_rng(0).normal(size=(3, 48, 48))
    assert check_pixels(golden.folder, {"edges.png": noise}).causes == (UNKNOWN,)


def test_a_name_of_no_image_is_refused_with_the_nearest(golden):
    with pytest.raises(UsageError, match=r"'edge.png' is of none") as raised:
        check_pixels(golden.folder, {"edge.png": np.zeros((3, 48, 48))})
    assert raised.value.hint == "did you mean edges.png?"
    with pytest.raises(UsageError, match="no array to compare"):
        check_pixels(golden.folder, {})


def test_arrays_of_types_that_numpy_has_not_are_compared(golden, tmp_path):
    import torch
    from safetensors.torch import save_file as save_tensors

    results = Port().results(golden)
    arrays = {name: torch.from_numpy(array.copy()).bfloat16() for name, array in results.items()}
    save_tensors(arrays, tmp_path / "theirs.safetensors")
    report = check_pixels(golden.folder, tmp_path / "theirs.safetensors")
    assert len(report.compared) == len(golden.images) and not report.ok  # three digits are left
    assert check_pixels(golden.folder, arrays).compared.keys() == report.compared.keys()
