import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from vitconvert.api import load_checkpoint, predict
from vitconvert.checkpoint import build_model
from vitconvert.demo import train
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import MissingPackage, OutputExists, UsageError

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("demo") / "digits"
    train.train(output, epochs=1, quiet=True)
    return output


def test_a_directory_is_written_that_loads_and_reads(trained: Path) -> None:
    checkpoint = load_checkpoint(trained)
    assert checkpoint.preprocessing is not None
    (prediction,) = predict(
        build_model(checkpoint),
        [trained / "samples" / "7.png"],
        checkpoint.preprocessing,
        labels=checkpoint.labels,
    )
    assert prediction.error is None
    assert len({candidate.label for candidate in prediction.top}) == 5


def test_all_but_weights_and_figures_is_as_shipped(trained: Path) -> None:
    names = {path.relative_to(trained) for path in trained.rglob("*")}
    assert names == {path.relative_to(DIGITS) for path in DIGITS.rglob("*")}
    own = {"README.md", "model.safetensors", "training.json", "vitconvert.json"}
    for name in names:
        if (DIGITS / name).is_file() and name.name not in own:
            assert (trained / name).read_bytes() == (DIGITS / name).read_bytes(), name
    record = json.loads((trained / "training.json").read_text())
    shipped = json.loads((DIGITS / "training.json").read_text())
    assert 0 <= record.pop("held_out_accuracy") <= 1 < shipped.pop("held_out_accuracy") + 0.03
    assert record == shipped | {"epochs": 1, "torch": torch.__version__.split("+")[0]}


@pytest.mark.slow
def test_the_same_bytes_come_out_again(trained: Path, tmp_path: Path) -> None:
    train.train(tmp_path / "again", epochs=1, quiet=True)
    for name in ("model.safetensors", "training.json", "vitconvert.json"):
        assert (tmp_path / "again" / name).read_bytes() == (trained / name).read_bytes(), name


@pytest.mark.slow
def test_training_teaches() -> None:
    learned_from, _ = train.split()
    few = train.Digits(pixels=learned_from.pixels[:128], classes=learned_from.classes[:128])
    trained = train.fit(few, epochs=60, quiet=True)
    assert train.accuracy(train.untrained(), few) < 0.3
    assert train.accuracy(trained, few) > 0.6
    assert not trained.training


def test_no_digit_is_both_learned_and_held_out() -> None:
    learned_from, held_out = train.split()
    assert learned_from.pixels.shape == (1437, 3, 32, 32)
    assert held_out.pixels.shape == (360, 3, 32, 32)
    grey, classes = train.read_digits()
    assert grey.dtype == np.uint8
    assert set(np.unique(grey)) == {round(value * 255 / 16) for value in range(17)}
    assert torch.equal(held_out.classes, torch.from_numpy(classes)[::5])
    rows = {digit.numpy().tobytes() for digit in learned_from.pixels}
    assert not any(digit.numpy().tobytes() in rows for digit in held_out.pixels)


def test_jittered_images_differ_a_little_from_the_originals() -> None:
    torch.manual_seed(0)
    images = torch.full((64, 3, 32, 32), -1.0)
    images[:, :, 14:18, 14:18] = 1.0
    jittered = train.jittered(images)
    ink = (jittered + 1).sum(dim=(1, 2, 3))
    rows = torch.arange(32.0).view(1, 1, 32, 1)
    centre = ((jittered + 1) * rows).sum(dim=(1, 2, 3)) / ink
    assert jittered.shape == images.shape
    assert jittered.min() >= -1.0 and jittered.max() <= 1.0
    assert (centre - 15.5).abs().max() < 3
    assert centre.std() > 0.5
    assert ink.std() > 1


def test_without_jitter_the_images_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "SHIFT", 0.0)
    monkeypatch.setattr(train, "DEFORMATION", 0.0)
    images = torch.rand(3, 3, 32, 32) * 2 - 1
    torch.testing.assert_close(train.jittered(images), images, rtol=0, atol=1e-5)


def test_an_existing_output_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").touch()
    monkeypatch.setattr(train, "fit", lambda *_, **__: pytest.fail("it began to train"))
    with pytest.raises(OutputExists):
        train.train(tmp_path)


def test_without_scikit_learn_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackage):
        train.read_digits()
    result = CliRunner().invoke(train.main, [str(tmp_path / "digits")])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: missing-package\n"
        "  scikit-learn is not installed, and the digits come with it.\n"
        "  hint: pip install scikit-learn\n"
    )
    assert not (tmp_path / "digits").exists()


@pytest.mark.slow
def test_images_in_a_folder_for_each_class_are_learned(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(10):
            pixels = np.clip(level + draw.normal(0, 20, (40, 44, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    task = train.of_images(tmp_path / "photos")
    assert task.learned_from.classes.tolist() == [0] * 8 + [1] * 8
    assert (task.held_out.classes.tolist(), task.config.num_classes) == ([0, 0, 1, 1], 2)
    measured = train.train(tmp_path / "m", images=tmp_path / "photos", epochs=8, quiet=True)
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    assert (record["data"], record["trained_on"], record["held_out"]) == ("photos", 16, 4)
    assert measured == record["held_out_accuracy"] == 1
    sample = tmp_path / "m" / "samples" / "light.png"
    (prediction,) = predict(tmp_path / "m", sample, topk=1)
    assert prediction.top[0].label == "light"
    with pytest.raises(UsageError, match="two classes or more"):
        train.of_images(tmp_path / "photos" / "dark")
