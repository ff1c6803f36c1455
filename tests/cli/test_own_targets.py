"""A table of one's own as a target: its name, and the class that loads what is written."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitconvert
from tests.drafting.tutorials import PaperReplicating
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.errors import UnknownDialect

SIZES = {"img_size": 40, "patch_size": 8, "embed_dim": 36, "depth": 3, "num_heads": 3}
SIZES |= {"mlp_ratio": 50 / 36, "num_classes": 7}
CODE = """
from torch import nn
from tests.drafting import tutorials

build = tutorials.PaperReplicating

def other():
    model = build()
    model.classifier[1] = nn.Linear(36, 9)
    return model

def shallow():
    model = build()
    model.transformer_encoder = model.transformer_encoder[:2]
    return model

def without_norm():
    model = build()
    model.classifier[0] = nn.Identity()
    return model

def more():
    model = build()
    model.aux = nn.Linear(36, 7)
    return model
"""


@pytest.fixture
def known(tmp_path, monkeypatch, run):
    """A model of timm, the code of another class, and the table of its names."""
    monkeypatch.chdir(tmp_path)
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SIZES))
    timm.models.save_for_hf(model, "known", model_args=SIZES, safe_serialization=True)
    (tmp_path / "own_targets_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("table", "--module", "own_targets_code:build", "-o", "mine.toml").code == 0
    return model


TO = ("convert", "known", "--allow", "norm-eps", "--no-verify", "-o", "out")


def test_the_class_loads_what_is_written(known, run):
    asked = (*TO, "--to", "mine", "--table", "mine.toml", "--module", "own_targets_code:build")
    code, out, err = run(*asked)
    assert code == 0, err
    build = "own_targets_code:build"
    checked = f"{build}: has these names and shapes; `verify --module {build}` compares its outputs"
    assert checked in out and "a table of your own" not in out
    mine = PaperReplicating().eval()
    mine.load_state_dict(load_file("out/model.safetensors"))
    x = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found, wanted = mine(x), known(x)
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()  # another eps


@pytest.mark.parametrize(
    ("build", "told"),
    [
        ("other", "other shapes  classifier.1.weight: [7, 36] here, [9, 36] there"),
        ("other", "hint: build it with the sizes of the checkpoint."),
        ("shallow", "where they are blocks, the depth of the checkpoint."),
        ("more", "only in the module  aux.bias, aux.weight"),
        ("more", "hint: nothing is written for aux.bias, aux.weight"),
        ("without_norm", "has no place for classifier.0.bias, classifier.0.weight: it needs"),
    ],
)
def test_error_a_class_that_does_not_load_it(build, told, known, run, tmp_path):
    asked = (*TO, "--to", "mine", "--table", "mine.toml", "--module", f"own_targets_code:{build}")
    code, _, err = run(*asked)
    assert code != 0
    assert "The module does not load what would be written." in err
    assert told in err
    assert not (tmp_path / "out").exists()


def test_error_a_name_near_that_of_ones_table(known, run):
    err = run(*TO, "--to", "min", "--table", "mine.toml").err
    assert "did you mean mine, the name of your table?" in err
    err = run(*TO, "--to", "mine").err
    assert "hint: --table mine.toml names that table." in err


def test_the_draft_of_a_module_is_told(known, run):
    code, out, err = run("table", "--module", "own_targets_code:build", "-o", "again.toml")
    assert code == 0, err
    assert "module         equal to the module on noise" in out
    assert "next           vitconvert convert MODEL --to again --table again.toml -o OUTPUT" in out
    err = run("table", "known", "-o", "x.toml").err
    assert "A ViT of the same sizes is needed, and none is named." in err


def test_an_output_says_by_which_table_it_is_read(known, run):
    assert run(*TO, "--to", "mine", "--table", "mine.toml").code == 0
    for verb in (("inspect", "out"), ("predict", "out", "photo.png")):
        err = run(*verb)
        assert "The tensors have the names of your own table 'mine'." in err.out + err.err
        assert "hint: --table mine.toml reads them." in err.out + err.err
    assert run("inspect", "out", "--table", "mine.toml").code == 0
    with pytest.raises(UnknownDialect, match="your own table 'mine'"):
        vitconvert.load_model("out")
    card = Path("out/README.md").read_text()
    code = card.rpartition("```python\n")[2].partition("```")[0]
    assert 'load_model(".", table="mine.toml")' in code
    shutil.copy("mine.toml", "out")
    Image.new("RGB", (50, 60), "teal").save("out/photo.jpg")
    os.chdir("out")  # tmp_path's fixture goes back
    exec(code, found := {})
    assert found["output"].shape == (1, 7)


def test_a_module_is_compared_with_a_directory_in_its_own_names(known, run):
    assert run(*TO, "--to", "mine", "--table", "mine.toml").code == 0
    mine = PaperReplicating().eval()
    mine.load_state_dict(load_file("out/model.safetensors"))
    assert vitconvert.compare(mine, "out", table="mine.toml").ok
    assert not vitconvert.compare(mine, "known", table="mine.toml").ok  # another eps
    with torch.no_grad():
        mine.classifier[1].bias += 1
    assert not vitconvert.compare(mine, "out", table="mine.toml").ok
