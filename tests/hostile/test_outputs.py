"""Outputs of one file: what appears meanwhile stays, and what killed processes leave goes."""

import fcntl
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.spelling import google_arrays
from vitconvert import export_model, record_golden, whole
from vitconvert.cli import main
from vitconvert.drafting.draft_file import write_draft
from vitconvert.errors import OutputExists
from vitconvert.inference.embed import Embedding
from vitconvert.inference.embedding_files import write_embeddings
from vitconvert.whole import whole_file

FOREIGN = b"somebody's thesis"


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    path = tmp_path_factory.mktemp("google") / "vit.npz"
    np.savez(path, **google_arrays(depth=1, heads=3, width=12, size=24))
    return path


def names(folder):
    return [path.name for path in folder.iterdir()]


def features(path, google, force):
    answers = (Embedding(path=None, features=torch.ones(3), error=None) for _ in range(2))
    write_embeddings(path, answers, overwrite=force)


def draft(path, google, force):
    write_draft("# a draft", path, overwrite=force)


def golden(path, google, force):
    record_golden(google, path, batch=1, overwrite=force)


def report(path, google, force):
    arguments = ["verify", str(google), "--report", str(path), *["--force"] * force]
    with pytest.raises(SystemExit) as left:
        main(arguments)
    if left.value.code:
        raise OutputExists("as the command says")


def exported(path, google, force):
    export_model(google, path, to="pt2", verify=False, overwrite=force)


WRITERS = {
    "x.npz": features,
    "x.safetensors": features,
    "x.golden": golden,
    "x.toml": draft,
    "x.html": report,
    "x.pt2": exported,
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_what_appears_meanwhile_is_not_replaced(name, force, google, tmp_path, monkeypatch):
    put = whole._put

    def late(finished, path, check):
        path.write_bytes(FOREIGN)
        put(finished, path, check)

    monkeypatch.setattr(whole, "_put", late)
    with pytest.raises(OutputExists):
        WRITERS[name](tmp_path / name, google, force)
    assert (tmp_path / name).read_bytes() == FOREIGN
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("links", [True, False])
def test_what_may_be_replaced_is(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(PermissionError))
    path, asked = tmp_path / "x", []
    path.write_bytes(b"old")
    with whole_file(path, check=asked.append) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and asked == [path] and names(tmp_path) == ["x"]


KILLED = """
import os, signal, sys
from pathlib import Path
from vitconvert.whole import whole_file, whole_files
path = Path(sys.argv[1])
with whole_file(path) as file, whole_files(path, print) as draft:
    draft.write_bytes(b"half")
    draft.with_name("x.onnx.data").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_remains_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    path = tmp_path / "x.toml"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(FOREIGN)
    (tmp_path / f".vitconvert-{'0' * 16}.part").symlink_to(elsewhere)
    (tmp_path / ".vitconvert-mine.part").write_bytes(FOREIGN)
    os.mkfifo(tmp_path / f".vitconvert-{'1' * 16}.part")
    with_folder = tmp_path / f".vitconvert-{'2' * 16}.part" / "photos"
    with_folder.mkdir(parents=True)
    (with_folder / "mine.jpg").write_bytes(FOREIGN)
    stay = {name for name in names(tmp_path) if not is_remains(name)}
    in_use, descriptor = whole._begin(tmp_path / "x", tmp_path)
    write_draft("# a draft", path)
    os.close(descriptor)
    assert set(names(tmp_path)) == {*stay, "x.toml", in_use.name}
    assert elsewhere.read_bytes() == (with_folder / "mine.jpg").read_bytes() == FOREIGN


def is_remains(name: str) -> bool:
    digits = name.removeprefix(".vitconvert-").removesuffix(".part")
    return len(digits) == 16 and len(set(digits)) > 1


def test_a_name_that_another_process_sweeps_at_once_is_not_used(tmp_path, monkeypatch):
    """Between the making and the locking, somebody removes it as remains."""
    swept, flock = [], fcntl.flock

    def slow(descriptor, how):
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        flock(descriptor, how)

    monkeypatch.setattr("fcntl.flock", slow)
    path, descriptor = whole._begin(tmp_path / "x", tmp_path)
    os.close(descriptor)
    assert swept and path not in swept and list(tmp_path.iterdir()) == [path]
