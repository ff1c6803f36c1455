"""`vitconvert inspect MODEL`, and which weights of a file the verbs take."""

import io
import json
import pickle
import re
import shlex
import shutil

import numpy as np
import pytest
import torch

from tests.hub_server import HubServer, use_hub
from tests.small_models import small_timm
from tests.spelling import google_arrays
from tests.tables.specimens.google import big_vision, google
from vitconvert.demo.demonstration import DIGITS

TAKEN = "the weights are those under model_ema; the file also has model (--prefer)"


@pytest.fixture
def training(tmp_path):
    """A training program's checkpoint, of which the averaged weights are other numbers."""
    arrays = google_arrays(depth=2, heads=3, width=36, size=32)
    np.savez(tmp_path / "plain.npz", **arrays)
    plain = {name: torch.from_numpy(array) for name, array in arrays.items()}
    averaged = {name: tensor + 1 for name, tensor in plain.items()}
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}}
    checkpoint = {"model": plain, "optimizer": optimizer, "model_ema": averaged}
    torch.save(checkpoint, tmp_path / "training.pth")
    return tmp_path / "training.pth"


def test_other_weights_in_the_file_are_told(training, run):
    code, out, err = run("inspect", training)
    assert (code, err) == (0, "")
    assert f"note           {TAKEN}" in out.splitlines()
    assert json.loads(run("inspect", training, "--json").out)["notes"] == [TAKEN]
    out = run("inspect", training, "--prefer", "model").out
    assert "the weights are those under model; the file also has model_ema (--prefer)" in out


def test_other_weights_are_told_by_a_conversion(training, run, tmp_path):
    code, out, err = run("file", training, "-o", tmp_path / "out", "--no-verify")
    assert (code, err) == (0, "")
    assert f"note           {TAKEN}" in out
    assert f"note     {TAKEN}" in (tmp_path / "out" / "README.md").read_text()


def test_every_verb_takes_the_weights_that_are_preferred(training, run):
    plain = training.with_name("plain.npz")
    assert run("diff", training, plain, "-q").out == "different: 32 tensors\n"
    assert run("diff", training, plain, "-q", "--prefer-a", "model").out == "equal\n"
    assert run("diff", training, training, "-q", "--prefer", "model").out == "equal\n"
    assert "bit-equal" in run("verify", training, "--prefer", "model", "--against", plain).out


def test_who_wrote_it_and_who_opens_it_is_told(training, run):
    out = run("inspect", DIGITS, "-v").out
    assert (
        """
written by     timm VisionTransformer (plain, distilled, hybrid) (names of the tensors)
               PyTorch (header of the file)
               vitconvert (vitconvert.json)
opened by      timm, transformers, vitconvert
"""
        in out
    )
    answer = json.loads(run("inspect", training, "--json").out)
    assert answer["written_by"] == [
        "Google vision_transformer, published .npz files (names of the tensors)"
    ]
    assert answer["opened_by"] == ["timm", "vitconvert"]


def test_parts_that_the_model_lacks_are_counted(run):
    answer = json.loads(run("inspect", DIGITS, "--json").out)
    out = run("inspect", DIGITS, "-v").out
    told = re.search(r"^configuration  (.*?)^classes", out, re.MULTILINE | re.DOTALL)
    shown = told[1].splitlines()
    lacks = re.fullmatch(r" +and (\d+) parts .*", shown.pop())
    assert len(shown) + int(lacks[1]) == len(answer["config"])
    names = [line.split()[0] for line in shown]
    assert "num_classes" in names and "rope" not in names and "rope" in answer["config"]
    # Defaults that play no part are in the record of a conversion, and nobody stated them.
    assert "norm_eps" in names and not {"rope_temperature", "stem_style"} & set(names)


def test_one_screen_ends_with_what_to_type_next(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("inspect", DIGITS)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    titles = {line.split("  ")[0]: line[15:] for line in out.splitlines() if line[0] != " "}
    assert "heads 3" in titles["model"] and titles["classes"].startswith("10: 0, 1, 2 and 7 more")
    assert titles["images"].startswith("squashed to 32x32")
    *_, convert, verify, everything = (line[15:].partition("  #")[0] for line in out.splitlines())
    for command, verb in ((convert, "convert"), (verify, "verify"), (everything, "inspect")):
        assert command.startswith(f"vitconvert {verb} ")
        done = run(*shlex.split(command)[1:])
        assert done.code == 0, done.err


def test_the_options_that_a_file_needs_are_in_what_to_type_next(run, tmp_path):
    model = small_timm(img_size=32)
    torch.save(model.state_dict(), tmp_path / "bare vit.pth")
    asked = run("inspect", tmp_path / "bare vit.pth")
    assert asked.code == 1 and "missing        num_heads:" in asked.out
    assert "missing" not in run("inspect", tmp_path / "bare vit.pth", "--set", "num_heads=3").out
    out = run("inspect", tmp_path / "bare vit.pth", "--set", "num_heads=3").out
    (command,) = re.findall("^next +vitconvert (convert .*)$", out, re.MULTILINE)
    done = run(*shlex.split(command, comments=True), "-o", tmp_path / "out", "--no-verify")
    assert done.code == 0, done.err


def test_without_a_dialect_the_tensors_are_shown(run, tmp_path):
    rows = {f"layers.{i}.bias": np.zeros(3, np.float32) for i in (0, 1, 10, 11, 2, 9)}
    np.savez(tmp_path / "many.npz", **rows)
    assert "layers.0.bias ... layers.11.bias" in run("inspect", tmp_path / "many.npz").out
    assert "layers.0.bias" not in run("inspect", DIGITS).out


def test_the_last_of_many_blocks_is_named(run, tmp_path):
    rows = {f"layers.{i}.bias": np.zeros(3, np.float32) for i in (0, 1, 10, 11, 2, 9)}
    np.savez(tmp_path / "many.npz", **rows)
    out = run("inspect", tmp_path / "many.npz").out
    assert "layers.0.bias ... layers.11.bias  float32 [3]  x 6\n" in out


def test_a_header_that_cannot_be_loaded_is_told_and_fails(run, tmp_path):
    np.savez(tmp_path / "alien.npz", **{"not/a/vit": np.zeros((2, 3), np.float32)})
    code, out, err = run("inspect", tmp_path / "alien.npz")
    assert (code, err) == (1, "")
    assert "dialect        not recognised" in out.splitlines()
    assert "error: unknown-dialect" in out.splitlines()
    assert not json.loads(run("inspect", tmp_path / "alien.npz", "--json").out)["ok"]


def test_without_a_verb_there_is_the_help(run):
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: vitconvert ")
    assert "\n  inspect    Show what a checkpoint is" in err


def test_error_a_verb_that_is_none(run):
    code, out, err = run("insepct", "x.npz")
    assert (code, out) == (2, "")
    assert err == (
        "error: usage\n  There is no command 'insepct'.\n"
        "  hint: did you mean `vitconvert inspect`?\n"
    )


def test_several_files_are_inspected_whatever_is_wrong_with_one(training, run, tmp_path):
    plain, evil = tmp_path / "plain.npz", tmp_path / "evil.pkl"
    evil.write_bytes(pickle.dumps(eval))
    assert run("inspect", training, plain).code == 0
    code, out, err = run("inspect", training, evil, plain)
    assert (code, err) == (4, "")
    assert [line for line in out.splitlines() if line in map(str, (training, evil, plain))] == [
        *map(str, (training, evil, plain))
    ]
    assert "error: unsafe-file" in out.splitlines()
    answer = json.loads(run("inspect", evil, plain, "--json").out)
    assert not answer["ok"]
    assert answer["inspections"][str(evil)]["error"]["code"] == "unsafe-file"
    assert answer["inspections"][str(plain)]["ok"]
    out = run("inspect", training, plain, "-q").out
    assert out == f"{training}: google_jax\n{plain}: google_jax\n"


def lines(answer):
    return [json.loads(line) for line in answer.out.splitlines()]


def test_every_checkpoint_below_a_folder_is_a_line(training, run, tmp_path):
    plain = training.with_name("plain.npz")
    for name in ("models/b", "models/a/deep", "models/.hidden"):
        shutil.copytree(DIGITS, tmp_path / name)
    (tmp_path / "models" / "several").mkdir()
    for name in ("one.npz", "two.pth", "optimizer.pt"):
        shutil.copy(training if name != "one.npz" else plain, tmp_path / "models/several" / name)
    (tmp_path / "models" / "several" / "evil.npz").write_bytes(b"no archive")
    answer = run("inspect", tmp_path / "models", "--lines")
    names = ("a/deep", "b", "several/evil.npz", "several/one.npz", "several/two.pth")
    found = lines(answer)
    assert [line["model"] for line in found] == [str(tmp_path / "models" / n) for n in names]
    assert [line["ok"] for line in found] == [True, True, False, True, True]
    assert found[2]["error"]["code"] == "corrupt-file" and answer.code == 1
    alone = json.loads(run("inspect", tmp_path / "models" / "b", "--json").out)
    assert found[1] == {"model": found[1]["model"], **alone}


def test_repositories_on_stdin_are_inspected_by_their_headers_and_asked_once(
    run, tmp_path, monkeypatch
):
    files = {path.name: path.read_bytes() for path in DIGITS.iterdir() if path.is_file()}
    repos = {f"org/vit-{i}": files for i in range(12)}
    names = "".join(f"hf:{repo}\n\n" for repo in [*repos, "org/no"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(names.encode())))
    with HubServer(repos) as server:
        use_hub(monkeypatch, server, tmp_path)
        answer = run("inspect", "-", "--lines")
        asked = [(one.method, one.path, one.headers.get("range")) for one in server.requests]
    *found, missing = lines(answer)
    assert [line["model"] for line in found] == [f"hf:{repo}" for repo in repos]
    assert {line["dialect"] for line in found} == {"timm"}
    assert missing["error"]["code"] == "source-not-found" and answer.code == 1
    weights = [one for one in asked if one[2]]
    assert len(weights) == len(set(weights)) == len(repos)
    assert all(span for _, path, span in asked if path.endswith(".safetensors"))


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("layout", ["google", "big_vision"])
def test_timm_opens_what_its_own_loader_reads(layout, layer, run, tmp_path):
    """It has no layer before the head, which timm 0.5.4 read in Google's numbering."""
    if layout == "google":
        prefix, shapes = "", google(depth=2, patch=(8, 8, 3), pre_logits=layer)
    else:
        prefix, shapes = "params/", big_vision("params/", cls=True)
        if layer:
            shapes |= {"params/pre_logits/kernel": (32, 20), "params/pre_logits/bias": (20,)}
            shapes["params/head/kernel"] = (20, 7)
    np.savez(tmp_path / "vit.npz", **{key: np.ones(s, "f4") for key, s in shapes.items()})
    depth = 2 if layout == "google" else 11
    width, grid = shapes[f"{prefix}embedding/bias"][0], 24
    model = small_timm(
        img_size=grid, embed_dim=width, depth=depth, num_heads=3 if width == 30 else 4,
        mlp_ratio=50 / width, no_embed_class=layout == "big_vision",
    )  # fmt: skip
    try:
        model.load_pretrained(str(tmp_path / "vit.npz"))
    except RuntimeError:
        assert layer
    else:
        assert not layer
    answer = json.loads(run("inspect", tmp_path / "vit.npz", "--json").out)
    assert answer["problem"] is None
    old = "timm before 0.6" if layout == "google" else "the code of its own library"
    assert answer["opened_by"] == [old if layer else "timm", "vitconvert"]


def test_who_opens_it_is_not_told_of_a_file_that_has_a_problem(run, tmp_path):
    arrays = google_arrays(depth=2, heads=3, width=36, size=32)
    arrays["heads/kernel"] = arrays.pop("head/kernel")
    np.savez(tmp_path / "vit.npz", **arrays)
    code, out, _ = run("inspect", tmp_path / "vit.npz")
    assert code == 1
    assert "opened by" not in out
    assert "opened by" not in run("inspect", tmp_path / "vit.npz", "-v").out
    assert "renamed?   heads/kernel in the file, head/kernel expected\n" in out
