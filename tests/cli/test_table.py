"""`vitconvert table FILE --like REFERENCE -o NAME.toml`."""

import json
from pathlib import Path

import pytest
import torch

from tests.packages import timm
from tests.small_models import randomise_calmly
from vitconvert.drafting.draft_text import MARK

SIZES = {"img_size": 40, "patch_size": 8, "embed_dim": 36, "depth": 11, "num_heads": 3}
SIZES |= {"mlp_ratio": 50 / 36, "num_classes": 7}


def _respelled(state_dict):
    words = (("blocks.", "tower.stage_"), ("attn.qkv", "attn.in_proj"), ("norm", "ln"))
    names = {name: name for name in state_dict}
    for ours, theirs in words:
        names = {name: text.replace(ours, theirs) for name, text in names.items()}
    return {names[name]: tensor for name, tensor in state_dict.items()}


@pytest.fixture
def team(tmp_path, monkeypatch):
    """A timm model, its weights in names of nobody's, and a directory to work in."""
    monkeypatch.chdir(tmp_path)
    model = randomise_calmly(timm.create_model("vit_tiny_patch16_224", **SIZES))
    timm.models.save_for_hf(model, "known", model_args=SIZES, safe_serialization=True)
    torch.save({"state_dict": _respelled(model.state_dict())}, "team.pth")
    return model


def test_the_draft_is_used_at_once(team, run, tmp_path):
    code, out, err = run("table", "team.pth", "--like", "known")
    assert code == 0, err
    assert "guesses        0 rows" in out
    assert "next           vitconvert convert team.pth --table team.toml -o OUTPUT" in out
    asked = ("--table", "team.toml", "--to", "timm", "-o", "out", "--no-verify")
    code, _, err = run("file", "team.pth", *asked)
    assert code == 0, err
    back = timm.create_model("local-dir:out", pretrained=True).eval()
    x = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(back(x), team(x))


def test_code_of_ones_own_is_compared_next(team, run, tmp_path, monkeypatch):
    """What is printed works as it is typed, but for OUTPUT."""
    monkeypatch.syspath_prepend(str(tmp_path))
    sizes = repr(SIZES)
    Path("own_code.py").write_text(
        "import timm\n\n\ndef build():\n"
        f"    return timm.create_model('vit_tiny_patch16_224', **{sizes})\n"
    )
    torch.save(team.state_dict(), "own.pth")
    code, out, err = run("table", "own.pth", "--module", "own_code:build", "-o", "mine.toml")
    assert code == 0, err
    _, following = out.split("next           ")
    verify, convert = following.splitlines()
    assert verify == "vitconvert verify own.pth --module own_code:build --table mine.toml"
    answer = run(*verify.split()[1:])
    assert answer.code == 0, answer.err
    assert "compared with this code alone: its table is your own" in answer.out
    assert "CODE:build" not in answer.out
    assert convert.split() == [
        "vitconvert",
        "convert",
        "own.pth",
        "--table",
        "mine.toml",
        "-o",
        "OUTPUT",
    ]
    _, out, _ = run("table", "--module", "own_code:build", "-o", "code.toml")
    assert out.endswith(
        "               vitconvert verify OUTPUT --module own_code:build --table code.toml\n"
    )


def test_a_draft_does_not_take_the_name_of_a_target(team, run):
    """Of vit.pth, vit.toml would be what --to vit means."""
    Path("team.pth").rename("vit.pth")
    assert run("table", "vit.pth", "--like", "known").code == 0
    asked = ("--table", "vit-draft.toml", "--to", "vit", "-o", "out", "--no-verify")
    answer = run("file", "vit.pth", *asked)
    assert answer.code == 0, answer.err
    assert Path("out/vitconvert.json").exists()


def test_guesses_are_what_comes_next(team, run):
    other = timm.create_model("vit_tiny_patch16_224", **SIZES)  # of other values than "known"
    state = _respelled(other.state_dict())
    names = {name: name.replace("ln1", "a").replace("ln2", "b") for name in state}
    torch.save({names[name]: tensor for name, tensor in state.items()}, "guessed.pth")
    code, out, err = run("table", "guessed.pth", "--like", "known", "-o", "own.toml")
    assert code == 0, err
    assert (
        "next           take the # away from those of the 2 guesses in own.toml that are right, "
        "then\n"
        "               vitconvert inspect guessed.pth --table own.toml\n"
    ) in out
    table = Path("own.toml").read_text()
    asked = ("verify", "guessed.pth", "--table", "own.toml")
    Path("own.toml").write_text(table.replace('"patch_embed', '# "patch_embed'))
    assert "hint: give what is left over rows in own.toml, or entries in its" in run(*asked).err
    Path("own.toml").write_text(table.replace('# "blocks', '"blocks'))
    told = run(*asked).out
    assert "a table of your own; `verify --module CODE:build` compares with the code." in told


def test_a_fact_that_the_reference_does_not_show_is_set(team, run):
    torch.save(team.state_dict(), "bare.pth")
    asked = ("table", "team.pth", "--like", "bare.pth", "-o", "team.toml")
    code, _, err = run(*asked)
    assert code == 1 and "--set num_heads=" in err
    code, out, err = run(*asked, "--set", "num_heads=3")
    assert code == 0 and "num_heads if embed_dim == 36 = 3" in out
    code, _, err = run(*asked, "--force", "--set", "num_heads")
    assert code == 2 and "'num_heads' is not FIELD=VALUE, such as num_heads=12." in err


def test_json(team, run):
    code, out, _ = run("table", "team.pth", "--like", "known", "-o", "team.toml", "--json")
    said = json.loads(out)
    assert (code, said["ok"], said["problem"], said["left"]) == (0, True, None, {})
    assert all(row["certain"] and row["reason"] for row in said["rows"])
    assert said["output"] == "team.toml"
    assert said["values"] == "11 of 11 modules that fit have the reference's"


def test_an_architecture_has_shapes_alone(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = timm.create_model("test_vit")
    torch.save(_respelled(model.state_dict()), "team.pth")
    code, out, err = run("table", "team.pth", "--like", "test_vit", "-o", "team.toml", "-v")
    assert code == 0, err
    assert "like           timm's test_vit, only shapes\n" in out
    assert "values         none to compare\n" in out
    row = "blocks.{i}.mlp.fc1.{p} = tower.stage_{i}.mlp.fc1.{p}"
    assert f"{row}: the only one left of its shape\n" in out  # 192 is 3 * 64 here
    code, out, err = run("inspect", "team.pth", "--table", "team.toml", "-q")
    assert (code, out) == (0, "team\n"), err


def test_error_what_is_there_is_not_replaced(team, run, tmp_path):
    asked = ("table", "team.pth", "--like", "known", "-o", "team.toml")
    assert run(*asked).code == 0
    written = (tmp_path / "team.toml").read_text()
    assert written.startswith(MARK)
    code, _, err = run(*asked)
    assert (code, "The table already exists." in err, "--force" in err) == (1, True, True)
    assert run(*asked, "--force").code == 0
    (tmp_path / "team.toml").write_text("[dialect]\n")
    code, _, err = run(*asked, "--force")
    assert (code, "is not a draft of a table, so it is not replaced" in err) == (1, True)
    assert (tmp_path / "team.toml").read_text() == "[dialect]\n"


@pytest.mark.parametrize(
    ("output", "like", "message"),
    [
        ("team.txt", "known", "The name of a table ends with .toml."),
        ("no/team.toml", "known", "The directory of the output does not exist."),
        ("team.toml", "vit_tiny_patch16_224", "This file has no blocks like those"),
        ("team.toml", "unknown", "unknown"),
    ],
)
def test_errors(team, run, tmp_path, output, like, message):
    code, _, err = run("table", "team.pth", "--like", like, "-o", output)
    assert code in (1, 2)
    assert message in err
    assert not (tmp_path / output).exists()


def test_error_a_reference_of_other_names_is_not_told_of_tables(team, run):
    """It is no help that other verbs take a table for it."""
    refused = run("table", "team.pth", "--like", "team.pth")
    assert refused.code == 1
    assert "`vitconvert table`" not in refused.err
    assert "--table" not in refused.err
    assert refused.err.rstrip().endswith("vit_base_patch16_224, or another file.")
