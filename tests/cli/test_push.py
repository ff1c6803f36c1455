"""`vitconvert push`, and what is loaded from there."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.packages import timm

# The client's own call of its own transport (huggingface_hub 2.4, lfs.py).
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
SMALL = {"depth": 2, "embed_dim": 30, "num_heads": 3, "img_size": 48, "in_chans": 1}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """An output of vitconvert."""
    folder = tmp_path_factory.mktemp("made")
    model = timm.create_model("vit_tiny_patch16_224", mlp_ratio=1.5, num_classes=5, **SMALL)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1, generator=generator).add_(0.05)
    arguments = {**SMALL, "mlp_ratio": 1.5}
    timm.models.save_for_hf(
        model, str(folder / "timm"), model_args=arguments, safe_serialization=True
    )
    vitconvert.convert(
        folder / "timm", to="hf", output=folder / "out", verify=False, max_shard_size=50000
    )
    return folder / "out"


@pytest.fixture
def output(converted, tmp_path):
    """A copy of it that may be changed."""
    return Path(shutil.copytree(converted, tmp_path / "out"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that knows our token, and a model of somebody else."""
    # The client's handler of logs may hold the stderr of an earlier test, which is closed.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with HubServer({"they/vit": {"config.json": b"{}"}}) as server:
        use_hub(monkeypatch, server, tmp_path)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


def _files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def test_what_is_pushed_is_loaded_back_byte_for_byte(hub, run, output, tmp_path):
    (output / ".hidden").write_text("mine")
    (output / ".git").mkdir()
    (output / ".git" / "config").write_text("mine")
    code, out, err = run("push", output, "me/vit")
    assert code == 0, err
    commit = hub.branches["me/vit"]["main"]
    assert hub.commits["me/vit"][commit] == _files(output)
    assert out.splitlines()[-2:] == [
        f"commit         {hub.endpoint}/me/vit/commit/{commit}",
        "load it with   hf-hub:me/vit",
    ]
    assert all("vitconvert/" in r.headers["user-agent"] for r in hub.requests if "/api/" in r.path)

    answer = run("file", "hf-hub:me/vit", "-o", tmp_path / "back")
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "back" / "vitconvert.json").read_text())
    assert set(record["source"]["verified"]) >= {"config.json", "vitconvert.json"}
    before, after = (vitconvert.load_checkpoint(d).tensors for d in (output, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_second_push_sends_no_weights_again(hub, run, output):
    assert run("push", output, "me/vit", "-m", "first").code == 0
    (output / "notes.txt").write_text("more\n")
    assert run("push", output, "me/vit", "-m", "second").code == 0
    uploads = [path for path in hub.paths("PUT") if path.startswith("/lfs/")]
    assert len(uploads) == len(list(output.glob("*.safetensors"))) > 1
    assert hub.messages == ["first", "second"]
    assert hub.commits["me/vit"][hub.branches["me/vit"]["main"]]["notes.txt"] == b"more\n"


def test_dry_run_lists_the_files_and_asks_no_server(hub, run, output):
    (output / ".hidden").write_text("mine")
    code, out, _ = run("push", output, "me/vit", "--dry-run")
    assert code == 0
    sizes = {name: len(body) for name, body in sorted(_files(output).items())}
    assert out.splitlines() == [f"would send     {n:,} bytes  {name}" for name, n in sizes.items()]
    assert run("push", output, "me/vit", "--dry-run", "-q").out.splitlines() == list(sizes)
    answer = json.loads(run("push", output, "me/vit", "--dry-run", "--json").out)
    assert answer == {"ok": True, "repo": "me/vit", "dry_run": True, "files": sizes}
    assert hub.requests == []


def test_json_and_quiet(hub, run, output):
    code, out, err = run("push", output, "vit", "--json")
    commit = hub.branches["me/vit"]["main"]
    url = f"{hub.endpoint}/me/vit/commit/{commit}"
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer.pop("files").keys() == _files(output).keys()
    assert answer == {
        "ok": True, "repo": "me/vit", "url": url, "commit": commit, "pull_request": False,
    }  # fmt: skip
    code, out, err = run("push", output, "me/vit", "-q")
    assert (code, out, err) == (0, f"{url}\n", "")


def test_private(hub, run, output):
    assert run("push", output, "me/vit", "--private").code == 0
    assert hub.private == {"me/vit"}
    assert run("push", output, "me/vit", "--private").code == 0


def test_a_pull_request_to_a_repository_of_somebody_else(hub, run, output):
    hub.read_only.add("they/vit")
    code, out, err = run("push", output, "they/vit", "--create-pr")
    assert code == 0, err
    assert f"pull request   {hub.endpoint}/they/vit/discussions/1" in out.splitlines()
    assert hub.commits["they/vit"][hub.branches["they/vit"]["main"]] == {"config.json": b"{}"}
    assert hub.commits["they/vit"][hub.branches["they/vit"]["refs/pr/1"]] == _files(output)


def test_a_branch_is_made_where_there_is_none(hub, run, output):
    code, _, err = run("push", output, "they/vit", "--revision", "half")
    assert code == 0, err
    assert hub.commits["they/vit"][hub.branches["they/vit"]["half"]] == _files(output)
    assert hub.commits["they/vit"][hub.branches["they/vit"]["main"]] == {"config.json": b"{}"}


def _data_set(hub, output):
    """The Hub's answer to creating it is a conflict, and there is no model of this name."""
    hub.push("me/data", {})
    hub.on_request = lambda method, path: hub.commits.pop("me/data", None) if "/pre" in path else 0


NO_RIGHT = (
    "  This token may not write to {repo}.\n"
    "  answer  403 Forbidden\n"
    "{reason}"
    "  hint: it needs the right to write; --create-pr proposes the files instead.\n"
)
REFUSALS = {
    "another token": (
        lambda hub, output: None,
        ["me/vit", "--token", "hf_other"],
        "  The Hub does not know this token.\n"
        "  answer  401 Unauthorized\n"
        "  reason  Invalid credentials in Authorization header\n"
        "  hint: https://huggingface.co/settings/tokens lists yours.\n",
    ),
    "no token": (
        lambda hub, output: os.environ.pop("HF_TOKEN"),
        ["me/vit"],
        "  The Hub takes no files without a token.\n"
        "  hint: pass --token, or run `hf auth login`; --dry-run only lists the files.\n",
    ),
    "a public repository": (
        lambda hub, output: None,
        ["they/vit", "--private"],
        "  they/vit exists already, and is public.\n"
        "  hint: leave out --private, or make it private on its page.\n",
    ),
    "a repository of somebody else": (
        lambda hub, output: hub.read_only.add("they/vit"),
        ["they/vit"],
        NO_RIGHT.format(repo="they/vit", reason="  reason  You don't have the rights\n"),
    ),
    "a data set of this name": (
        _data_set,
        ["me/data"],
        "  The Hub has no model repository me/data that this token may write to.\n"
        "  answer  401 Unauthorized\n"
        "  hint: a data set or space of the same name is another repository.\n",
    ),
    "a name that cannot be": (
        lambda hub, output: None,
        ["me/vit/small"],
        "  me/vit/small cannot be the name of a Hub repository.\n"
        "  hint: letters, digits, '-', '_' and '.', as in ORG/REPO\n",
    ),
    "a server that fails": (
        lambda hub, output: hub.faults.status.update({"/commit/": [500]}),
        ["me/vit", "-q"],
        "  The Hub rejected the upload to me/vit.\n"
        "  answer  500 Internal Server Error\n"
        "  hint: run again later: finished files are not sent twice.\n",
    ),
    "a storage that fails": (
        lambda hub, output: hub.faults.status.update({"/lfs/": [403] * 9}),
        ["me/vit", "-q"],
        NO_RIGHT.format(repo="me/vit", reason=""),
    ),
    "a card that the Hub does not take": (
        lambda hub, output: (output / "README.md").write_text("# No metadata\n"),
        ["me/vit"],
        "  The Hub does not take this as a commit to me/vit.\n"
        "  Invalid metadata in README.md.\n"
        "  - no metadata\n",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_error_refusals(refusal, hub, run, output):
    prepare, arguments, message = REFUSALS[refusal]
    prepare(hub, output)
    code, _, err = run("push", output, *arguments)
    assert (code, err) == (1, f"error: upload-failed\n{message}")
    assert not [name for name in hub.messages if name]


def test_error_two_places(hub, run, output):
    code, _, err = run("push", output, "me/vit", "--create-pr", "--revision", "half")
    assert (code, err) == (
        2,
        "error: usage\n"
        "  A pull request is to main: --create-pr and --revision exclude each other.\n",
    )
    assert hub.requests == []


def test_error_files_that_a_gitignore_names(hub, run, output):
    hub.ignored |= {"README.md", "config.json"}
    code, out, err = run("push", output, "me/vit", "-q")
    commit = hub.branches["me/vit"]["main"]
    assert (code, out) == (1, "")
    assert err == (
        "error: upload-failed\n"
        "  The Hub left out files that the .gitignore of the repository names.\n"
        f"  commit  {hub.endpoint}/me/vit/commit/{commit}\n"
        "  README.md\n"
        "  config.json\n"
        "  hint: take them out of its .gitignore, and push again.\n"
    )
    assert "README.md" not in hub.commits["me/vit"][commit]


def test_error_no_network(hub, run, output):
    hub.stop()
    code, _, err = run("push", output, "me/vit")
    assert code == 1
    fact = "The upload to me/vit was interrupted."
    assert err.startswith(f"error: upload-failed\n  {fact}\n  cause  ")
    assert err.endswith("  hint: run again: finished files are not sent twice.\n")


def test_error_changed_weights_are_not_published(hub, run, output):
    shard = sorted(output.glob("*.safetensors"))[0]
    body = shard.read_bytes()
    shard.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    record = json.loads((output / "vitconvert.json").read_text())
    code, _, err = run("push", output, "me/vit")
    assert code == 1
    lines = err.splitlines()
    assert lines[:3] == [
        "error: hash-mismatch",
        f"  {shard.name} is not the file that vitconvert wrote.",
        f"  written  sha256 {record['sha256'][shard.name]}",
    ]
    assert lines[4:] == [
        "  It was damaged, or changed since, so its parity report no longer applies.",
        "  hint: convert again with another -o, or convert what was changed.",
    ]
    assert hub.requests == []


HARMS = [
    (
        lambda output: (output / "vitconvert.json").unlink(),
        "  {output} holds no vitconvert.json, so vitconvert did not write it.\n"
        "  hint: `vitconvert convert CHECKPOINT -o DIR` writes one.\n",
    ),
    (
        lambda output: (output / "vitconvert.json").write_text("{}"),
        "  vitconvert.json does not list the weights that were written.\n"
        "  file  {output}/vitconvert.json\n"
        "  hint: convert again, to another directory.\n",
    ),
    (
        lambda output: (output / "model.safetensors.index.json").unlink(),
        "  Files that were written are missing.\n"
        "  directory  {output}\n"
        "  model.safetensors.index.json\n"
        "  hint: convert again with --force.\n",
    ),
    (
        lambda output: (output / "pytorch_model.bin").write_bytes(b"of somebody"),
        "  vitconvert.json does not list all weights in this directory.\n"
        "  directory  {output}\n"
        "  pytorch_model.bin\n"
        "  hint: move them elsewhere: programs might load them instead.\n",
    ),
    (shutil.rmtree, "  There is no directory {output}.\n"),
]


@pytest.mark.parametrize(("harm", "message"), HARMS)
def test_error_directories_that_are_no_whole_output(harm, message, hub, run, output):
    harm(output)
    code, _, err = run("push", output, "me/vit", "--dry-run")
    assert (code, err) == (1, "error: upload-failed\n" + message.format(output=output))


@pytest.mark.parametrize(
    ("target", "name"), [("{outside}/secret", "notes.txt"), ("config.json", "runs/notes.txt")]
)
def test_error_links_are_not_published(target, name, hub, run, output, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("of this machine")
    (output / "runs").mkdir()
    (output / name).unlink(missing_ok=True)
    (output / name).symlink_to(target.format(outside=tmp_path / "outside"))
    for more in ([], ["--dry-run"]):
        code, _, err = run("push", output, "me/vit", *more)
        assert (code, err) == (
            1,
            "error: upload-failed\n"
            "  Links are not published: they may lead to files that are not meant to be.\n"
            f"  directory  {output}\n"
            f"  {name}\n"
            "  hint: put a copy in the place of each, or move them elsewhere.\n",
        )
    assert hub.requests == []


def test_hidden_links_and_a_link_to_the_output_are_no_matter(hub, run, output, tmp_path):
    (output / ".cache").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(output)
    assert run("push", tmp_path / "link", "me/vit").code == 0
    assert hub.commits["me/vit"][hub.branches["me/vit"]["main"]] == _files(output)


def test_error_a_directory_that_is_being_written(run, output):
    part = output.rename(output.with_name(".out-01234567.part"))
    code, _, err = run("push", part, "me/vit", "--dry-run")
    assert code == 1
    assert "is being written, or was left when that was interrupted." in err


def test_the_token_is_never_shown(hub, run, output, caplog):
    with caplog.at_level(logging.DEBUG):
        answer = run("push", output, "me/vit", "--token", hub.token)
    assert answer.code == 0
    assert hub.token not in answer.out + answer.err + caplog.text


def test_random_weights_are_called_so_and_published_on_demand_alone(hub, run, tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    code, _, err = run("timm", "test_vit", "--no-pretrained", "-o", out, "--no-verify")
    assert code == 0, err
    vitconvert.convert(out, to="hf", output=again, allow=["norm-eps"], verify=False)
    for made in (out, again):  # what is random stays so
        assert "\n**Its weights are random: nothing was learned" in (made / "README.md").read_text()
        for flags in ([], ["--dry-run"]):
            code, _, err = run("push", made, "me/random", *flags)
            assert code == 1
            assert err.splitlines()[1] == "  These weights are random: nothing was learned."
            assert "--force" in err
    assert "me/random" not in hub.commits
    assert run("push", again, "me/random", "--force").code == 0
    assert "model.safetensors" in hub.commits["me/random"][hub.branches["me/random"]["main"]]


def test_learned_weights_are_not_called_random(output):
    assert "random" not in (output / "README.md").read_text()
    assert json.loads((output / "vitconvert.json").read_text())["source"]["random"] is False
