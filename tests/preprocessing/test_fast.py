"""Faster reading gives nearly the same pixels, of the same part of the image."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.preprocessing.conftest import sample
from vitconvert.errors import InputMismatch
from vitconvert.preprocessing import Preprocessing

LEVELS = {"mean": (0, 0, 0), "std": (1 / 255,) * 3}  # what comes out are levels from 0 to 255
SMALL = {"input_size": (3, 32, 48), **LEVELS}


@pytest.fixture(scope="session")
def scene():
    """As smooth as photographs of many pixels are, with edges and some noise."""

    def make(width: int, height: int, channels: int = 3) -> Image.Image:
        random = np.random.default_rng(width * 1000 + height)
        coarse = Image.fromarray(random.integers(0, 256, (11, 17, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        edges = np.add.outer(np.arange(height) // 61, np.arange(width) // 83) % 2 * 60 - 30
        noise = random.normal(0, 5, smooth.shape)
        pixels = np.clip(smooth + edges[..., None] + noise, 0, 255).astype(np.uint8)
        image = Image.fromarray(pixels)
        return image if channels == 3 else image.convert("L")

    return make


@pytest.fixture
def jpeg(tmp_path, scene):
    scene(1203, 801).save(tmp_path / "scene.jpg")
    return tmp_path / "scene.jpg"


def difference(p: Preprocessing, image: Image.Image | Path) -> tuple[float, float]:
    """Mean and largest difference of levels."""
    apart = np.abs(p.array(image) - p.array(image, fast=True))
    assert apart.shape == (p.channels, *p.image_size)
    return float(apart.mean()), float(apart.max())


CFGS = (
    {"interpolation": "bicubic", "crop_pct": 0.9},
    {"interpolation": "bilinear", "crop_pct": 1.0},
    {"interpolation": "lanczos", "crop_mode": "squash"},
    {"crop_mode": "border", "mean": (0.5, 0.4, 0.3)},
    {"crop_pct": 1.5},  # the resized image is smaller, and padded
)
SCENES = itertools.product(CFGS, ((1203, 801), (799, 1207), (640, 480)), ("jpg", "png"))


@pytest.mark.parametrize(("cfg", "size", "suffix"), sample(SCENES, 3), ids=str)
def test_levels_are_close(tmp_path, scene, cfg, size, suffix):
    path = tmp_path / f"scene.{suffix}"
    scene(*size).save(path, compress_level=0) if suffix == "png" else scene(*size).save(path)
    mean, largest = difference(Preprocessing.from_timm({**SMALL, **cfg}), path)
    assert 0 < mean < 1
    assert largest < 20


def test_levels_are_close_in_grey(tmp_path, scene):
    path = tmp_path / "scene.jpg"
    scene(1203, 801, 1).save(path)
    grey = Preprocessing.from_timm({"input_size": (1, 32, 32), "mean": (0,), "std": (1 / 255,)})
    assert difference(grey, path)[0] < 0.5


TURNED = itertools.product(((1208, 800), (1203, 801)), range(1, 9))


@pytest.mark.parametrize(("size", "orientation"), sample(TURNED, 5), ids=str)
def test_turned_photographs_are_turned(tmp_path, scene, size, orientation):
    path = tmp_path / "scene.jpg"
    exif = Image.Exif()
    exif[0x0112] = orientation
    scene(*size).save(path, exif=exif)
    p = Preprocessing.from_huggingface(
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 40},
            "crop_size": {"height": 32, "width": 48},
            "image_mean": [0, 0, 0],
            "image_std": [1 / 255] * 3,
        }
    )
    assert difference(p, path)[0] < 1


def test_a_jpeg_stays_twice_as_large_as_it_is_resized_to(tmp_path, scene, monkeypatch):
    path = tmp_path / "scene.jpg"
    sizes = []
    load = Image.Image.resize

    def resize(self: Image.Image, *arguments: Any) -> Image.Image:
        sizes.append(self.size)
        return load(self, *arguments)

    monkeypatch.setattr(Image.Image, "resize", resize)
    for height in (1280, 1279, 639, 319, 159):
        scene(1400, height).save(path)
        Preprocessing.from_timm({"input_size": (3, 70, 70)}).array(path, fast=True)
        sizes, seen = [], sizes
        assert (
            seen[-1]
            == {
                1280: (175, 160),
                1279: (350, 320),
                639: (700, 320),
                319: (1400, 319),
                159: (1400, 159),
            }[height]
        )


def test_an_open_image_is_left_as_it_is(jpeg):
    p = Preprocessing.from_timm(SMALL)
    with Image.open(jpeg) as image:
        fast = p.array(image, fast=True)
        assert image.size == (1203, 801)
        assert np.abs(fast - p.array(image)).mean() < 1


@pytest.mark.parametrize(
    "p",
    [
        Preprocessing.from_timm({**SMALL, "interpolation": "nearest"}),
        Preprocessing.from_dialect(
            {"resize": "squash", "interpolation": "bilinear", "mean": 0, "std": 1 / 255}
            | {"backend": "tensorflow"},
            image_size=(32, 48),
        ),
    ],
    ids=["nearest", "without antialias"],
)
def test_what_reads_single_pixels_is_exact(jpeg, p):
    assert difference(p, jpeg) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("ViTImageProcessor", {}),
        ("DINOv3ViTImageProcessor", {}),
        ("ViTImageProcessor", {"resample": 3}),
    ],
)
def test_levels_are_close_to_those_of_tensors(jpeg, kind, changes):
    config = {"image_processor_type": kind, "size": {"height": 32, "width": 48}, **changes}
    levels = {"image_mean": [0, 0, 0], "image_std": [1 / 255] * 3}
    mean, largest = difference(Preprocessing.from_huggingface({**config, **levels}), jpeg)
    assert mean < 1
    assert largest < 20


def test_an_image_that_nothing_resizes_is_not_shrunk(jpeg):
    p = Preprocessing.from_huggingface(
        {"image_processor_type": "ViTImageProcessor", "do_resize": False}, image_size=(32, 48)
    )
    with pytest.raises(InputMismatch, match="The image is 801x1203"):
        p(jpeg, fast=True)


def test_a_path_may_be_given_as_text(tmp_path, scene):
    path = tmp_path / "scene.png"
    scene(60, 45).save(path)
    p = Preprocessing.from_timm(SMALL)
    assert torch.equal(p(str(path)), p(Image.open(path)))
