"""vit-keras, which needs TensorFlow: a file that it wrote, and what it computed."""

import zipfile
from pathlib import Path

import pytest
import torch

from tests.archives import array
from tests.small_models import relative
from vitconvert import convert, load_checkpoint, load_model
from vitconvert.errors import MissingFact

ARCHIVE = Path(__file__).parent / "vit_keras.zip"
TOLD = {"num_heads": 2, "image_size": (16, 24)}


@pytest.mark.parametrize(
    ("name", "dialect"), [("plain", "vit_keras"), ("pre_logits", "vit_keras_pre_logits")]
)
@torch.no_grad()
def test_computes_what_it_did_and_comes_back(name, dialect, tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        file = Path(archive.extract(f"{name}.weights.h5", tmp_path))
    with pytest.raises(MissingFact, match="num_heads"):
        load_checkpoint(file)
    images = array(ARCHIVE, "images.npy").permute(0, 3, 1, 2)
    model = load_model(file, overrides=TOLD)
    assert relative(model(images), array(ARCHIVE, f"{name}.npy")) <= 5e-6
    done = convert(file, to="vit", output=tmp_path / "ours", overrides=TOLD, verify=False)
    done = convert(tmp_path / "ours", to="vit_keras", output=tmp_path / "back")
    assert done.target_dialect == dialect
    assert done.opened[0].consumer == "h5py.File"
    before = load_checkpoint(file, overrides=TOLD).weights.container
    after = load_checkpoint(tmp_path / "back").weights.container
    names = {n for n in before.manifest if "seed_generator" not in n}
    assert set(after.manifest) == names
    assert all(torch.equal(before.read(n), after.read(n)) for n in names)


@torch.no_grad()
def test_a_whole_model_that_keras_3_saved_computes_the_same(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        file = Path(archive.extract("whole.h5", tmp_path))
    assert load_checkpoint(file, overrides=TOLD).dialect == "vit_keras_2"
    images = array(ARCHIVE, "images.npy").permute(0, 3, 1, 2)
    model = load_model(file, overrides=TOLD)
    assert relative(model(images), array(ARCHIVE, "pre_logits.npy")) <= 5e-6
    convert(file, to="vit", output=tmp_path / "ours", overrides=TOLD, verify=False)
    done = convert(tmp_path / "ours", to="vit_keras", output=tmp_path / "back")
    assert done.target_dialect == "vit_keras_pre_logits"
