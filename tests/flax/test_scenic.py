"""ViViT in Scenic's names, as its training saves it; `make_scenic.py` made the files.

That Scenic's own class computes the same of a file that is written here was seen with that script.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vitconvert
from tests.small_models import relative
from vitconvert.errors import MissingFact
from vitconvert.formats import open_container

FILES = Path(__file__).parent / "scenic"
STATED = {
    "token": {"frames": 5, "image_size": (8, 12)},
    "gap": {"frames": 8, "pooling": "avg"},
}


def kept(name):
    """Clips, and what the class made of them."""
    both = np.load(FILES / f"{name}.npz")
    return torch.from_numpy(both["clips"]).permute(0, 4, 1, 2, 3), torch.from_numpy(both["output"])


@pytest.mark.parametrize("name", STATED)
@torch.no_grad()
def test_the_same_function(name, tmp_path):
    file = shutil.copy(FILES / f"{name}.msgpack", tmp_path / "checkpoint")  # as it is published
    checkpoint = vitconvert.load_checkpoint(file, overrides=STATED[name])
    assert (checkpoint.dialect, checkpoint.config.depth) == ("scenic_vivit", 11)
    clips, output = kept(name)
    for fast in (False, True):
        model = vitconvert.load_model(file, overrides=STATED[name], fast=fast)
        assert relative(model(clips), output) < 1e-6


def test_where_the_weights_are_today_and_until_2021():
    wrappers = {"token": ("optimizer", "target"), "gap": ("params",)}
    for name, wrapper in wrappers.items():
        assert open_container(FILES / f"{name}.msgpack").wrapper == wrapper


def test_what_no_tensor_shows_is_asked_for():
    for name, asked in {"token": {"frames", "image_size"}, "gap": {"frames", "pooling"}}.items():
        with pytest.raises(MissingFact) as error:
            vitconvert.load_checkpoint(FILES / f"{name}.msgpack")
        assert asked <= {line.split()[0] for line in error.value.details}


@pytest.mark.slow
@torch.no_grad()
def test_transformers_and_back(tmp_path):
    stated = STATED["token"] | {"image_size": (8, 12)}
    there = vitconvert.convert(
        FILES / "token.msgpack", to="hf", output=tmp_path / "hf", overrides=stated
    )
    assert [one.why_not for one in there.opened] == [None]
    clips, output = kept("token")
    assert relative(vitconvert.load_model(tmp_path / "hf")(clips), output) < 1e-6
    vitconvert.convert(tmp_path / "hf", to="scenic", output=tmp_path / "back", verify=False)
    with (
        open_container(tmp_path / "back" / "flax_model.msgpack") as written,
        open_container(FILES / "token.msgpack") as source,
    ):
        assert written.manifest.keys() == source.manifest.keys()
        for key in source.manifest:
            assert torch.equal(written.read(key), source.read(key))
