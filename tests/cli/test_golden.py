"""`vitconvert golden SOURCE -o NAME.golden`, and `verify --against NAME.golden`."""

import json

import pytest
from safetensors.numpy import load_file, save_file

from vitconvert.demo.demonstration import DIGITS


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return tmp_path_factory.mktemp("golden") / "digits.golden"


def test_a_golden_file_is_recorded_replayed_and_not_replaced(run, recorded):
    code, out, err = run("golden", DIGITS, "-o", recorded, "--batch", 1, "--seed", 3)
    assert (code, err) == (0, "")
    assert f"{recorded.stat().st_size:,} bytes" in out
    assert "equal: timm 1." in out
    answer = json.loads(run("verify", DIGITS, "--against", recorded, "--json").out)
    assert answer["verdict"] == "equal"
    assert answer["reference"] == "digits.golden, recorded of digits"
    code, out, err = run("golden", DIGITS, "-o", recorded)
    assert (code, out) == (1, "")
    assert err.startswith("error: output-exists\n")
    before = recorded.read_bytes()
    answer = json.loads(run("golden", DIGITS, "-o", recorded, "--force", "--json").out)
    assert answer["bytes"] == recorded.stat().st_size
    assert recorded.read_bytes() != before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("digits.safetensors", "The name of a golden file ends with .golden."),
        ("absent/digits.golden", "The directory of the output does not exist."),
    ],
)
def test_error_places(place, message, run, tmp_path):
    code, out, err = run("golden", DIGITS, "-o", tmp_path / place)
    assert (code, out) == (2, "")
    assert message in err


def test_error_options_that_a_golden_file_decides(run, tmp_path):
    code, _, err = run("verify", DIGITS, "--against", tmp_path / "x.golden", "--seed", 1)
    assert code == 2
    assert "--seed is not possible here: a golden file states which images are compared." in err
    code, _, err = run("verify", DIGITS, "--against", tmp_path / "absent.golden")
    assert code == 1
    assert err.startswith("error: source-not-found\n")


def test_pixels_are_recorded_and_a_port_is_compared(run, tmp_path):
    place = tmp_path / "digits.pixels"
    code, out, err = run("golden", DIGITS, "--pixels", "-o", place)
    assert (code, err) == (0, "")
    assert "12 of 12 images bit-equal to timm 1." in out
    code, _, err = run("golden", DIGITS, "--pixels", "-o", place)
    assert (code, err.splitlines()[0]) == (1, "error: output-exists")
    assert run("golden", DIGITS, "--pixels", "-o", place, "--force", "-q").out == f"{place}\n"
    code, out, err = run("golden", place, "--check", place / "pixels.safetensors")
    assert (code, err) == (0, "")
    assert out.startswith("equal to digits.pixels, recorded of digits\n  gradient.png ")
    edges = load_file(place / "pixels.safetensors")["edges.png/normalised"]
    save_file({"edges.png": edges[::-1].copy()}, tmp_path / "theirs.safetensors")
    code, out, _ = run("golden", place, "--check", tmp_path / "theirs.safetensors", "--json")
    answer = json.loads(out)
    assert (code, answer["ok"], answer["verdict"]) == (3, False, "not equal")
    assert answer["first departs"] == ["edges.png", "normalised"]
    assert answer["causes"] == ["the channels are in the order blue, green, red"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ((), "-o is missing: it names what is written."),
        (("--pixels", "--seed", 1, "-o", "x"), "--seed is not about pixels."),
        (("--mean", "0.5", "-o", "x.golden"), "--mean is about images and classes"),
        (("--check", "x.npz", "-o", "y"), "--output records, and --check compares."),
        (("--check", "x.npz", "--dialect", "timm"), "--check reads what --pixels wrote"),
    ],
)
def test_error_options_of_pixels(typed, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("golden", DIGITS, *typed)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())
