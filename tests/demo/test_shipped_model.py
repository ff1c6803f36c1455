import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from tests.packages import timm
from vitconvert.api import load_checkpoint, load_model
from vitconvert.demo import train
from vitconvert.demo.demonstration import DIGITS

FILES = [path for path in sorted(DIGITS.rglob("*")) if path.is_file()]
CLASSES = [str(digit) for digit in range(10)]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def digit(size: int) -> Image.Image:
    """A grey image with every value that a digit can have, of 8x8 pixels or enlarged."""
    values = np.random.default_rng(3).integers(0, 256, (8, 8), dtype=np.uint8)
    return Image.fromarray(values.repeat(size // 8, 0).repeat(size // 8, 1))


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < 400_000


def test_nothing_else_lies_there() -> None:
    names = {path.relative_to(DIGITS).as_posix() for path in FILES}
    assert names == {
        "README.md",
        "config.json",
        "model.safetensors",
        "training.json",
        "vitconvert.json",
        *(f"samples/{name}.png" for name in CLASSES),
    }


def test_no_path_of_a_machine_is_written_into_it() -> None:
    text = "".join(path.read_text() for path in FILES if path.suffix == ".json")
    assert re.findall(r'"(?:file:|~|[A-Za-z]:\\|/)[^"]*"', text) == []
    assert not re.search(r"/(tmp|home|root|Users|work)\b", text)


def test_the_recorded_accuracy_is_what_the_weights_have() -> None:
    pytest.importorskip("sklearn")
    recorded = json.loads((DIGITS / "training.json").read_text())
    learned_from, held_out = train.split()
    assert train.accuracy(load_model(DIGITS), held_out) == recorded["held_out_accuracy"]
    assert recorded["held_out_accuracy"] >= 0.97
    assert (len(learned_from.classes), len(held_out.classes)) == (
        recorded["trained_on"],
        recorded["held_out"],
    )


def test_it_is_the_model_that_the_script_trains() -> None:
    checkpoint = load_checkpoint(DIGITS)
    assert checkpoint.config == train.CONFIG
    assert checkpoint.preprocessing == train.PREPROCESSING
    assert list(checkpoint.labels or ()) == CLASSES


def test_timm_loads_it(images: torch.Tensor) -> None:
    theirs = timm.create_model(f"local-dir:{DIGITS}", pretrained=True).eval()
    with torch.inference_mode():
        assert torch.equal(theirs(images), load_model(DIGITS)(images))
    assert theirs.pretrained_cfg["label_names"] == CLASSES


@pytest.mark.slow
def test_transformers_loads_it(images: torch.Tensor) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(DIGITS).eval()
    with torch.inference_mode():
        assert torch.equal(theirs(images).logits, load_model(DIGITS)(images))
    assert [theirs.config.id2label[index] for index in range(10)] == CLASSES


@pytest.mark.parametrize("size", [8, 32])
def test_timm_makes_the_pixels_of_the_training(size: int) -> None:
    theirs = timm.create_model(f"local-dir:{DIGITS}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=theirs))
    ours = train.PREPROCESSING(digit(size))
    assert torch.equal(transform(digit(size).convert("RGB")), ours)
    assert torch.equal(ours, train.PREPROCESSING(digit(8)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 32])
def test_transformers_makes_the_pixels_of_the_training(size: int) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.AutoImageProcessor.from_pretrained(DIGITS)
    theirs = processor(digit(size).convert("RGB"), return_tensors="pt").pixel_values[0]
    torch.testing.assert_close(theirs, train.PREPROCESSING(digit(size)), rtol=0, atol=1e-6)


def test_the_samples_are_held_out_digits() -> None:
    pytest.importorskip("sklearn")
    grey, classes = train.read_digits()
    held_out, names = grey[:: train.HELD_OUT], classes[:: train.HELD_OUT]
    for name in CLASSES:
        sample = np.asarray(Image.open(DIGITS / "samples" / f"{name}.png"))
        assert sample.shape == (32, 32, 3)
        assert any(np.array_equal(sample[::4, ::4, 0], d) for d in held_out[names == int(name)])
