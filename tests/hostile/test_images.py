"""Images of others: names that steer, programs, and more pixels than there is room."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.hostile.harness import Answer, call_limited, run_limited
from vitconvert.demo.demonstration import DIGITS
from vitconvert.preprocessing import Preprocessing

SAMPLE = DIGITS / "samples" / "3.png"


def predict(*images: object) -> Answer:
    """Ask what images show; `SAMPLE`, the last, must be answered whatever the others are."""
    answer = run_limited("predict", DIGITS, "-q", *images, SAMPLE)
    assert "Traceback" not in answer.err
    assert answer.out.splitlines()[-1:] == [f"{SAMPLE}\t3"], answer.err[-2000:]
    return answer


def test_a_postscript_program_is_not_run(tmp_path):
    program = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n"
    (tmp_path / "cat.png").write_text(program)
    answer = predict(tmp_path / "cat.png")
    assert "error: unsafe-file\n" in answer.err
    assert "Ghostscript" in answer.err


def test_names_and_labels_steer_no_terminal(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes((DIGITS / "model.safetensors").read_bytes())
    own = json.loads((DIGITS / "vitconvert.json").read_text())
    own["labels"] = [f"\x1b]0;{i}\x07\u202egnp\x9b2J\r\n{i}" for i in range(10)]
    (model / "vitconvert.json").write_text(json.dumps(own))
    image = tmp_path / "\x1b[31mred\x07\n\u202egnp.png"
    Image.open(SAMPLE).save(image)
    for asked in ((), ("-q",), ("--json",)):
        answer = run_limited("predict", model, image, *asked)
        assert answer.code == 0
        assert not any(sign in answer.out + answer.err for sign in "\x1b\x07\x9b\r\u202e")
    found = json.loads(answer.out)
    assert found["path"] == str(image)  # a program gets what is true
    assert found["top"][0]["label"] == own["labels"][3]


def test_thin_images_become_no_giants(tmp_path):
    Image.fromarray(np.zeros((1, 60_000), np.uint8)).save(tmp_path / "thin.png")
    Image.fromarray(np.zeros((60_000, 1), np.uint8)).save(tmp_path / "tall.png")
    answer = call_limited(
        lambda: Preprocessing.from_timm({"input_size": (3, 224, 224)}).array(tmp_path / "thin.png")
    )
    assert answer.err.startswith("error: unsafe-file\n")
    assert predict(tmp_path).peak_mib < 1024


def test_pictures_of_images_with_odd_shapes_and_names(tmp_path: Path):
    folder = tmp_path / "photos"
    folder.mkdir()
    thin = {"thin": (1, 3000), "flat": (3000, 1), "one": (1, 1), "-o x": (5, 5)}
    for name, size in thin.items():
        Image.fromarray(np.full(size, 200, np.uint8)).save(folder / f"{name}.png")
    Image.open(SAMPLE).save(folder / "\x1b[31m\u202egnp\n<script>alert(1).png")
    for output in ("out", "out.html"):
        answer = run_limited("attention", DIGITS, folder, "-o", tmp_path / output, "--features")
        assert answer.code == 0, answer.err
        assert not any(sign in answer.out + answer.err for sign in "\x1b\x07\x9b\r\u202e")
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(names) == 5 * 3 + 1
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.m[") for name in names)
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "\x1b" not in page


@pytest.mark.parametrize("query", ["patch:99999999999999999999,0", "patch:²,1", "\x1b[2J"])
def test_queries_that_are_none(query, tmp_path):
    answer = run_limited("attention", DIGITS, SAMPLE, "-o", tmp_path / "out", "--query", query)
    assert answer.code == 2 and "The model has no token" in answer.err
    assert "\x1b" not in answer.err and "Traceback" not in answer.err
