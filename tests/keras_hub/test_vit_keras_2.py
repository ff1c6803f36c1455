"""vit-keras of Keras 2, which needs TensorFlow: files that it wrote, and what it computed.

Keras 2 loads what is written here (`make_vit_keras_2_files.py`), and so does Keras 3's loader.
"""

import zipfile
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from tests.archives import array
from tests.packages import keras
from tests.small_models import relative
from vitconvert import convert, load_checkpoint, load_model
from vitconvert.errors import UsageError
from vitconvert.formats import content_of, written_module
from vitconvert.formats.format_modules import Surroundings

ARCHIVE = Path(__file__).parent / "vit_keras_2.zip"
TOLD = {"num_heads": 2}


@pytest.fixture
def file(name, tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        return Path(archive.extract(f"{name}.h5", tmp_path))


def layers_of(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Layers and weights in Keras' order, as its own functions read them; some have none."""
    legacy = keras.src.legacy.saving.legacy_h5_format
    with h5py.File(path) as opened:
        group = opened.get("model_weights", opened)
        layers = legacy.load_attributes_from_hdf5_group(group, "layer_names")
        found = {}
        for layer in layers:
            names = legacy.load_attributes_from_hdf5_group(group[layer], "weight_names")
            arrays = legacy.load_subset_weights_from_hdf5_group(group[layer])
            found[layer] = dict(zip(names, arrays, strict=True))
    return {layer: weights for layer, weights in found.items() if weights}


@pytest.mark.slow
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", ["weights", "whole"])
@torch.no_grad()
def test_computes_what_it_did_and_comes_back_in_keras_order(name, file, tmp_path):
    model = load_model(file, overrides=TOLD)
    images = array(ARCHIVE, "images.npy").permute(0, 3, 1, 2)
    assert relative(model(images), array(ARCHIVE, f"{name}.npy")) <= 5e-6
    convert(file, to="vit", output=tmp_path / "ours", overrides=TOLD, verify=False)
    done = convert(tmp_path / "ours", to="vit_keras_2", output=tmp_path / "back")
    assert done.opened[0].consumer == "h5py.File"
    theirs, back = layers_of(file), layers_of(tmp_path / "back" / "model.h5")
    assert list(back) == list(theirs)
    for layer, weights in theirs.items():
        assert list(back[layer]) == list(weights)
        assert all(np.array_equal(back[layer][key], weights[key]) for key in weights)
    assert load_checkpoint(tmp_path / "back", overrides=TOLD).dialect == "vit_keras_2"


@pytest.mark.slow
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", ["weights"])
def test_keras_loads_by_the_order_that_the_file_says(name, file, tmp_path):
    convert(file, to="vit_keras_2", output=tmp_path / "x", overrides=TOLD, verify=False)
    model = SimpleNamespace(layers=[])
    for weights in layers_of(file).values():
        layer = keras.layers.Layer()
        for weight in weights.values():
            layer.add_weight(shape=weight.shape)
        model.layers.append(layer)
    with h5py.File(tmp_path / "x" / "model.h5") as opened:
        assert opened.attrs["keras_version"] == b"2.15.0"
        keras.src.legacy.saving.legacy_h5_format.load_weights_from_hdf5_group(opened, model)
    for layer, weights in zip(model.layers, layers_of(file).values(), strict=True):
        found = [weight.value for weight in layer.weights]  # of NumPy
        assert all(map(np.array_equal, found, weights.values()))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["head/kernel:0"], "LAYER/LAYER/REST"),
        ([f"{n:0100}/{n:0100}/bias:0" for n in range(700)], "cannot hold 700 texts"),
    ],
)
def test_error_what_keras_2_has_no_place_for(names, problem, tmp_path):
    contents = {name: content_of(name, torch.zeros(1)) for name in names}
    with pytest.raises(UsageError, match=problem):
        written_module("keras_2").write_file(tmp_path / "x.h5", contents, Surroundings())
    assert not list(tmp_path.iterdir())
