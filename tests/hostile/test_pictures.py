"""Photographs of others as pictures and pages: their names, their shapes, and their pixels."""

import numpy as np
import pytest
from PIL import Image

from tests.hostile.harness import run_limited
from vitconvert.demo.demonstration import DIGITS

SAMPLE = DIGITS / "samples" / "3.png"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.png", "out.html"])
def test_a_photograph_of_48_megapixels_is_drawn_in_a_gibibyte(tmp_path, name):
    Image.new("RGB", (8000, 6000), (90, 80, 70)).save(tmp_path / "large.jpg")
    image = tmp_path / "large.jpg"
    answer = run_limited("attention", DIGITS, image, "-o", tmp_path / name, seconds=40)
    assert answer.code == 0, answer.err
    assert answer.peak_mib < 1024


def test_shapes_and_names_that_nobody_expects(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    thin = {"thin": (1, 3000), "flat": (3000, 1), "one": (1, 1), "a..b": (9, 7), "-o x": (5, 5)}
    for name, size in thin.items():
        Image.fromarray(np.full(size, 200, np.uint8)).save(folder / f"{name}.png")
    Image.open(SAMPLE).save(folder / "\x1b[31m\u202egnp\n<script>alert(1).png")
    for output in ("out", "out.png", "out.html"):
        answer = run_limited("attention", DIGITS, folder, "-o", tmp_path / output, "--features")
        assert answer.code == 0, answer.err
        assert not any(sign in answer.out + answer.err for sign in "\x1b\x07\x9b\r\u202e")
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(names) == 6 * 3 + 1
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.m[") for name in names)
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "\x1b" not in page
    with Image.open(tmp_path / "out" / "thin-norms.png") as drawn:
        assert drawn.size == (3000, 1)


@pytest.mark.parametrize(
    "query", ["patch:99999999999999999999,0", "patch:²,1", "patch:-1,0", "\x1b[2J", "x" * 10**5]
)
def test_queries_that_are_none(query, tmp_path):
    answer = run_limited("attention", DIGITS, SAMPLE, "-o", tmp_path / "out", "--query", query)
    assert answer.code == 2 and "The model has no token" in answer.err
    assert "\x1b" not in answer.err and "Traceback" not in answer.err
