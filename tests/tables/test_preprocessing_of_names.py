"""How images are prepared for a model that is known by its name is what timm says."""

import argparse

import pytest
import torch

from tests.packages import timm
from vitconvert.api import convert, load_checkpoint
from vitconvert.preprocessing import Preprocessing
from vitconvert.toml_files import tables_dir

NAME = "vit_tiny_patch16_224"  # its mean is 0.5
TAGGED = "vit_small_patch16_224.dino"  # ImageNet's mean, where the default tag has 0.5


def test_the_file_is_what_the_script_writes():
    from tests.tables import make_preprocessing

    text = (tables_dir() / "preprocessing.toml").read_text(encoding="utf-8")
    assert make_preprocessing.document() == text


def _saved(folder, name=NAME, **beside):
    torch.manual_seed(0)
    model = timm.create_model(name.partition(".")[0], num_classes=5)
    torch.save({"state_dict": model.state_dict(), **beside}, folder / "best.pt")
    return folder / "best.pt"


def _timms(name, **args):
    """As timm's training script and its validation find it."""
    model = timm.create_model(name, depth=1, embed_dim=48, num_heads=3)
    return Preprocessing.from_timm(timm.data.resolve_data_config(args, model=model))


def test_a_training_checkpoint_names_itself(tmp_path):
    file = _saved(tmp_path, arch=NAME, args=argparse.Namespace(model=NAME, mean=None))
    read = load_checkpoint(file)
    assert not read.preprocessing.differences(_timms(NAME))
    said = f"timm's own for {NAME}"
    assert read.preprocessing.origin == said
    assert f"preprocessing is {said}; no file states it" in read.ledger.notes
    convert(read, to="timm", output=tmp_path / "out", verify=False)
    assert not load_checkpoint(tmp_path / "out").preprocessing.differences(_timms(NAME))


def test_arguments_of_the_training_come_first(tmp_path):
    own = {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.8, "interpolation": ""}
    args = argparse.Namespace(model=NAME, **own)
    found = load_checkpoint(_saved(tmp_path, args=args)).preprocessing
    assert not found.differences(_timms(NAME, **own))
    assert found.mean == (0.1, 0.2, 0.3)
    assert found.origin.endswith("mean, crop_pct by the arguments of the training")


@pytest.mark.parametrize("own", [{"mean": "x"}, {"crop_pct": -1}, {"interpolation": "random"}])
def test_arguments_that_say_nothing_of_use_are_no_reason_to_refuse_the_weights(own, tmp_path):
    read = load_checkpoint(_saved(tmp_path, args=argparse.Namespace(model=NAME, **own)))
    assert read.preprocessing is None
    assert any("the training's is not read" in note for note in read.ledger.notes)


def test_a_name_that_the_user_states(tmp_path):
    file = _saved(tmp_path)
    found = load_checkpoint(file, architecture=NAME).preprocessing
    assert not found.differences(_timms(NAME))
    assert load_checkpoint(file, overrides={"num_heads": 3}).preprocessing is None


def test_a_tag_has_its_own(tmp_path):
    name = TAGGED.partition(".")[0]
    file = _saved(tmp_path, name)
    with_tag = load_checkpoint(file, architecture=TAGGED).preprocessing
    without = load_checkpoint(file, architecture=name).preprocessing
    assert not with_tag.differences(_timms(TAGGED))
    assert not without.differences(_timms(name))
    assert with_tag.differences(without)


def test_the_name_of_a_file_says_nothing(tmp_path):
    file = _saved(tmp_path).rename(tmp_path / f"{NAME}.pt")
    read = load_checkpoint(file)
    assert read.config.num_heads == 3
    assert read.preprocessing is None


def test_what_was_unknown_stays_so_until_somebody_names_it(tmp_path):
    file = _saved(tmp_path)
    convert(file, to="timm", output=tmp_path / "out", overrides={"num_heads": 3}, verify=False)
    assert load_checkpoint(tmp_path / "out").preprocessing is None
    assert load_checkpoint(tmp_path / "out", architecture=NAME).preprocessing is not None


def test_a_name_that_the_tensors_contradict_says_nothing(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model(NAME, depth=1, embed_dim=48, num_heads=3, num_classes=5)
    torch.save({"state_dict": model.state_dict(), "arch": NAME}, tmp_path / "m.pt")
    assert load_checkpoint(tmp_path / "m.pt", overrides={"num_heads": 3}).preprocessing is None
