"""`vitconvert verify --module`: a team's own code, run from its own directory."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.parity import team
from tests.small_models import randomise

STATED = [*("--set", "num_heads=3"), *("--set", "image_size=32x24"), *("--set", "patch_size=8")]
BUILDERS = """
from functools import partial

from team_model import TeamViT

build, buggy = TeamViT, partial(TeamViT, "q/k swap")
number, model = 3, TeamViT()

def other():
    return TeamViT(hidden=51)

def more():
    import torch

    model = TeamViT()
    model.aside = torch.nn.Linear(2, 2)
    return model

def fails():
    raise KeyError("no such preset")

def as_arrays():
    import numpy
    import torch

    model = TeamViT()
    model.load_state_dict(torch.load("team.pth"))

    def compute(images):
        if not isinstance(images, numpy.ndarray):
            raise TypeError("arrays only")
        return {"logits": model(torch.from_numpy(images)).detach().numpy()}

    return compute
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """The team's repository: its model, its builders, its table, its weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copy(team.__file__, "team_model.py")
    Path("builders.py").write_text(BUILDERS)
    Path("team.toml").write_text(team.TABLE)
    torch.manual_seed(4)
    torch.save(randomise(team.TeamViT()).state_dict(), "team.pth")
    monkeypatch.delitem(__import__("sys").modules, "builders", raising=False)
    monkeypatch.delitem(__import__("sys").modules, "team_model", raising=False)


def verify(run, module, *more):
    return run("verify", "team.pth", "--table", "team.toml", *STATED, "--module", module, *more)


def test_a_right_model(run):
    answer = verify(run, "builders:build", "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["verdict"]) == (0, "equal")
    assert report["notes"][0] == (
        "builders:build: the 184 tensors of the checkpoint were loaded into it, all by name"
    )
    assert report["executed"].startswith(
        "Executed: team_model.TeamViT (your code); no code stored in "
    )


def test_a_mistake(run):
    answer = verify(run, "builders:buggy", "--report", "page.html")
    assert answer.code == 3
    assert "first departs  blocks.0.attn" in answer.out
    assert "computes as if the thirds of blocks.0.attn.qkv are k, q, v, not q, k, v" in answer.out
    assert "the thirds of blocks.0.attn.qkv are k, q, v" in Path("page.html").read_text()


@pytest.mark.slow
def test_the_row_that_corrects_a_table_can_be_typed(run):
    """What the weights were trained with is the code, and the table is wrong."""
    table, told = Path("team.toml"), "note: if the mistake is in team.toml, its row is "
    (typed,) = (t for t in verify(run, "builders:buggy").out.splitlines() if told in t)
    row = typed.partition(told)[2]
    lines = [row if '"blocks.{i}.attn.qkv' in line else line for line in team.TABLE.splitlines()]
    table.write_text("\n".join(lines))
    assert verify(run, "builders:buggy").code == 0


@pytest.mark.slow
def test_norms_that_a_table_exchanges(run):
    """A draft can only guess which is which: their shapes are the same."""
    norms = {"ln_attention": "ln_feed", "ln_feed": "ln_attention"}
    exchanged = re.sub("|".join(norms), lambda found: norms[found[0]], team.TABLE)
    Path("team.toml").write_text(exchanged)
    answer = verify(run, "builders:build")
    assert answer.code == 3
    assert "likely cause   blocks.0.norm1 and blocks.0.norm2 are exchanged" in answer.out
    for norm, theirs in (("norm1", "ln_attention"), ("norm2", "ln_feed")):
        assert f'its row is "blocks.{{i}}.{norm}.{{p}}" = "{{part}}.{theirs}.{{p}}"' in answer.out
    Path("team.toml").write_text(team.TABLE)
    assert verify(run, "builders:build").code == 0


def test_modules_matched_by_name(run):
    mapping = [f"layers.{i}.attention=blocks.{i}.attn" for i in range(11)]
    options = [part for layer in mapping for part in ("--layer", layer)]
    answer = verify(run, "builders:buggy", *options)
    assert "first departs  blocks.0.attn output" in answer.out
    assert "as if the thirds of blocks.0.attn.qkv are k, q, v, not q, k, v" in answer.out


def test_a_function_of_arrays(run):
    answer = verify(run, "builders:as_arrays")
    assert answer.code == 0
    assert "(of NumPy arrays) (your code)" in answer.out
    assert "not compared in float64" in answer.out


@pytest.mark.slow
def test_other_weights_are_named(run):
    weights = torch.load("team.pth")
    weights["layers.2.widen.weight"][3, 4] += 0.5
    torch.save(weights, "changed.pth")
    stated = ["--table", "team.toml", *STATED]
    run("file", "team.pth", *stated, "-o", "reference", "--no-verify")
    against = [*stated, "--module", "builders:build", "--against", "reference"]
    answer = run("verify", "changed.pth", *against)
    assert answer.code == 3
    assert "first departs  blocks.2.mlp" in answer.out
    assert "it holds other numbers in blocks.2.mlp.fc1.weight" in answer.out


@pytest.mark.slow
def test_a_checkpoint_of_another_spelling_leaves_the_weights(run):
    run("file", "team.pth", "--table", "team.toml", *STATED, "-o", "reference", "--no-verify")
    answer = run("verify", "reference", "--module", "builders:model", "--table", "team.toml")
    assert answer.code == 3  # those it was built with
    assert "it keeps the weights that it was built with" in answer.out


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("builders", "'builders' names no model."),
        ("nowhere:build", "nowhere cannot be imported."),
        ("builders:bild", "build"),
        ("builders:number", "is neither a model nor a function that builds one."),
        ("builders:fails", "KeyError: 'no such preset'"),
        ("builders:other", "does not take the tensors of the checkpoint"),
        ("builders:more", "`vitconvert table --module CODE:build -o mine.toml` drafts a table"),
    ],
)
def test_mistakes_of_the_user(module, words, run):
    answer = verify(run, module)
    assert answer.code == 2
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_options_that_need_a_module(run):
    answer = run(
        "verify", "team.pth", "--table", "team.toml", *STATED, "--layer", "layers.0=blocks.0"
    )
    assert (answer.code, "needs --module" in answer.err) == (2, True)
