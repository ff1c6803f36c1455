import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from shutil import copy, copytree
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from vitconvert.api import load_checkpoint, load_model, predict
from vitconvert.cli import main
from vitconvert.demo.demonstration import DIGITS
from vitconvert.preprocessing.image_files import open_image

SAMPLES = DIGITS / "samples"
IMAGE = SAMPLES / "3.png"


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def on_stdin(monkeypatch):
    def put(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@torch.inference_mode()
@pytest.mark.parametrize(("flags", "fast"), [((), True), (("--no-fast",), False)])
def test_arithmetic_is_fast_unless_told_otherwise(flags, fast, run):
    answer = run("predict", DIGITS, IMAGE, "--topk", 10, "--json", *flags)
    assert answer.code == 0
    top = json.loads(answer.out)["top"]
    preprocessing = load_checkpoint(DIGITS).preprocessing
    logits = load_model(DIGITS, fast=fast)(preprocessing(open_image(IMAGE))[None])[0]
    assert {candidate["index"]: candidate["logit"] for candidate in top} == dict(
        enumerate(logits.tolist())
    )


@torch.inference_mode()
def test_half_precision_is_computed_on_request(run):
    answer = run("predict", DIGITS, IMAGE, "--topk", 10, "--json", "--dtype", "bfloat16")
    top = {candidate["index"]: candidate["logit"] for candidate in json.loads(answer.out)["top"]}
    pixels = load_checkpoint(DIGITS).preprocessing(open_image(IMAGE))[None]
    rough = load_model(DIGITS, fast=True, dtype=torch.bfloat16)(pixels.bfloat16())[0]
    assert rough.dtype == torch.bfloat16
    assert top == dict(enumerate(rough.float().tolist()))
    exact = load_model(DIGITS)(pixels)[0]
    error = (exact - torch.tensor([top[index] for index in range(10)])).abs().max()
    assert 0 < error < 0.02 * exact.abs().max()


def test_a_table_names_the_likeliest_classes(run):
    code, out, err = run("predict", DIGITS, IMAGE, SAMPLES / "5.png", "--top", 2)
    assert (code, err) == (0, "")
    assert out == (
        f"{IMAGE}\n   99.97%  3\n    0.01%  9\n{SAMPLES / '5.png'}\n   99.94%  5\n    0.03%  9\n"
    )


def test_quiet_names_the_likeliest_alone(run):
    assert run("predict", DIGITS, IMAGE, SAMPLES / "5.png", "-q").out == (
        f"{IMAGE}\t3\n{SAMPLES / '5.png'}\t5\n"
    )


def test_json_is_one_object_a_line_and_a_bad_image_stops_nothing(run, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_text("meow")
    code, out, err = run("predict", DIGITS, bad, IMAGE, tmp_path / "gone.png", "--json", "--top", 1)
    first, second, third = lines(out)
    assert code == 1
    assert (second["path"], second["top"][0]["label"], second["error"]) == (str(IMAGE), "3", None)
    assert (first["path"], first["top"]) == (str(bad), [])
    assert [first["error"]["code"], third["error"]["code"]] == ["corrupt-file", "source-not-found"]
    assert err == (
        "error: corrupt-file\n"
        "  This file cannot be read as an image.\n"
        f"  image   {bad}\n"
        "  Pillow  not an image in a format that Pillow knows\n"
        "error: source-not-found\n"
        "  No such file or directory.\n"
        f"  image  {tmp_path / 'gone.png'}\n"
    )


def test_folders_and_patterns(run, tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "empty").mkdir()
    copy(IMAGE, tmp_path / "three.png")
    copy(SAMPLES / "4.png", tmp_path / "inside" / "four.png")

    def told(*arguments) -> list[str]:
        return run("predict", DIGITS, *arguments, "-q").out.split()[1::2]

    assert told(tmp_path) == ["3"]
    assert told(tmp_path, "--recursive") == ["4", "3"]
    assert told(tmp_path / "**" / "*.png") == ["4", "3"]
    code, out, err = run("predict", DIGITS, tmp_path / "empty", IMAGE, "-q")
    assert (code, out) == (1, f"{IMAGE}\t3\n")
    assert err == (
        "error: source-not-found\n"
        "  There are no images in this folder.\n"
        f"  image  {tmp_path / 'empty'}\n"
        "  hint: --recursive looks into subfolders too.\n"
    )


@pytest.mark.parametrize(("flags", "end"), [((), b"\n"), ((), b"\r\n"), (("-0",), b"\0")])
def test_paths_from_stdin(run, on_stdin, tmp_path, flags, end):
    odd = tmp_path / "two\nlines.png" if end == b"\0" else tmp_path / "two words.png"
    copy(IMAGE, odd)
    on_stdin(end.join([bytes(SAMPLES / "7.png"), b"", bytes(odd)]) + end)
    code, out, _ = run("predict", DIGITS, SAMPLES / "5.png", "-", "--json", *flags)
    assert code == 0
    assert [(line["path"], line["top"][0]["label"]) for line in lines(out)] == [
        (str(SAMPLES / "5.png"), "5"),
        (str(SAMPLES / "7.png"), "7"),
        (str(odd), "3"),
    ]


def test_a_name_that_is_no_text_is_shown_all_the_same(run, tmp_path):
    copy(IMAGE, tmp_path / "\udcff.png")
    assert run("predict", DIGITS, tmp_path, "-q").out == f"{tmp_path}/\\udcff.png\t3\n"
    assert lines(run("predict", DIGITS, tmp_path, "--json").out)[0]["path"].endswith("\udcff.png")


def test_fast_preprocessing_is_asked_for(run, tmp_path):
    large = tmp_path / "large.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (640, 640, 3), np.uint8)
    Image.fromarray(noise // 2 + np.asarray(Image.open(IMAGE).resize((640, 640))) // 2).save(large)
    model = tmp_path / "model"
    copytree(DIGITS, model)
    smooth = replace(load_checkpoint(DIGITS).preprocessing, interpolation="bicubic")
    own = json.loads((model / "vitconvert.json").read_text())
    own["preprocessing"] = smooth.to_dict()
    (model / "vitconvert.json").write_text(json.dumps(own))
    told = []
    for flags, fast in (((), False), (("--fast-preprocessing",), True)):
        told += lines(run("predict", model, large, "--json", "--top", 1, *flags).out)
        (prediction,) = predict(model, large, topk=1, fast_preprocessing=fast)
        assert told[-1] == prediction.to_dict()
    assert told[0] != told[1]


@pytest.mark.parametrize("option", ["--top", "--batch-size"])
def test_error_numbers_below_one(option, run):
    assert run("predict", DIGITS, IMAGE, option, 0).code == 2


def test_error_nothing_says_how_images_are_prepared(run, tmp_path):
    copy(DIGITS / "model.safetensors", tmp_path)
    facts = ("--set", "num_heads=4", "--set", "activation=gelu", "--set", "norm_eps=1e-6")
    code, out, _ = run("predict", tmp_path / "model.safetensors", IMAGE, "--json", *facts)
    assert code == 1
    assert lines(out)[0]["error"]["code"] == "missing-fact"


@pytest.mark.slow
def test_no_other_project_is_imported():
    code = (
        "import sys; from vitconvert.cli import main\n"
        f"try: main(['predict', {str(DIGITS)!r}, {str(IMAGE)!r}, '-q'])\n"
        "except SystemExit: print(sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    prediction, modules = done.stdout.splitlines()
    assert prediction == f"{IMAGE}\t3"
    foreign = {"timm", "torchvision", "transformers", "huggingface_hub", "safetensors"}
    assert not foreign & set(eval(modules))


@pytest.mark.parametrize(
    ("verb", "others", "asked", "policy"),
    [
        ("predict", 2, None, "passive"),
        ("embed", 1, "active", "active"),
        ("predict", 0, None, None),
        ("verify", 2, None, None),
    ],
)
def test_threads_sleep_while_they_wait_where_others_compute(
    verb, others, asked, policy, monkeypatch
):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if asked:
        monkeypatch.setenv("OMP_WAIT_POLICY", asked)
    monkeypatch.setattr("vitconvert.machine.busy", lambda: others)
    monkeypatch.setattr("vitconvert.cli.run", lambda command, arguments: 0)
    monkeypatch.setattr("vitconvert.programs.fast_imports.end", sys.exit)
    monkeypatch.setattr("vitconvert.programs.fast_imports.collect_seldom", Mock())
    monkeypatch.setattr(sys, "argv", ["vitconvert", verb])
    with pytest.raises(SystemExit):
        main()
    assert os.environ.get("OMP_WAIT_POLICY") == policy
