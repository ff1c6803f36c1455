"""`vitconvert export MODEL --to FORMAT -o FILE`."""

import json

import pytest
import torch

import vitconvert
from tests.packages import timm
from vitconvert.demo.demonstration import DIGITS
from vitconvert.runtimes.runtime import Pt2


def test_a_report_and_json(run, tmp_path, monkeypatch):
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
    assert answer["record"]["command"] == "vitconvert export digits --to pt2 --probabilities"
    assert run(*again, "--force", "--quiet", "--no-verify").out == f"{file}\n"
    file.unlink()
    monkeypatch.chdir(tmp_path)
    assert run("export", DIGITS, "--to", "pt2", "-q", "--no-verify").out == "digits.pt2\n"
    assert file.exists()


@pytest.mark.slow
def test_the_report_says_what_went_in(run, tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=2)
    weights = {"state_dict": model.state_dict(), "state_dict_ema": model.state_dict()}
    torch.save(weights, tmp_path / "trained.pth")
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    command = ("export", tmp_path / "trained.pth", "--to", "pt2", "-o", tmp_path / "m.pt2")
    command += ("--set", "num_heads=3", "--labels", tmp_path / "names.txt", "--force")
    out = run(*command).out
    assert "\nnote           the weights are those under state_dict_ema; the file also has " in out
    assert "note           labels: " not in out  # which has a line of its own
    assert "\nassumed        " in out and "norm_eps" in out
    assert "\npreprocessing  unknown\nlabels         names.txt, stated by you\n" in out
    stated = run(*command, "--mean", "0.5", "--std", "0.5", "--crop", "1", "--no-verify").out
    assert "\npreprocessing  stated by you; assumed: bicubic, as in timm\n" in stated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "suffix"), [("pt2", ".pt2"), ("onnx", ".onnx"), ("openvino", ".xml")]
)
def test_what_is_written_depends_on_what_was_meant(to, suffix, run, tmp_path):
    if to != "pt2":
        pytest.importorskip("onnxscript" if to == "onnx" else "openvino")
    first, second = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    for options in ((first,), (second, "-q"), (second, "--force", "--json")):
        assert run("export", DIGITS, "--to", to, "-o", *options, "--no-verify").code == 0
    assert first.read_bytes() == second.read_bytes()
    other = vitconvert.export_model(DIGITS, first, to=to, kind="features", overwrite=True)
    assert other.output.read_bytes() != second.read_bytes()


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
