"""Hubs that lose, change or redirect what is published, and say that all is well."""

import json
import shutil

import pytest

from tests.hub_server import HubServer, raw_answer, use_hub
from vitconvert.conversion.push import files_to_push
from vitconvert.demo.demonstration import DIGITS

# The client's own call of its own transport (huggingface_hub 2.4, lfs.py).
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def output(run, tmp_path):
    """An output of vitconvert."""
    code, _, err = run("file", DIGITS, "--to", "timm", "-o", tmp_path / "out", "--no-verify")
    assert code == 0, err
    return tmp_path / "out"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that knows our token."""
    with HubServer({}) as server:
        use_hub(monkeypatch, server, tmp_path)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


def published(hub, branch="main"):
    return hub.commits["me/vit"][hub.branches["me/vit"][branch]]


@pytest.mark.parametrize("answered", [False, True], ids=["not made", "made"])
def test_a_commit_whose_answer_is_lost_is_made_by_a_second_run(hub, run, output, answered):
    if answered:
        hub.faults.unanswered = ["/commit/"] * 9
    else:
        hub.faults.raw = {"/commit/": [b""] * 9}
    code, out, err = run("push", output, "me/vit", "-q")
    assert (code, out) == (1, "")
    assert "The upload to me/vit broke off." in err
    assert err.endswith("hint: run again: what has arrived is not sent twice.\n")
    hub.faults.raw, hub.faults.unanswered = {}, []
    assert run("push", output, "me/vit", "-q").code == 0
    assert published(hub) == {n: p.read_bytes() for n, p in files_to_push(output).items()}
    uploads = [path for path in hub.paths("PUT") if path.startswith("/lfs/")]
    assert len(uploads) == len(set(uploads))


def test_error_a_proposal_whose_answer_is_lost(hub, run, output):
    hub.faults.unanswered = ["/commit/"] * 9
    code, _, err = run("push", output, "me/vit", "--create-pr")
    assert code == 1
    assert "hint: look whether the pull request is there: a second run opens another." in err


def test_error_a_storage_that_has_not_what_it_says(hub, run, output):
    hub.faults.lost = True
    code, out, err = run("push", output, "me/vit", "-q")
    assert (code, out) == (1, "")
    assert err.startswith(
        "error: hash-mismatch\n  The commit holds something else than what was sent.\n"
    )
    assert "  model.safetensors\n" in err
    assert "config.json" not in err


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_error_a_file_that_changes_while_it_is_sent(hub, run, output, name):
    body = bytearray((output / name).read_bytes())
    body[-2] ^= 1

    def change(_, path):
        if "/preupload/" in path:
            (output / name).write_bytes(body)

    hub.on_request = change
    code, out, err = run("push", output, "me/vit", "-q")
    assert (code, out) == (1, "")
    assert name in err


@pytest.mark.parametrize("field", ["verify", "upload"])
def test_the_token_goes_to_no_other_address(hub, run, output, field):
    """Neither to the storage, whose addresses are signed, nor where it has a file verified."""
    objects = []

    def lie(method, path):
        if "/objects/batch" in path and not objects:
            oid = json.loads((output / "vitconvert.json").read_text())["sha256"]
            place = f"{hub.other_host}/lfs/"
            actions = {"upload": {"href": place + oid["model.safetensors"]}}
            actions[field] = {"href": place + "verify" * (field == "verify")}
            objects.append({"oid": oid["model.safetensors"], "size": 1, "actions": actions})
            body = json.dumps({"transfer": "basic", "objects": objects}).encode()
            header = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
            hub.faults.raw = {"/objects/batch": [raw_answer("200 OK", header, body)]}

    hub.on_request = lie
    code, _, err = run("push", output, "me/vit", "-q")
    assert code == 1
    assert "the token at another address" in err or field == "upload"
    away = [r for r in hub.requests if r.headers["host"] in hub.other_host]
    assert away
    assert not any("authorization" in r.headers or hub.token in str(r) for r in away)


def test_what_is_there_besides_stays(hub, run, output):
    hub.push("me/vit", {"own.txt": b"mine"})
    shutil.copy(DIGITS / "config.json", output / "extra.json")
    assert run("push", output, "me/vit", "-q").code == 0
    assert published(hub)["own.txt"] == b"mine"
