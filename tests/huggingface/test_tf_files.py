"""Files of transformers' TensorFlow classes: what they computed, and what comes back of them.

Release 5 has none of these classes; release 4 loads what is written here (`make_tf_files.py`).
"""

import json
import re
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.archives import array
from tests.small_models import relative
from vitconvert import convert, load_checkpoint, load_model
from vitconvert.errors import NotRepresentable

ARCHIVE = Path(__file__).parent / "tf_files.zip"
DIALECTS = {
    "vit": "hf_tf_vit",
    "vit_pooler": "hf_tf_vit_pooler",
    "deit": "hf_tf_vit",
    "deit_teacher": "hf_tf_deit_teacher",
    "mae": "hf_tf_vit",
    "data2vec": "hf_tf_data2vec",
    "clip": "hf_tf_clip",
}
WRITTEN = {**DIALECTS, "deit": "hf_tf_deit"}


@pytest.fixture
def folder(name, tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path, [n for n in archive.namelist() if n.startswith(f"{name}/")])
    return tmp_path / name


@pytest.mark.parametrize("name", DIALECTS)
@torch.no_grad()
def test_computes_what_tensorflow_did(name, folder):
    assert load_checkpoint(folder).dialect == DIALECTS[name]
    wanted, images = array(ARCHIVE, f"{name}/output.npy"), array(ARCHIVE, "images.npy")
    for fast in (False, True):
        model = load_model(folder, fast=fast)
        found = (model.forward_features if wanted.ndim == 3 else model)(images)
        assert relative(found, wanted) <= 5e-6


@pytest.mark.parametrize("name", sorted(DIALECTS.keys() - {"mae", "clip"}))
def test_comes_back_byte_for_byte(name, folder, tmp_path):
    done = convert(folder, to="vit", output=tmp_path / "ours", verify=False)
    done = convert(tmp_path / "ours", to="hf_tf", output=tmp_path / "back", verify=False)
    assert done.target_dialect == WRITTEN[name]
    before, after = (load_checkpoint(d).weights.container for d in (folder, tmp_path / "back"))
    assert after.metadata["format"] == "tf"
    assert set(before.manifest) == set(after.manifest)
    assert all(torch.equal(before.read(n), after.read(n)) for n in before.manifest)
    theirs, back = (json.loads((d / "config.json").read_text()) for d in (folder, done.output))
    assert back["architectures"] == theirs["architectures"]
    assert back["hidden_act"] == theirs["hidden_act"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mae", "clip"])
def test_error_what_no_class_computes(name, folder, tmp_path):
    with pytest.raises(NotRepresentable) as error:
        convert(folder, to="hf_tf", output=tmp_path / "x", verify=False)
    assert any("has no class that computes this" in line for line in error.value.details)


@pytest.mark.parametrize("name", ["vit"])
def test_says_what_stood_before_the_names(name, folder):
    (note,) = (n for n in load_checkpoint(folder).ledger.notes if "LAYER" in n)
    assert note.endswith("LAYER/tf_vi_t_for_image_classification/")


@pytest.mark.parametrize("name", ["clip"])
def test_the_text_tower_goes_along(name, folder, tmp_path):
    convert(folder, to="hf", output=tmp_path / "hf", verify=False)
    written = load_file(tmp_path / "hf" / "model.safetensors")
    file = load_checkpoint(folder).weights.container
    texts = [n for n in file.manifest if n.startswith(("clip/text_", "clip/logit_scale"))]
    for name in texts:
        tensor = file.read(name)
        theirs = name.removeprefix("clip/").removesuffix(":0").replace("layers_._", "layers/")
        theirs = re.sub("/(kernel|gamma|embeddings)$", "/weight", theirs).replace("/beta", "/bias")
        expected = tensor.T if name.endswith("kernel:0") else tensor
        assert torch.equal(written[theirs.replace("/", ".")].reshape(expected.shape), expected)
    assert len(texts) == 22
