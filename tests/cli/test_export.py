"""`vitconvert export MODEL --to FORMAT -o FILE`."""

import json

import pytest

from vitconvert.demo.demonstration import DIGITS
from vitconvert.runtimes.runtime import Pt2


def test_a_report_and_json(run, tmp_path):
    file = tmp_path / "digits.pt2"
    code, out, err = run("export", DIGITS, "--to", "pt2", "-o", file, "--kind", "features")
    assert (code, err) == (0, "")
    assert "images         float32, batch x 3 x 32 x 32\n" in out
    assert "output         features, computed in float32\n" in out
    assert "noise, 3 at once: largest difference " in out
    assert out.endswith("written        digits.pt2\n")
    again = ("export", DIGITS, "--to", "pt2", "-o", file)
    assert run(*again).err.startswith("error: output-exists\n")
    answer = json.loads(
        run(*again, "--force", "--json", "--softmax", "--images", DIGITS / "samples").out
    )
    assert (answer["ok"], answer["photographs"]["agreed"]) == (True, 10)
    command = answer["record"]["command"]
    assert command == (
        "vitconvert export digits --to pt2 -o digits.pt2 --softmax --images samples --force --json"
    )
    assert run(*again, "--force", "--quiet", "--no-verify").out == f"{file}\n"


def test_error_a_failed_check_writes_nothing(run, tmp_path, monkeypatch):
    opened = Pt2.open

    def wrong(self, path, **how):
        right = opened(self, path, **how)
        return lambda images: right(images) * 1.001

    monkeypatch.setattr(Pt2, "open", wrong)
    code, out, err = run("export", DIGITS, "--to", "pt2", "-o", tmp_path / "digits.pt2")
    assert (code, out) == (3, "")
    assert err.startswith("error: parity-failed\n  torch.export ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "onx", "-o", "x.onnx"), "did you mean onnx?"),
        (("--to", "pt2", "-o", "x.onnx"), "The name of pt2 files ends with .pt2."),
        (("--to", "pt2", "-o", "x.pt2", "--int8"), "int8 is for ONNX"),
        (("--to", "pt2", "-o", "absent/x.pt2"), "The directory of the output does not exist."),
    ],
)
def test_error_usage(arguments, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("export", DIGITS, *arguments)
    assert (code, out) == (2, "")
    assert message in err
