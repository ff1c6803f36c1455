"""Maps at the photograph's own size: where patches lie, in which colours, and what is unseen."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from tests.pictures.conftest import squashed
from tests.sampling import sampled
from vitconvert.pictures.overlay import coloured, overlaid, palette, raw_colours, raw_map, visible
from vitconvert.pictures.seen import read_image
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.transform import ImagePlacement

OF_IMAGES = [name for name in BACKENDS if name != "kaldi"]

PLACES = {
    "squashed": {},
    "cropped": {"resize": "shortest", "resize_size": (47, 47), "crop": True},
    "padded": {"resize": "border", "resize_size": (32, 24), "crop": True},
}


def test_a_few_large_numbers_hide_no_others():
    values = torch.linspace(0, 1, 196).reshape(14, 14).clone()
    values[3, 4], values[13, 13] = 1000.0, -1000.0
    found = np.asarray(coloured(values))
    assert (found[3, 4] == palette()[255]).all() and (found[13, 13] == palette()[0]).all()
    assert len(np.unique(found.reshape(-1, 3), axis=0)) > 150
    flat = torch.zeros(14, 14)
    flat[3, 4] = 1.0  # all that there is to see
    assert (np.asarray(coloured(flat))[3, 4] == palette()[255]).all()
    few = torch.tensor([[0.0, 0.5, 1.0]])
    assert (np.asarray(coloured(few))[0] == palette()[[0, 128, 255]]).all()


def lab(colours):
    """sRGB in OKLab, the other way than the palette is made."""
    share = np.asarray(colours) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(
        linear
        @ np.array(
            [
                [0.4122214708, 0.2119034982, 0.0883024619],
                [0.5363325363, 0.6806995451, 0.2817188376],
                [0.0514459929, 0.1073969566, 0.6299787005],
            ]
        )
    )
    return cones @ np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )


def test_colours_are_even_for_the_eye():
    found = lab(palette())
    assert palette().shape == (256, 3)
    steps = np.linalg.norm(found[8:] - found[:-8], axis=1)  # of 8, as colours are whole numbers
    assert steps.max() < 1.18 * steps.min()
    assert (np.diff(found[::4, 0]) > 0).all()  # lighter and lighter
    assert found[0, 0] == pytest.approx(0.13, abs=0.005) and found[-1, 0] > 0.9


@pytest.mark.parametrize(
    ("size", "backend", "place"),
    sampled(itertools.product([(111, 80), (64, 190), (31, 40)], OF_IMAGES, PLACES), 4),
    ids=str,
)
def test_the_patch_under_a_bright_square_lies_over_it(small, backend, place, size):
    """The map is how bright each patch is in the pixels that the model reads."""
    model = small()
    steps = squashed(model.config, backend=backend, mean=(0.0,) * 3, **PLACES[place])
    compared = 0
    for top in range(0, size[0] - 2, max(1, size[0] // 9)):
        for left in range(0, size[1] - 2, max(1, size[1] // 9)):
            black = np.zeros((*size, 3), np.uint8)
            black[top : top + 2, left : left + 2] = 255
            photograph, image = read_image(Image.fromarray(black), steps, model.config)
            patches = image[0].mean(0).clamp(min=0).unflatten(0, (4, 8)).unflatten(2, (3, 8))
            patches = patches.mean((1, 3))
            y1, x1, y2, x2 = visible(photograph.placement)
            inside = y1 <= top <= y2 - 2 and x1 <= left <= x2 - 2
            if not (inside and patches.max() > 0.95 * patches.sum()):  # or between two patches
                continue
            raw = raw_map(patches, photograph.placement)
            assert (raw.mode, raw.size) == ("LA", size[::-1])
            light, opaque = np.asarray(raw).transpose(2, 0, 1)
            assert (light[top : top + 2, left : left + 2] == 255).any(), (top, left)
            found = photograph.placement
            one = np.prod(8 * np.divide(found.original, found.resized))
            assert (light == 255).sum() <= 1.3 * one  # no more than a patch is light
            compared += 1
    assert compared >= 5
    assert (opaque[y1:y2, x1:x2] == 255).all()
    assert (opaque > 0).sum() == (y2 - y1) * (x2 - x1)


def test_each_patch_has_its_own_pixels():
    """2 x 3 patches of 4 x 5 pixels, cut out of 12 x 24, which were 24 x 36 in the photograph."""
    place = ImagePlacement(original=(24, 36), resized=(12, 24), offset=(3, 6), image_size=(8, 15))
    values = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    raw = np.asarray(raw_map(values, place))
    assert visible(place) == (6, 9, 22, 31)  # columns 9 to 31.5
    for row in range(24):
        for column in range(36):
            y, x = ((row + 0.5) / 2 - 3) / 4, ((column + 0.5) / 1.5 - 6) / 5
            level, opaque = raw[row, column]
            inside = 6 <= row < 22 and 9 <= column < 31
            assert opaque == 255 * inside
            assert level == (51 * (3 * int(y) + int(x)) if inside else 0), (row, column)
    colours = np.asarray(raw_colours(coloured(values), place))
    assert (colours[..., 3] == raw[..., 1]).all()
    assert (colours[10, 12, :3] == palette()[0]).all()
    assert (colours[20, 30, :3] == palette()[255]).all()


def test_an_overlay_blends_what_is_seen_and_darkens_the_rest():
    place = ImagePlacement(original=(20, 40), resized=(20, 40), offset=(0, 10), image_size=(20, 20))
    grey = Image.new("RGB", (40, 20), (100, 100, 100))
    found = np.asarray(overlaid(grey, coloured(torch.tensor([[0.0, 1.0]])), place))
    assert (found[:, :10] == 35).all() and (found[:, 30:] == 35).all()
    for column, colour in ((10, palette()[0]), (29, palette()[255])):
        wanted = 0.4 * 100 + 0.6 * colour
        assert np.abs(found[10, column] - wanted).max() <= 1
    light = lab(found[10, 10:30])[:, 0]
    assert (np.diff(light) >= 0).all() and (np.diff(light[5:15]) > 0).all()  # smooth between them


def test_a_constant_map_has_one_colour():
    place = ImagePlacement(original=(4, 4), resized=(4, 4), offset=(0, 0), image_size=(4, 4))
    assert np.asarray(raw_map(torch.full((2, 2), 0.25), place))[..., 0].max() == 0


def test_a_photograph_of_one_pixel():
    place = ImagePlacement(original=(1, 1), resized=(24, 24), offset=(3, 5), image_size=(16, 16))
    assert visible(place) == (0, 0, 1, 1)
    assert raw_map(torch.rand(4, 4), place).size == (1, 1)


def test_rows_that_no_patch_reads_are_not_seen(small):
    """Of 38 x 28 pixels, patches of 8 leave out 6 rows and 4 columns."""
    model = small(image_size=(38, 28))
    photograph, _ = read_image(Image.new("RGB", (280, 380)), squashed(model.config), model.config)
    assert photograph.grid == (4, 3)
    assert visible(photograph.placement) == (0, 0, 320, 240)


@pytest.mark.parametrize("raw", [False, True])
def test_pictures_have_the_size_of_the_photograph(small, photograph, raw, tmp_path):
    from vitconvert.pictures.maps import attention_maps

    model, image = small(), photograph(123, 77)
    steps = squashed(model.config, resize="shortest", resize_size=(40, 40), crop=True)
    image.save(tmp_path / "x.png")
    [maps] = attention_maps(model, tmp_path / "x.png", steps)
    found = maps.picture(raw=raw)
    assert (found.size, found.mode) == ((123, 77), "LA" if raw else "RGB")
    Image.new("RGB", (5, 5)).save(tmp_path / "x.png")
    if not raw:
        with pytest.raises(Exception, match="The image has changed since"):
            maps.picture()
