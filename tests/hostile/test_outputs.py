"""Outputs of one file: what appears there meanwhile is not replaced."""

import numpy as np
import pytest
import torch

from tests.spelling import google_arrays
from vitconvert import export_model, record_golden, whole
from vitconvert.cli import main
from vitconvert.drafting.draft_text import write_draft
from vitconvert.errors import OutputExists
from vitconvert.inference.embed import Embedding
from vitconvert.inference.embedding_files import write_embeddings

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
