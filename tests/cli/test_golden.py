"""`vitconvert golden SOURCE -o NAME.golden`, and `verify --against NAME.golden`."""

import json

import pytest

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
    assert "seed: a golden file says itself which images are compared." in err
    code, _, err = run("verify", DIGITS, "--against", tmp_path / "absent.golden")
    assert code == 1
    assert err.startswith("error: source-not-found\n")
