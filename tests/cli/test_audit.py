"""`vitconvert verify MODEL --audit`."""

import json

import numpy as np
import pytest

from tests.spelling import google_arrays

QUICK = ("--audit", "--without", "compiled", "--without", "onnxruntime")


@pytest.fixture
def google(tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=2, heads=3, width=36, size=24))
    return tmp_path / "vit.npz"


def test_a_table_is_printed(google, run):
    code, out, err = run("verify", google, *QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"audit of {google}: 8 images of each kind, compared with float64"
    assert lines[1].split() == ["arithmetic", "images", "relative", "absolute", "argmax", "flips"]
    assert [line.split()[:2] for line in lines[2:10]] == [
        [arithmetic, images]
        for arithmetic in ("float32", "bfloat16", "float16", "fast")
        for images in ("noise", "photograph")
    ]
    assert "  not measured   compiled: not asked for" in lines
    assert "An audit measures and judges nothing." in out
    assert run("verify", google, *QUICK, "-q").out == "measured\n"


def test_json_and_a_page(google, run, tmp_path):
    page = tmp_path / "audit.html"
    code, out, _ = run("verify", google, *QUICK, "--json", "--report", page, "--seed", 3)
    assert code == 0
    answer = json.loads(out)
    assert (answer["ok"], answer["source"], answer["images"]) == (True, str(google), 8)
    assert len(answer["layers"]) == 4 * (2 * 2 + 5)
    assert page.read_text().startswith("<!doctype html>")
    other = json.loads(run("verify", google, *QUICK, "--json").out)
    assert other["outputs"] != answer["outputs"]
    assert run("verify", google, *QUICK, "--report", page).code == 1  # it exists


def test_the_exit_code_tells_of_float32_that_is_not_finite(google, run, tmp_path):
    arrays = dict(np.load(google))
    arrays["head/bias"] = arrays["head/bias"] + np.float32(np.nan)
    np.savez(tmp_path / "broken.npz", **arrays)
    code, out, _ = run("verify", tmp_path / "broken.npz", *QUICK)
    assert code == 3
    assert "overflow       float32: first in output (0 infinite, " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--audit", "--against", "x.npz"], "--audit compares MODEL with itself in float64, not"),
        (["--audit", "--module", "a:b"], "with itself in float64, not with --module."),
        (["--without", "fast"], "--without needs --audit."),
        (["--audit", "--without", "int8"], "There is no arithmetic 'int8' to leave out."),
    ],
)
def test_options_that_do_not_fit(arguments, message, google, run):
    code, out, err = run("verify", google, *arguments)
    assert (code, out) == (2, "")
    assert message in err
