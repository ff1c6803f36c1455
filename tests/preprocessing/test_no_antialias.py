"""Google's JAX weights, whose images are resized without antialias, as timm never resizes.

What is printed says so, and so does all that leads to timm's own pixels.
"""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.packages import timm
from tests.saved_timm import NAMES, save_timm
from vitconvert.cli import main
from vitconvert.errors import ParityFailed, VitConvertWarning
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.testing import assert_parity

STEPS = {"resize": "squash", "mean": 0.5, "std": 0.5}
FILTERS = [
    (name, filter_)
    for name, backend in BACKENDS.items()
    for filter_ in ("nearest", "bilinear", "bicubic")
    if name != "kaldi" and filter_ in backend.interpolations
]
MEASURE = "`vitconvert verify DIR --images PHOTOS`"


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    """A file in Google's layout, of eleven blocks and 32x32 pixels."""
    folder = tmp_path_factory.mktemp("google")
    save_timm(folder / "timm")
    how = {"overrides": {"activation": "gelu_tanh"}, "verify": False}
    vitconvert.convert(folder / "timm", to="google_jax", output=folder / "jax", **how)
    file = folder / "vit.npz"  # alone: its own library writes nothing beside it
    file.write_bytes((folder / "jax" / "model.npz").read_bytes())
    return file


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    file = tmp_path_factory.mktemp("photo") / "noise.png"
    noise = np.random.default_rng(5).integers(0, 256, (211, 303, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    return file


@pytest.fixture
def tuned(google, tmp_path):
    """The directory of a model that was loaded, given another head, and saved."""
    model = vitconvert.load_model(google, overrides={"num_heads": 3}, num_classes=len(NAMES))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    with pytest.warns(VitConvertWarning, match="prepares some images differently") as told:
        model.save_pretrained(tmp_path / "tuned")
    (note,) = (str(one.message) for one in told if "prepares some" in str(one.message))
    assert "timm resizes with antialiasing" in note and MEASURE in note
    return tmp_path / "tuned"


def test_the_filter_is_named_as_what_it_is(google, tuned, capsys):
    with pytest.raises(SystemExit):
        main(["inspect", str(google), "--set", "num_heads=3"])
    assert "squashed to 32x32, bilinear without antialias, mean" in capsys.readouterr().out
    card = (tuned / "README.md").read_text()
    assert "squashed to 32x32 (bilinear without antialias), over 255" in card
    for backend, words in (
        ("keras", "bicubic (a = -0.5) without antialias"),
        ("keras_antialias", "bicubic"),
        ("big_vision", "bilinear without antialias, truncated to whole levels"),
    ):
        stated = {**STEPS, "interpolation": words.split()[0], "backend": backend}
        assert Preprocessing.from_dialect(stated, image_size=(48, 32)).filtering == words


@pytest.mark.parametrize(("backend", "interpolation"), FILTERS)
def test_words_of_filters_differ_where_pixels_do(backend, interpolation, photo):
    """From Pillow's filter of the same name, by more than whole numbers and tensors round."""
    stated = {**STEPS, "interpolation": interpolation}
    pixels, words = {}, {}
    for name in (backend, "torchvision"):
        one = Preprocessing.from_dialect({**stated, "backend": name}, image_size=(48, 32))
        pixels[name], words[name] = one(photo) * 127.5, one.filtering
    difference = (pixels[backend] - pixels["torchvision"]).abs().max()
    assert (words[backend] != words["torchvision"]) == bool(difference > 8)


def test_timms_record_says_that_its_pixels_are_the_nearest(google, photo):
    model = vitconvert.load_model(google, overrides={"num_heads": 3})
    with pytest.warns(VitConvertWarning) as told:
        data = timm.data.resolve_model_data_config(model)
    (note,) = (str(one.message) for one in told)
    assert note.startswith("pretrained_cfg: the nearest that timm can do, not equal: timm resizes")
    assert (data["mean"], data["interpolation"], data["crop_pct"]) == ([0.5] * 3, "bilinear", 1)
    theirs = timm.data.create_transform(**data, is_training=False)(Image.open(photo))
    ours = vitconvert.load_checkpoint(google, overrides={"num_heads": 3}).preprocessing(photo)
    assert (theirs - ours).abs().max() > 0.5  # so the warning is true


def test_timms_record_says_nothing_where_its_pixels_are_equal(tmp_path):
    model = vitconvert.load_model(save_timm(tmp_path / "timm"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert timm.data.resolve_model_data_config(model)["mean"]


def test_timms_record_says_that_nothing_is_near(google):
    padded = {**STEPS, "resize": "longest", "interpolation": "bilinear", "pad": True}
    stated = Preprocessing.from_dialect({**padded, "backend": "torchvision"}, image_size=(32, 32))
    checkpoint = vitconvert.load_checkpoint(google, overrides={"num_heads": 3})
    model = vitconvert.load_model(replace(checkpoint, preprocessing=stated))
    with pytest.warns(VitConvertWarning, match="no mean and std, so timm takes its defaults"):
        assert "mean" not in model.pretrained_cfg


@pytest.mark.slow
def test_a_verification_says_that_only_images_are_prepared_differently(tuned, photo):
    report = vitconvert.verify(tuned, images=photo)
    first, *_ = report.summary().splitlines()
    only = "for image files, which it prepares differently; bit-equal for the same tensors"
    assert first == f"not equal to {report.reference} {only}"
    assert (report.verdict, report.ok) == ("not equal", False)
    assert only in report.to_html()
    with pytest.raises(ParityFailed, match=only):
        report.raise_if_failed()
    with pytest.raises(AssertionError, match=only):
        assert_parity(tuned, images=photo)
    (wrote,) = (fact for fact in report.not_tested if "that wrote it" in fact)
    compared = "its output was compared with its source (timm, transformers)"
    assert wrote == f"the conversion that wrote it: {compared}, its source with no library"


def test_a_saved_model_that_was_not_compared_is_not_verified(google, tmp_path):
    model = vitconvert.load_model(google, overrides={"num_heads": 3})
    model.save_pretrained(tmp_path / "saved", verify=False)
    record = json.loads((tmp_path / "saved" / "vitconvert.json").read_text())
    assert record["parity"] is None and record["opened_by"] == []
    report = vitconvert.verify(tmp_path / "saved", dtypes=["float32"], batch=1)
    assert "the conversion that wrote it: it was not verified" in report.not_tested
    assert report.ok and report.only_files == ""
