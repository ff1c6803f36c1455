"""--image-size: it states a size that nothing shows, and resamples positions that show another."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.packages import transformers
from tests.small_models import randomise, relative
from tests.towers.test_qwen import made
from vitconvert.errors import MissingFact, UsageError
from vitconvert.programs.transformers.running import run as run_theirs

PIXELS = ("--mean", "0.5", "--std", "0.5", "--crop", "1")


@pytest.fixture(scope="module")
def photograph(tmp_path_factory):
    pixels = np.random.default_rng(0).integers(0, 256, (36, 60, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("images") / "photograph.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A tower of which nothing shows the size of its images."""
    folder = tmp_path_factory.mktemp("qwen")
    (model := made("qwen2_vl")).save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A classifier whose learned positions show 32 x 32 pixels."""
    config = transformers.ViTConfig(
        hidden_size=30,
        image_size=32,
        patch_size=8,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=50,
        num_labels=7,
    )
    torch.manual_seed(0)
    randomise(model := transformers.ViTForImageClassification(config))
    folder = tmp_path_factory.mktemp("vit")
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder, model.eval()


def images_of(photograph, size):
    with Image.open(photograph) as image:
        assert image.size == (size[1], size[0])
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    return pixels[None].float() / 255 * 2 - 1


def test_it_states_what_nothing_shows(qwen, photograph, tmp_path, run):
    folder, model = qwen
    images = images_of(photograph, (36, 60))
    with torch.inference_mode():
        wanted = run_theirs(model, images)
    with pytest.raises(MissingFact, match="image_size"):
        vitconvert.load_model(folder)
    ours = vitconvert.load_model(folder, image_size=(36, 60))
    assert relative(ours(images), wanted) < 1e-4
    assert ours.config.origins["image_size"] == "user"
    vitconvert.convert(folder, output=tmp_path / "out", image_size=(36, 60))
    assert relative(vitconvert.load_model(tmp_path / "out")(images), wanted) < 1e-4
    assert run("convert", folder, "--image-size", "36x60", "-o", tmp_path / "too").code == 0
    said = run("embed", folder, photograph, "--image-size", "36x60", *PIXELS)
    assert said.code == 0, said.err
    found = torch.tensor(json.loads(said.out)["features"])
    assert relative(found, wanted[0]) < 1e-4
    rows = tmp_path / "rows"
    assert run("embed", folder, photograph, "--image-size", "36x60", *PIXELS, "-o", rows).code == 0
    exported = tmp_path / "tower.pt2"
    what = ("--to", "pt2", "-o", exported, "--image-size", "36x60", "--batch-size", "1")
    assert run("export", folder, *what).code == 0


def test_it_resamples_learned_positions(vit, photograph, tmp_path, run):
    folder, model = vit
    images = images_of(photograph, (36, 60))[:, :, :32, :56].contiguous()
    with torch.inference_mode():
        wanted = model(images, interpolate_pos_encoding=True).logits[0]
    path = tmp_path / "part.png"
    Image.open(photograph).crop((0, 0, 56, 32)).save(path)
    size = ("--image-size", "32x56")
    line = json.loads(run("predict", folder, path, *size, "--json", "--top", "7").out)
    found = torch.tensor([one["logit"] for one in sorted(line["top"], key=lambda c: c["index"])])
    assert relative(found, wanted) < 1e-4
    resized = vitconvert.load_checkpoint(folder, image_size=(32, 56))
    (prediction,) = vitconvert.predict(resized, path, topk=1)
    assert prediction.top[0].logit == pytest.approx(wanted.max().item(), rel=1e-4)
    assert resized.config.image_size == resized.preprocessing.image_size == (32, 56)
    exported = tmp_path / "vit.onnx"
    assert run("export", folder, "--to", "onnx", "-o", exported, *size).code == 0
    (prediction,) = vitconvert.predict(exported, path, topk=1)
    assert prediction.top[0].logit == pytest.approx(wanted.max().item(), rel=1e-3)
    assert run("predict", exported, path, *size).code == 0
    refused = run("predict", exported, path, "--image-size", "40x56")
    assert refused.code == 2 and "images of 32x56 pixels only" in refused.err
    maps = run("attention", folder, path, *size, "--json")
    assert maps.code == 0, maps.err


def test_what_is_no_size_is_refused(vit, photograph, run):
    with pytest.raises(UsageError, match="image_size"):
        vitconvert.load_checkpoint(vit[0], image_size="large")
    assert run("predict", vit[0], photograph, "--image-size", "large").code == 2
    answer = run("predict", vit[0], photograph, "--image-size", "33")
    assert answer.code == 2 and "does not divide into patches" in answer.err


def test_whoever_states_it_is_not_overruled(tmp_path: Path, qwen) -> None:
    said = {"overrides": {"image_size": (24, 24)}}
    model = vitconvert.load_model(qwen[0], image_size=(36, 60), **said)
    assert model.config.image_size == (36, 60)  # stated as 24, and computed anew for 36 x 60
