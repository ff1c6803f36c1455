"""`vitconvert attention` in its outputs: a directory, a sheet, a picture, a page, JSON."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from vitconvert import attention_maps, feature_maps, load_checkpoint, predict
from vitconvert.demo.demonstration import DIGITS
from vitconvert.formats import hash_file
from vitconvert.pictures.files import PANEL, _new_stem

SAMPLES = DIGITS / "samples"
ONE, TWO = SAMPLES / "1.png", SAMPLES / "2.png"


@pytest.fixture(scope="module")
def maps():
    checkpoint = load_checkpoint(DIGITS)
    return list(attention_maps(checkpoint, [ONE, TWO]))


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.png"
    path.write_text("meow")
    return path


def same(file, picture):
    with Image.open(file) as found:
        assert (found.mode, found.size) == (picture.mode, picture.size)
        return np.array_equal(np.asarray(found), np.asarray(picture))


def test_a_directory_has_a_picture_of_each_map(run, tmp_path, maps):
    asked = ("--layers", "0,-1", "--heads", "1,-2,2", "--query", "patch:2,1", "--raw")
    code, out, err = run("attention", DIGITS, ONE, TWO, "-o", tmp_path / "out", *asked)
    assert (code, err) == (0, f"written: {tmp_path / 'out'}\n")
    names = {
        f"{stem}-block-{block}-head-{head}-patch-2-1.png": (number, block, head)
        for number, stem in enumerate("12")
        for block in (0, 3)
        for head in (1, 2)
    }
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {*names, "vitconvert.json"}
    for name, (number, block, head) in names.items():
        picture = maps[number].picture(block, head, (2, 1), raw=True)
        assert same(tmp_path / "out" / name, picture), name
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["sha256"] == {name: hash_file(tmp_path / "out" / name) for name in names}
    first = record["photographs"][0]
    assert first["files"] == [name for name in names if name.startswith("1")]
    assert first["maps"][3] == maps[0].to_dict(3, 2, (2, 1))
    assert out.splitlines()[:2] == [str(ONE), "  4x4 patches"]
    assert re.fullmatch(
        r"  block 0, head 1, patch:2,1: patches \d+\.\d%, class \d+\.\d%; "
        r"largest \d+\.\d\d%, patch:\d,\d",
        out.splitlines()[2],
    )


def test_names_of_pictures_are_names_alone():
    """None is hidden, too long, a path or, where capitals are not told apart, another's."""
    taken = set()
    names = [".hidden.png", "HIDDEN.jpg", "a b.png", "x" * 200 + ".png", "...png", ".png"]
    found = [_new_stem(Path(name), taken) for name in names]
    assert found == ["hidden", "HIDDEN-2", "a_b", "x" * 60, "image", "png"]


def test_one_map_of_one_photograph_is_a_picture_of_its_size(run, tmp_path, maps):
    output = tmp_path / "one.png"
    assert run("attention", DIGITS, ONE, "-o", output, "-q") == (0, "", "")
    assert same(output, maps[0].picture())
    assert run("attention", DIGITS, ONE, "-o", output, "-q", "--rollout", "--force").code == 0
    assert same(output, maps[0].picture("rollout"))


def test_several_are_a_sheet(run, tmp_path):
    output = tmp_path / "sheet.png"
    asked = ("--heads", "all", "--features", "--query", "patch:1,1")
    assert run("attention", DIGITS, ONE, TWO, "-o", output, *asked).code == 0
    with Image.open(output) as found:
        # Photograph, mean, 3 heads, components, norms, similarity.
        assert found.size == (8 * PANEL + 7 * 6, 18 + 2 * PANEL + 6)
        shown = found.convert("RGB")
    photograph = Image.open(TWO).convert("RGB").resize((PANEL, PANEL), Image.Resampling.NEAREST)
    box = (0, 18 + PANEL + 6, PANEL, 18 + 2 * PANEL + 6)
    assert np.array_equal(np.asarray(shown.crop(box)), np.asarray(photograph))


def test_lines_of_json_tell_of_each_photograph(run, maps, bad):
    code, out, err = run("attention", DIGITS, ONE, bad, TWO, "--json", "--features")
    first, second, third = map(json.loads, out.splitlines())
    assert code == 1
    assert err.startswith("error: corrupt-file\n")
    assert (first["path"], first["size"], first["grid"]) == (str(ONE), [32, 32], [4, 4])
    assert first["seen"] == [0.0, 0.0, 32.0, 32.0]
    assert first["maps"] == [maps[0].to_dict()]
    assert second == {"path": str(bad), "error": second["error"]}
    assert second["error"]["code"] == "corrupt-file"
    features = feature_maps(DIGITS, [ONE, TWO])
    assert third["features"] == features[1].to_dict()


def test_a_page_has_all_blocks_and_heads_of_both_models(run, tmp_path):
    output = tmp_path / "page.html"
    asked = ("--against", DIGITS, "--query", "mean")
    code, _, _ = run("attention", DIGITS, ONE, TWO, "-o", output, *asked)
    assert code == 0
    text = output.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))
    assert [view["photograph"] for view in data["views"]] == [0, 0, 1, 1]
    assert data["views"][0]["model"] == str(DIGITS)
    assert len(data["views"][1]["planes"]) == 4 * (3 + 1) + 1
    assert data["views"][0]["query"] == "mean"
    assert "<title>Attention of digits</title>" in text
    assert [one["name"] for one in data["photographs"]] == [ONE.name, TWO.name]
    (first, *_), _ = (p.top for p in predict(DIGITS, [ONE, TWO], fast=False))
    assert data["views"][0]["said"].startswith(f"{first.label} {first.probability:.1%}, ")
    asked = ("--layers", "last", "--heads", "mean", "--force", "-q")
    assert run("attention", DIGITS, ONE, "-o", output, *asked).code == 0
    data = json.loads(re.search(r'id="data">(.*?)</script>', output.read_text()).group(1))
    planes = [["attention", 3, "mean", 17, 1], ["rollout", 0, "mean", 17, 1]]
    assert data["views"][0]["planes"] == planes


def test_the_other_model_is_read_as_its_own_options_say(run, tmp_path):
    other, output = tmp_path / "other", tmp_path / "page.html"
    shutil.copytree(DIGITS, other)
    file = other / "model.safetensors"
    save_file(load_file(file) | {"aux.weight": torch.ones(1)}, file)
    asked = ["attention", DIGITS, ONE, "-o", output, "--against", other]
    code, _, err = run(*asked)
    assert code == 1 and "aux.weight" in err
    assert run(*asked, "--ignore-against", "aux.*").code == 0


@pytest.mark.parametrize("name", ["x.png", "x.html", "x"])
def test_nothing_is_written_of_nothing(run, tmp_path, bad, name):
    code, out, err = run("attention", DIGITS, bad, "-o", tmp_path / name)
    assert (code, out) == (1, "")
    assert err.endswith(f"\nThere are no maps, so {tmp_path / name} is not written.\n")
    assert {path.name for path in tmp_path.iterdir()} == {"bad.png"}


@pytest.mark.parametrize("name", ["x.png", "x.html", "x"])
def test_error_in_the_middle_leaves_nothing(run, tmp_path, name):
    code, _, err = run("attention", DIGITS, ONE, "-o", tmp_path / name, "--query", "patch:4,0")
    assert code == 2
    assert err.startswith("error: usage\n  The model has no token 'patch:4,0'.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.png", "x.html"])
def test_a_file_is_replaced_by_force_alone(run, tmp_path, name):
    output = tmp_path / name
    assert run("attention", DIGITS, ONE, "-o", output).code == 0
    first = output.read_bytes()
    code, _, err = run("attention", DIGITS, TWO, "-o", output)
    assert code == 1 and err.startswith("error: output-exists\n")
    assert output.read_bytes() == first
    assert run("attention", DIGITS, TWO, "-o", output, "--force").code == 0
    assert output.read_bytes() != first
    shutil.copy(TWO, output)  # a file of others
    code, _, err = run("attention", DIGITS, ONE, "-o", output, "--force")
    assert code == 1 and "vitconvert did not write this file" in err
    assert output.read_bytes() == TWO.read_bytes()


def test_a_directory_of_others_is_never_replaced(run, tmp_path):
    output = tmp_path / "out"
    assert run("attention", DIGITS, ONE, "-o", output).code == 0
    assert run("attention", DIGITS, TWO, "-o", output).code == 1
    assert run("attention", DIGITS, TWO, "-o", output, "--force").code == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "2-block-3-mean-class.png",
        "vitconvert.json",
    ]
    (output / "mine.txt").write_text("mine")
    code, _, err = run("attention", DIGITS, ONE, "-o", output, "--force")
    assert code == 1 and "contains what vitconvert did not write" in err


def test_photographs_of_one_name_have_files_of_their_own(run, tmp_path):
    paths = []
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "x\n;.y.png")
        Image.new("RGB", (8, 8)).save(paths[-1])
    code, out, _ = run("attention", DIGITS, *paths, "-o", tmp_path / "out")
    assert code == 0
    assert "\\n;" in out and "x\n;" not in out
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        f"x__.y{more}-block-3-mean-class.png" for more in ("", "-2", "-3")
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "No output is named for the maps."),
        (("-o", "x.jpg"), "Images are written as .png, not as .jpg."),
        (("-o", "gone/x.png"), "The directory of the output does not exist."),
        (("-o", "x.png", "--against", DIGITS), "--against shows two models side by side"),
        (("-o", "x", "--foreground", "0.5"), "--foreground is for --features."),
        (("-o", "x", "--rollout", "--heads", "all"), "A rollout is over all blocks and heads"),
        (("-o", "x", "--layers", "first"), "--layers first is not one of last, all"),
        (("-o", "x", "--heads", "1,"), "--heads 1, is not one of mean, all"),
        (("-o", "x", "--heads", "7"), "There is no head 7."),
        (("-o", "x", "--layers", "4"), "The model does not have all of these blocks."),
        (("-o", "x", "--features", "--foreground", "2"), "foreground = 2.0 must be a finite"),
        (("-o", "x", "--features", "--foreground", "no"), "'no' is neither a number nor all"),
    ],
)
def test_error_options(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("attention", DIGITS, ONE, *arguments)
    assert code == 2 and words in err, err
    assert list(tmp_path.iterdir()) == []
