"""What a `Preprocessing` may say, and how it is written down."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    TableError,
)
from vitconvert.preprocessing import Preprocessing

TORCHVISION = {
    "resize": "shortest",
    "interpolation": "bilinear",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "backend": "torchvision",
}


def fields(**changes: Any) -> dict[str, Any]:
    return {
        "image_size": [32, 48],
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.25],
        "interpolation": "bicubic",
        "resize": "squash",
        "resize_size": [32, 48],
        "crop": False,
        "backend": "transformers_pil",
        "transparency": "white",
        "rescale_factor": 1 / 127,
        "patch_size": None,
        "max_patches": None,
        "pad": False,
        "normalize": True,
        "origin": "a test",
        "assumed": True,
        **changes,
    }


def test_json_gives_back_every_field():
    p = Preprocessing.from_dict(json.loads(json.dumps(fields())))
    assert p.to_dict() == fields()
    assert Preprocessing.from_dict(json.loads(json.dumps(p.to_dict()))) == p
    assert p.image_size == (32, 48)
    assert hash(p) == hash(Preprocessing.from_dict(fields()))


def test_defaults_may_be_left_out():
    short = fields()
    for name in ("transparency", "rescale_factor", "normalize", "assumed"):
        del short[name]
    p = Preprocessing.from_dict(short)
    assert (p.transparency, p.rescale_factor, p.normalize) == ("drop", 1 / 255, True)
    del short["mean"], short["crop"]
    with pytest.raises(MissingFact, match=r"Preprocessing lacks crop, mean\."):
        Preprocessing.from_dict(short)


def test_all_contradictions_are_told_at_once():
    with pytest.raises(ConflictingFact) as caught:
        Preprocessing.from_dict(
            fields(
                interpolation="cubic",
                resize="none",
                backend="torch",
                transparency="black",
                std=[0.5],
            )
        )
    assert str(caught.value) == (
        "error: conflicting-fact\n"
        "  The preprocessing contradicts itself.\n"
        "  interpolation = 'cubic' is not one of nearest, bilinear, bicubic, lanczos, box, "
        "hamming\n"
        "  backend = 'torch' is not one of torchvision, open_clip, transformers, transformers_pil, "
        "transformers_float, tensorflow, big_vision, keras, keras_antialias, segment_anything, "
        "mmpretrain, kaldi\n"
        "  transparency = 'black' is not one of drop, white, key\n"
        "  mean has 3 values and std 1: both need 3 (RGB) or 1 (grey)\n"
        "  resize = 'none' does not fit resize_size = (32, 48)"
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"resize": "shortest", "crop": True}, "resize = 'shortest' needs one size, not 32x48"),
        ({"resize": "longest", "pad": True}, "resize = 'longest' needs one size, not 32x48"),
        ({"pad": True}, "pad does not fit resize = 'squash', crop = False"),
        (
            {"pad": "no", "resize": "longest", "resize_size": [48, 48]},
            "pad = 'no' is neither true nor false",
        ),
        ({"resize": "cover"}, "resize = 'cover' without crop makes images of any size"),
        ({"resize_size": [32, 49]}, "squashing to 32x49 without crop never makes 32x48"),
        (
            {"backend": "torchvision"},
            f"backend = 'torchvision' always rescales by 1/255, not by {1 / 127}",
        ),
        (
            {"normalize": False},
            "normalize = False needs mean 0 and std 1, "
            "not mean = (0.4, 0.5, 0.6), std = (0.2, 0.3, 0.25)",
        ),
        ({"rescale_factor": -1.0}, "rescale_factor = -1.0 must be positive"),
        ({"crop": "no"}, "crop = 'no' is neither true nor false"),
        (
            {"resize": "patches", "resize_size": None, "patch_size": 16},
            "resize = 'patches' does not fit patch_size = 16, max_patches = None",
        ),
        ({"image_size": [3, 32, 48]}, "image_size = [3, 32, 48] should be 2 numbers."),
        ({"image_size": "32x48"}, "image_size = '32x48' should be 2 numbers."),
        ({"resize_size": [3.5, 2]}, "resize_size = [3.5, 2] should be whole numbers of pixels."),
        ({"mean": ["0.5"]}, "mean = ['0.5'] should be a number."),
        ({"std": [float("nan")] * 3}, "std = [nan, nan, nan] should be 3 numbers."),
        ({"rescale_factor": "1/255"}, "rescale_factor = '1/255' should be a number."),
        ({"crop_pct": 1.0}, "Preprocessing has no crop_pct."),
    ],
)
def test_a_contradiction_is_told(changes, problem):
    with pytest.raises(ConflictingFact) as caught:
        Preprocessing.from_dict(fields(**changes))
    assert [problem] == (list(caught.value.details) or [caught.value.fact])


def test_a_dialect_states_a_crop_fraction_or_a_size():
    fraction = Preprocessing.from_dialect({**TORCHVISION, "crop_pct": 0.875}, image_size=(224, 224))
    size = Preprocessing.from_dialect({**TORCHVISION, "resize_size": 242}, image_size=(224, 224))
    neither = Preprocessing.from_dialect(TORCHVISION, image_size=(384, 384))
    assert fraction.resize_size == (256, 256)
    assert size.resize_size == (242, 242)
    assert neither.resize_size == (384, 384)
    assert fraction.crop and size.crop and neither.crop
    assert fraction.origin == "dialect default"


def test_a_dialect_that_squashes_crops_nothing():
    squash = {**TORCHVISION, "resize": "squash"}
    p = Preprocessing.from_dialect(squash, image_size=(32, 48), origin="weights_map/x.toml")
    assert (p.resize_size, p.crop, p.origin) == ((32, 48), False, "weights_map/x.toml")


def test_a_dialect_with_a_shortest_side_covers_what_is_not_square():
    from open_clip.transform import image_transform

    random = np.random.default_rng(3)
    image = Image.fromarray(random.integers(0, 256, (61, 45, 3), dtype=np.uint8))
    ours = Preprocessing.from_dialect(TORCHVISION, image_size=(24, 40))
    theirs = image_transform((24, 40), is_train=False, mean=(0.5,) * 3, std=(0.5,) * 3)
    ours = dataclasses.replace(ours, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic")
    assert (ours.resize, ours.resize_size) == ("cover", (24, 40))
    assert (ours(image) == theirs(image)).all()


def test_jeonsworld_squashes_on_pillow():
    """torchvision's Resize((size, size)), ToTensor and Normalize, spelled by its table."""
    from torchvision import transforms

    random = np.random.default_rng(3)
    image = Image.fromarray(random.integers(0, 256, (61, 45, 3), dtype=np.uint8))
    theirs = transforms.Compose(
        [
            transforms.Resize((32, 32)),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5]),
        ]
    )
    section = {**TORCHVISION, "resize": "squash", "mean": 0.5, "std": 0.5}
    ours = Preprocessing.from_dialect(section, image_size=(32, 32))
    assert (ours(image) == theirs(image)).all()


def test_a_dialect_of_grey_images_repeats_one_mean():
    section = {**TORCHVISION, "resize": "squash", "mean": [0.5, 0.5, 0.5], "std": 0.25}
    p = Preprocessing.from_dialect(section, image_size=(28, 28), channels=1)
    assert (p.mean, p.std) == ((0.5,), (0.25,))
    with pytest.raises(ConflictingFact) as caught:
        Preprocessing.from_dialect(TORCHVISION, image_size=(28, 28), channels=1)
    assert caught.value.fact == "mean = [0.485, 0.456, 0.406] should be a number."


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        (
            {"resize": "squash", "colour": "rgb", "mean": 0.5, "std": 0.5},
            TableError,
            "error: table-error\n"
            "  A [preprocessing] section has unknown or missing keys.\n"
            "  unknown  colour\n"
            "  missing  backend, interpolation",
        ),
        (
            {**TORCHVISION, "crop_pct": 0.9, "resize_size": 256},
            TableError,
            "error: table-error\n  A [preprocessing] section states both crop_pct and resize_size.",
        ),
        (
            {**TORCHVISION, "backend": "transformers", "interpolation": "hamming"},
            NotRepresentable,
            "error: not-representable\n"
            "  The transformers backend cannot resize with the hamming filter.\n"
            "  filters  nearest, bilinear, bicubic, lanczos\n"
            "  from     dialect default",
        ),
        (
            # TensorFlow's cubic is Keys' with a = -0.5, torch's has -0.75.
            {**TORCHVISION, "backend": "tensorflow", "interpolation": "bicubic"},
            NotRepresentable,
            "error: not-representable\n"
            "  The tensorflow backend cannot resize with the bicubic filter.\n"
            "  filters  bilinear\n"
            "  from     dialect default",
        ),
    ],
)
def test_a_dialects_mistake_is_told(section, error, message):
    with pytest.raises(error) as caught:
        Preprocessing.from_dialect(section, image_size=(224, 224))
    assert str(caught.value) == message
