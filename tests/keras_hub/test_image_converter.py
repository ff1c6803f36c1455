"""What KerasHub's ImageConverter makes of photographs, and what is written for it."""

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.packages import keras_hub
from vitconvert import convert, predict, verify
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.transform import placement

pytestmark = pytest.mark.filterwarnings("ignore")
SCALES: dict[str, Any] = {"scale": [0.019, 0.013, 0.0156], "offset": [-1.9, -2.1, -1.7]}
CASES: dict[str, dict[str, Any]] = {
    "as ViT": {"scale": 1 / 127.5, "offset": -1},
    "as CLIP": SCALES | {"interpolation": "bicubic", "antialias": True},
    "bicubic": SCALES | {"interpolation": "bicubic"},
    "squashed": SCALES | {"crop_to_aspect_ratio": False, "antialias": True},
    "nearest": {"scale": 1 / 255, "interpolation": "nearest"},
    "lanczos": {"interpolation": "lanczos3", "antialias": True},
}


def photograph(height: int = 67, width: int = 90) -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype("uint8")
    pixels[height // 2, width // 2] = 0  # Keras on NumPy clips to what an image has
    pixels[height // 2, width // 2 - 1] = 255
    return Image.fromarray(pixels)


def said(**arguments: Any) -> dict[str, Any]:
    return {"class_name": "ViTImageConverter", "config": {"image_size": [16, 24]} | arguments}


@pytest.mark.slow
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("size", [(67, 90), (90, 41), (9, 11), (16, 24)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_image_converter(name, size):
    image = photograph(*size)
    layer = keras_hub.layers.ImageConverter(image_size=(16, 24), **CASES[name])
    wanted = np.array(layer(np.array(image))).astype("f4").transpose(2, 0, 1)
    ours = Preprocessing.from_keras_hub(said(**CASES[name]), image_size=(16, 24))
    found = ours(image).numpy()
    rounding = 4e-7 * np.abs(wanted).max()
    assert np.abs(found - wanted).max() <= rounding
    written = Preprocessing.from_keras_hub({"config": ours.to_keras_hub()}, image_size=(16, 24))
    assert np.abs(written(image).numpy() - wanted).max() <= rounding
    assert written.resize == ours.resize and written.backend == ours.backend


def test_what_is_cut_out_is_where_the_photograph_has_it():
    steps = Preprocessing.from_keras_hub(said(), image_size=(16, 24))
    assert placement(steps, (100, 90)).box == pytest.approx((20, 0, 80, 90))
    assert placement(steps, (40, 100)).box == pytest.approx((0, 20, 40, 80))


def test_what_others_say_comes_near():
    theirs = said(image_size=[24, 24], scale=1 / 127.5, offset=-1.0)
    steps = Preprocessing.from_keras_hub(theirs, image_size=(24, 24))
    assert steps.mean == pytest.approx((0.5, 0.5, 0.5)) and steps.std == pytest.approx((0.5,) * 3)
    processor = steps.to_huggingface()
    assert processor["size"] == {"shortest_edge": 24}
    assert processor["crop_size"] == {"height": 24, "width": 24}
    cfg = steps.to_timm()
    assert (cfg["crop_mode"], cfg["crop_pct"]) == ("center", 1.0)
    with pytest.raises(NotRepresentable):
        Preprocessing.from_keras_hub(said(), image_size=(16, 24)).to_huggingface()


@pytest.mark.parametrize(
    ("arguments", "kind", "fact"),
    [
        ({"pad_to_aspect_ratio": True}, NotRepresentable, "pad_to_aspect_ratio = True of an"),
        ({"variance": [1, 1, 1]}, NotRepresentable, "variance = [1, 1, 1] of an ImageConverter"),
        ({"interpolation": "lanczos5"}, NotRepresentable, "interpolation = 'lanczos5' of an"),
        (
            {"offset": 1.0},
            NotRepresentable,
            "offset = 1.0 without a scale is added to whole numbers",
        ),
        ({"scale": 0.0}, ConflictingFact, "scale = 0.0 makes all pixels alike."),
        ({"scale": -1.0}, ConflictingFact, "The preprocessing contradicts itself."),
        ({"image_size": "large"}, ConflictingFact, "image_size = 'large'"),
    ],
)
def test_error_image_converters(arguments, kind, fact):
    with pytest.raises(kind) as error:
        Preprocessing.from_keras_hub(said(**arguments), image_size=(16, 24))
    assert error.value.fact.startswith(fact)


@pytest.mark.slow
@pytest.mark.usefixtures("keras_in_numpy")
def test_a_preset_prepares_photographs_as_before(tmp_path):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 12, "mlp_dim": 20}
    backbone = keras_hub.models.ViTBackbone((16, 24, 3), (8, 8), **sizes)
    arguments: dict[str, Any] = CASES["as CLIP"] | {"image_size": (16, 24)}
    prepares = keras_hub.models.ViTImageClassifierPreprocessor(
        keras_hub.layers.ViTImageConverter(**arguments)
    )
    model = keras_hub.models.ViTImageClassifier(backbone, 5, preprocessor=prepares)
    model.save_to_preset(str(tmp_path / "x"))
    image = photograph()
    wanted = model(prepares(np.array(image)[None]))[0]
    (answer,) = predict(tmp_path / "x", [image])
    found = [one.logit for one in sorted(answer.top, key=lambda one: one.index)]
    assert np.abs(np.array(found) - wanted).max() < 1e-5
    done = convert(tmp_path / "x", to="keras_hub", output=tmp_path / "back")
    assert done.departures == ()
    written, theirs = (
        json.loads((tmp_path / d / "image_converter.json").read_text()) for d in ("back", "x")
    )
    assert written["registered_name"] == theirs["registered_name"]
    for name, value in written["config"].items():
        assert value == pytest.approx(theirs["config"][name]) or value is theirs["config"][name]
    again = keras_hub.models.ImageClassifier.from_preset(str(tmp_path / "back"))
    found = again(again.preprocessor(np.array(image)[None]))[0]
    assert np.abs(found - wanted).max() < 1e-5
    converter = keras_hub.layers.ImageConverter.from_preset(str(tmp_path / "back"))
    assert np.abs(converter(np.array(image)) - prepares(np.array(image))).max() < 1e-5
    report = verify(tmp_path / "back", images=[image])
    assert report.verdict in ("equal", "bit-equal")
    assert not any("photographs" in part for part in report.not_tested)
