"""What was assumed, passed over or too large is told by every verb that reads images."""

import shutil
import struct
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.packages import torchvision
from tests.small_models import randomise
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import VitConvertWarning

READING = {
    "predict": (),
    "embed": (),
    "embed to a file": ("-o", "x.npz"),
    "embed to a directory": ("-o", "x"),
    "predict to a directory": ("-o", "y"),
    "attention": ("--json",),
}
READERS = pytest.mark.parametrize("verb", READING)


DIRECTORY = "to a directory"


def asked(run, verb, model, *options):
    return run(verb.partition(" ")[0], model, "photos", *READING[verb], *options)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a photograph, and a file of torchvision's class alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (61, 45, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photos/one.png")
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 24}
    model = torchvision.models.VisionTransformer(**sizes, mlp_dim=30, num_classes=5)
    torch.save(randomise(model).state_dict(), "alone.pth")
    return tmp_path


@READERS
def test_files_that_are_no_images_are_counted(verb, place, run):
    for name in ("a.HEIC", "b.heic", "c.txt", ".hidden.heic"):
        (place / "photos" / name).write_bytes(b"no image")
    answer = asked(run, verb, DIGITS)
    assert answer.code == 0, answer.err
    told = "note: 1 image; 3 files not read: 2 .heic, 1 .txt; save .heic as .jpg or .png\n"
    assert answer.err.count(told) == 1


@READERS
def test_a_folder_without_images_says_what_it_has(verb, place, run):
    (place / "photos" / "one.png").rename(place / "photos" / "one.heic")
    answer = asked(run, verb, DIGITS)
    assert answer.code == 1
    assert "There are no images" in answer.err
    assert "there   1 file not read: 1 .heic" in answer.err.replace("there  1", "there   1")


def test_python_is_warned_once_of_files_that_are_no_images(place):
    (place / "photos" / "a.heic").touch()
    with pytest.warns(VitConvertWarning, match=r"1 image; 1 file not read: 1 \.heic") as told:
        (found,) = vitconvert.predict(DIGITS, "photos")
    assert len(told) == 1 and found.error is None


@READERS
def test_a_preprocessing_that_is_assumed_is_told(verb, place, run):
    answer = asked(run, verb, "alone.pth", "--set", "num_heads=2")
    assert answer.code == 0, answer.err
    assert (
        answer.err.count("preprocessing: assumed: weights_map/torchvision.toml; --preprocessor")
        == 1
    )
    unnamed = "labels: none, so the 5 classes are numbers; --labels FILE names them"
    assert answer.err.count(unnamed) == (not verb.startswith("embed"))
    quiet = asked(run, verb, "alone.pth", "--set", "num_heads=2", "-q")
    assert "assumed" not in quiet.err


def test_it_is_told_of_a_conversions_output_too(place, run):
    stated = ("--set", "num_heads=2", "--no-verify")
    assert run("convert", "alone.pth", "--to", "timm", "-o", "out", *stated).code == 0
    for verb in ("predict", "embed"):
        told = "preprocessing: assumed: weights_map/torchvision.toml"
        assert told in run(verb, "out", "photos").err
    (place / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    stated = ("--mean", "0.5", "--std", "0.5", "--crop", "1", "--labels", "labels.txt")
    told = run("predict", "out", "photos", *stated).err
    assert "labels:" not in told


def test_python_is_warned_of_what_is_assumed(place):
    with pytest.warns(VitConvertWarning) as told:
        checkpoint = vitconvert.load_checkpoint("alone.pth", overrides={"num_heads": 2})
        for _ in range(2):
            list(vitconvert.predict(checkpoint, "photos"))
    assert len({str(one.message) for one in told}) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", VitConvertWarning)
        names, steps = (
            list("abcde"),
            vitconvert.Preprocessing.from_timm({"input_size": (3, 32, 32)}),
        )
        list(vitconvert.predict(checkpoint, "photos", steps, labels=names))


@READERS
def test_a_bad_image_never_stops_the_rest(verb, place, run):
    """Of whatever type what a decoder raises is."""
    bad = place / "photos" / "bad.tif"
    Image.new("RGB", (30, 20)).save(bad)
    offsets, as_text = struct.pack("<HH", 273, 4), struct.pack("<HH", 273, 2)
    bad.write_bytes(bad.read_bytes().replace(offsets, as_text))
    with Image.open(bad) as image, pytest.raises(TypeError):  # of Pillow
        image.load()
    (place / "photos" / "none.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    shutil.copy(DIGITS / "samples" / "3.png", "photos/three.png")
    answer = asked(run, verb, DIGITS)
    assert answer.code == 1
    assert "Traceback" not in answer.err
    if DIRECTORY in verb:
        assert "4 images in 1 shard; 2 of them failed" in answer.err
    else:
        assert "none.png" in answer.err and "bad.tif" in answer.err


@READERS
def test_a_large_image_is_read_where_the_user_allows_it(verb, place, run, monkeypatch):
    monkeypatch.setattr("vitconvert.preprocessing.image_files.MOST_MEMORY", 10_000)
    answer = asked(run, verb, DIGITS)
    assert answer.code == 1
    more = ["--max-image-pixels", "2745"]
    if DIRECTORY in verb:
        more.append("--retry-failed")
    else:
        assert "--max-image-pixels 2745" in answer.err
    answer = asked(run, verb, DIGITS, *more)
    assert answer.code == 0, answer.err
    if verb == "attention":
        (maps,) = vitconvert.attention_maps(DIGITS, "photos", max_image_pixels=2745)
        assert maps.picture().size == (45, 61)


@pytest.mark.slow
def test_verify_takes_the_same_limit(place, run, monkeypatch):
    monkeypatch.setattr("vitconvert.preprocessing.image_files.MOST_MEMORY", 10_000)
    answer = run("verify", DIGITS, "--images", "photos")
    assert answer.code == 2 and "more pixels than are allowed" in answer.err
    answer = run("verify", DIGITS, "--images", "photos", "--max-image-pixels", "2745")
    assert answer.code == 0, answer.err
