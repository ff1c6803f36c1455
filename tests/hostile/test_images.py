"""Images of others: names, folders and files that are none, and more pixels than there is room."""

import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.hostile.harness import Answer, call_limited, run_limited
from vitconvert.demo.demonstration import DIGITS
from vitconvert.preprocessing import Preprocessing

SAMPLE = DIGITS / "samples" / "3.png"


def predict(*images: object, **limits: float) -> Answer:
    """Ask what images show; `SAMPLE`, the last, must be answered whatever the others are."""
    answer = run_limited("predict", DIGITS, "-q", *images, SAMPLE, **limits)
    assert "Traceback" not in answer.err
    assert answer.out.splitlines()[-1:] == [f"{SAMPLE}\t3"], answer.err[-2000:]
    return answer


def png_of_zeros(path: Path, width: int, height: int) -> None:
    """A PNG of one bit per pixel, in a few bytes: rows are deflated to nearly nothing."""
    deflate = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(deflate.compress(row) for _ in range(height)) + deflate.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in chunks:
            check = zlib.crc32(kind + body)
            file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_several_giants_wait_for_each_other(tmp_path):
    for number in range(3):
        png_of_zeros(tmp_path / f"{number}.png", 13_368, 13_370)
    answer = predict(tmp_path, seconds=40)
    assert answer.peak_mib < 1024
    assert answer.code in (0, 1)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_giant_that_would_be_numbers_is_refused(tmp_path):
    png_of_zeros(tmp_path / "giant.png", 13_368, 13_370)
    steps = Preprocessing.from_huggingface(
        {"image_processor_type": "DINOv3ViTImageProcessor", "size": {"height": 32, "width": 32}}
    )
    answer = call_limited(lambda: steps.array(tmp_path / "giant.png") and None)
    assert answer.err.startswith("error: unsafe-file\n"), answer.err
    assert "13370x13368" in answer.err
    assert answer.code == 4


def test_a_pipe_lets_nobody_wait(tmp_path):
    os.mkfifo(tmp_path / "cat.png")
    answer = predict(tmp_path / "cat.png")
    assert "This is not a regular file." in answer.err
    assert "source-not-found" in predict(tmp_path).err  # a folder that holds it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 5000 + ".png", "File name too long."),
        ("x/" * 2500 + "y.png", "File name too long."),
        ("gone.png", "No such file or directory."),
        ("\udcff\x1b[2J\n.png", "No such file or directory."),
    ],
)
def test_a_name_stops_none_of_the_others(name, said, tmp_path):
    answer = predict(tmp_path / name)
    assert answer.code == 1
    assert f"error: source-not-found\n  {said}\n" in answer.err
    assert "\x1b" not in answer.err


def test_folders_that_link_to_themselves(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for place in ("a/loop", "a/b/loop", "a/b/up"):
        (tmp_path / place).symlink_to(tmp_path / "a")
    Image.open(SAMPLE).save(tmp_path / "a" / "b" / "one.png")
    for asked in ((tmp_path, "-r"), (f"{tmp_path}/**/*.png",), (f"{tmp_path}/a/**/**/b/*.png",)):
        answer = predict(*asked)
        assert answer.code == 0
        assert 2 <= len(answer.out.splitlines()) <= 4


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
