"""`vitconvert verify MODEL`, and the page that it writes."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.spelling import google_arrays
from vitconvert import convert


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
        "  The output exists already.\n"
        f"  output  {page}\n"
        "  hint: --force replaces it, if vitconvert wrote it.\n"
    )
    code, out, err = run("verify", google, "--report", page, "--force")
    assert (code, out) == (1, "") and "vitconvert did not write this file" in err
    assert page.read_text() == "precious"
    page.unlink()
    for _ in range(2):
        assert run("verify", google, "--report", page, "--force").code == 0
        assert page.read_text().startswith("<!doctype html>")
        page.write_text(page.read_text().replace("</body>", "old</body>"))


def test_a_full_disk_leaves_no_page(google, run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitconvert.atomic_write.HashingWriter.write", full)
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


def test_the_other_checkpoint_is_read_as_its_own_options_say(google, run, tmp_path):
    convert(google, output=tmp_path / "timm", to="timm", verify=False)
    other = tmp_path / "timm" / "model.safetensors"
    other = other.rename(tmp_path / "w.safetensors")  # nothing beside it tells its heads
    asked = ["verify", google, "--against", other, "--json"]
    code, out, _ = run(*asked, "--set", "num_heads=3")
    assert code == 1 and "num_heads" in out
    facts = {"num_heads": 3, "activation": "gelu_tanh", "norm_eps": 1e-6, "image_size": 24}
    said = [word for name, v in facts.items() for word in ("--set-against", f"{name}={v}")]
    code, out, err = run(*asked, *said)
    assert (code, err) == (0, "") and json.loads(out)["ok"]


@pytest.mark.parametrize(
    ("verb", "asked", "why"),
    [
        ("verify", [], "--against is missing"),
        ("verify", ["--against", "x.golden"], "--against is a golden file"),
        ("attention", ["photo.png", "-o", "x.html"], "--against is missing"),
    ],
    ids=str,
)
def test_options_on_reading_want_a_checkpoint(verb, asked, why, google, run):
    code, _, err = run(verb, google, *asked, "--tower-against", "x")
    assert code == 2
    assert f"--tower-against is about reading a checkpoint, and {why}." in err


def test_images_are_compared_too(google, run, tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(2):
        Image.new("RGB", (31, 44), (90 * i, 40, 7)).save(tmp_path / "photos" / f"{i}.png")
    again = tmp_path / "photos" / "0.png"
    code, out, err = run("verify", google, "--images", tmp_path / "photos", "--images", again)
    assert (code, err) == (0, "")
    assert "\n  images      float32  " in out
    assert "argmax 3 of 3" in out
    assert "\n  not tested: preprocessing of images: both sides took the same\n" in out
    code, _, err = run("verify", google, "--images", tmp_path / "none.png")
    assert code == 2
    assert "none.png: No such file or directory." in err


def test_lower_precision_is_measured_too(google, run, tmp_path):
    page = tmp_path / "page.html"
    asked = ["--dtypes", "float16,bfloat16", "--json", "--report", page]
    code, out, err = run("verify", google, *asked)
    assert (code, err) == (0, "")
    report = json.loads(out)
    dtypes = {c["dtype"]: c["relative"] for c in report["comparisons"] if c["images"] == "noise"}
    assert list(dtypes) == ["float32", "float64", "bfloat16", "float16"]
    assert dtypes["float32"] < dtypes["float16"] / 100 < dtypes["bfloat16"] / 100
    assert [one["overflow"] for one in report["precision"]] == ["", ""]
    assert "<td>overflow</td><td>float16: none</td>" in page.read_text()


@pytest.mark.parametrize(
    ("option", "instead"), [("--audit", "--dtypes float16"), ("--gradients", "torch.autograd.grad")]
)
def test_options_of_earlier_versions_name_what_is_in_their_place(option, instead, google, run):
    code, out, err = run("verify", google, option)
    assert (code, out) == (2, "")
    assert f"No such option '{option}'." in err and instead in err
