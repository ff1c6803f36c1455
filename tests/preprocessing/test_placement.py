"""A place in the image that a model reads, and the same place in the photograph."""

import dataclasses
import itertools

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.preprocessing.conftest import sample
from vitconvert.preprocessing import Preprocessing, image_files, pixels
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.transform import placement

OF_IMAGES = [name for name in BACKENDS if name != "kaldi"]

PLAIN = Preprocessing(
    image_size=(48, 60),
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
    interpolation="bilinear",
    resize="squash",
    resize_size=(48, 60),
    crop=False,
    backend="torchvision",
    normalize=False,
    origin="test",
)
STEPS = {
    "squash": {},
    "squash, then crop": {"resize_size": (59, 71), "crop": True},
    "shortest": {"resize": "shortest", "resize_size": (67, 67), "crop": True},
    "cover": {"resize": "cover", "resize_size": (55, 71), "crop": True},
    "border": {"resize": "border", "resize_size": (48, 60), "crop": True},
    "padded": {"resize": "shortest", "resize_size": (33, 33), "crop": True},
    "patches": {
        "resize": "patches",
        "resize_size": None,
        "patch_size": 6,
        "max_patches": 80,
        "image_size": None,
    },
    "none": {"resize": "none", "resize_size": None, "crop": True},
}
SIZES = [(101, 157), (163, 90)]  # height, width


def stated(name, backend, size):
    steps = STEPS[name]
    if name == "patches":
        made = pixels.size_in_patches(size, patch_size=6, max_patches=80)
        steps = {**steps, "image_size": made}
    return dataclasses.replace(PLAIN, backend=backend, **steps)


def centre(found):
    """Where a bright spot on black is, in pixels from the top left corner."""
    light = np.asarray(found, np.float64).sum(axis=0)
    light[light < light.max() / 4] = 0  # what bicubic filters and rounding leave
    rows, columns = (np.arange(side) + 0.5 for side in light.shape)
    return (
        (light.sum(1) * rows).sum() / light.sum(),
        (light.sum(0) * columns).sum() / light.sum(),
    )


def bright_square(size, top, left, side):
    photograph = np.zeros((*size, 3), np.uint8)
    photograph[top : top + side, left : left + side] = 255
    return Image.fromarray(photograph)


@pytest.mark.parametrize(
    ("backend", "name", "size"), sample(itertools.product(OF_IMAGES, STEPS, SIZES), 3)
)
def test_a_bright_square_is_found_where_it_is(backend, name, size):
    steps = stated(name, backend, size)
    found = placement(steps, size)
    for top, left in ((size[0] // 2 - 12, size[1] // 2 + 3), (size[0] // 2 + 2, size[1] // 2 - 19)):
        seen = centre(steps.array(bright_square(size, top, left, 11)))
        # Of a pixel of the model's, which is not an average without antialias.
        near = (0.25 if BACKENDS[backend].antialias else 0.4) * np.divide(size, found.resized)
        distance = np.abs(np.subtract(found.in_original(*seen), (top + 5.5, left + 5.5)))
        assert (distance <= near + 1e-9).all(), (distance, near)


@pytest.mark.parametrize("backend", OF_IMAGES)
def test_offsets_are_those_of_the_pixels(backend):
    """Cut and added rows by odd and even numbers, where projects round differently."""
    for size in [(h, w) for h in (45, 46, 47, 49, 50, 51) for w in (57, 58, 59, 61, 62, 63)]:
        numbered = np.arange(1, size[0] * size[1] + 1, dtype=np.uint32).reshape(size)
        coded = np.stack([numbered & 255, numbered >> 8 & 255, numbered >> 16], axis=-1)
        steps = stated("none", backend, size)
        made = steps.array(Image.fromarray(coded.astype(np.uint8)))
        made = np.rint(made * 255).astype(int)
        numbers = made[0] + 256 * made[1] + 65536 * made[2]
        row, column = np.argwhere(numbers)[0]
        wanted = np.divmod(numbers[row, column] - 1, size[1])
        assert placement(steps, size).in_original(row, column) == tuple(wanted), size


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("backend", ["torchvision", "transformers"])
def test_a_turned_photograph_has_the_size_that_is_seen(backend, orientation, tmp_path):
    image = bright_square((40, 70), 4, 50, 11)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(tmp_path / "turned.png", exif=exif)
    upright = BACKENDS[backend].upright
    with image_files.open_image(tmp_path / "turned.png") as opened:
        size = image_files.size_of(opened, upright=upright)
        shown = image_files.converted(opened, channels=3, transparency="drop", upright=upright)
    assert size == (shown.height, shown.width)
    steps = stated("squash, then crop", backend, size)
    seen = centre(steps.array(tmp_path / "turned.png"))
    wanted = centre(np.moveaxis(np.asarray(shown), -1, 0))
    near = np.divide(size, placement(steps, size).resized) * 0.6
    assert (np.abs(np.subtract(placement(steps, size).in_original(*seen), wanted)) < near).all()


def test_an_orientation_that_is_none_turns_nothing():
    image = bright_square((4, 7), 1, 1, 2)
    image.getexif()[ExifTags.Base.Orientation] = "left"
    assert image_files.size_of(image, upright=True) == (4, 7)


def test_the_box_lies_outside_of_a_photograph_that_is_padded():
    found = placement(stated("border", "torchvision", (100, 50)), (100, 50))
    assert (found.resized, found.offset) == ((48, 24), (0, -18))
    assert found.box == (0, -37.5, 100, 87.5)
