"""Photographs that EXIF turns, as cameras and editors write them, whatever else their tags say."""

import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.small_models import small_config
from vitconvert.pictures.seen import read_image
from vitconvert.preprocessing import Preprocessing

TURNING = Preprocessing.from_huggingface(
    {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 24}}
)
SHORT, LONG, RATIONAL, FLOAT, DOUBLE, TEXT = 3, 4, 5, 11, 12, 2
ODD = {
    "Software, a rational": (0x131, RATIONAL, 1, struct.pack("<II", 1, 3)),
    "Software, a float": (0x131, FLOAT, 1, struct.pack("<f", 1.5)),
    "DateTime, a double": (0x132, DOUBLE, 1, struct.pack("<d", 1.5)),
    "XResolution, a text": (0x11A, TEXT, 8, b"72 dpi\0\0"),
    "Exif IFD, a text": (0x8769, TEXT, 8, b"nothing\0"),
}


def exif(*tags: tuple[int, int, int, bytes]) -> bytes:
    """EXIF of tags, types, counts and values that Pillow would not write."""
    beyond = 8 + 2 + 12 * len(tags) + 4
    directory, rest = struct.pack("<H", len(tags)), b""
    for tag, kind, count, value in sorted(tags):
        place = value.ljust(4, b"\0")
        if len(value) > 4:
            place = struct.pack("<I", beyond + len(rest))
            rest += value
        directory += struct.pack("<HHI", tag, kind, count) + place
    return b"Exif\0\0II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", 0) + rest


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("orientation", [3, 6])
def test_tags_of_other_types_do_not_matter(odd, orientation, photograph, tmp_path):
    turn = (0x112, SHORT, 1, struct.pack("<H", orientation))
    path = tmp_path / "photo.png"
    photograph(61, 45).save(path, exif=exif(turn, odd))
    upright = photograph(61, 45).rotate({3: 180, 6: -90}[orientation], expand=True)
    assert np.array_equal(TURNING.array(path), TURNING.array(upright))


def turned_tiff(path: Path, image: Image.Image, orientation: int) -> Path:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    image.save(path, exif=tags)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_tiff_is_read_faster_too(orientation, photograph, tmp_path):
    path = turned_tiff(tmp_path / "photo.tif", photograph(97, 203), orientation)
    slow, fast = TURNING.array(path), TURNING.array(path, fast=True)
    assert np.abs(slow - fast).max() * 127.5 < 8  # of 255 levels


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_thin_tiff_is_read_faster_too(orientation, photograph, tmp_path):
    path = turned_tiff(tmp_path / "photo.tif", photograph(2, 803), orientation)
    assert np.abs(TURNING.array(path) - TURNING.array(path, fast=True)).max() * 127.5 < 16


@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 7, 8])
def test_what_is_shown_of_a_turned_tiff_is_what_was_read(orientation, photograph, tmp_path):
    path = turned_tiff(tmp_path / "photo.tif", photograph(61, 45), orientation)
    seen, image = read_image(path, TURNING, small_config())
    picture = seen.picture()
    assert picture.size == ((45, 61) if orientation > 4 else (61, 45))
    assert np.array_equal(TURNING.array(picture), image[0].numpy())


def test_damaged_tags_warn_nobody_and_are_no_error(photograph, tmp_path):
    """Pillow warns of them without a name, and reads the pixels."""
    path = tmp_path / "cut.jpg"
    photograph(40, 30).save(path, exif=exif((0x112, SHORT, 2, struct.pack("<HH", 6, 3)))[:22])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        wanted = TURNING(path)
    assert not told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning), Image.open(path) as image:
            image.getexif().get(ExifTags.Base.Orientation)
        assert (TURNING(path) == wanted).all()
