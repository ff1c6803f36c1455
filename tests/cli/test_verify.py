"""`vitconvert verify MODEL`, and the page that it writes."""

import json

import numpy as np
import pytest

from tests.spelling import google_arrays
from vitconvert.containers import whole_file as whole_file_module


@pytest.fixture
def google(tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=2, heads=3, width=36, size=24))
    return tmp_path / "vit.npz"


def test_the_page_is_not_replaced_without_being_asked(google, run, tmp_path):
    page = tmp_path / "report.html"
    page.write_text("precious")
    code, out, err = run("verify", google, "--report", page)
    assert (code, out) == (1, "")
    assert err == (
        "error: output-exists\n"
        "  The report already exists.\n"
        f"  report  {page}\n"
        "  hint: --force replaces it; --report names another file.\n"
    )
    assert page.read_text() == "precious"
    assert run("verify", google, "--report", page, "--force").code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_a_full_disk_leaves_no_page(google, run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_file_module.SequentialWriter, "write", full)
    page = tmp_path / "report.html"
    code, _, err = run("verify", google, "--report", page)
    assert code == 1
    assert "No space left on device" in err
    assert not page.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["vit.npz"]


def test_both_checkpoints_are_named(google, run, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(google.read_bytes())
    code, out, err = run("verify", google, "--against", other, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["source"], answer["against"]) == (str(google), str(other))
