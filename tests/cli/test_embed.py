import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.sampling import sampled
from vitconvert.api import load_checkpoint, load_model
from vitconvert.demo.demonstration import DIGITS
from vitconvert.preprocessing.image_files import open_image

SAMPLES = DIGITS / "samples"
IMAGES = [SAMPLES / f"{digit}.png" for digit in range(10)]


@torch.inference_mode()
def features(*, tokens: bool = False) -> np.ndarray:
    preprocessing = load_checkpoint(DIGITS).preprocessing
    model = load_model(DIGITS)
    batch = torch.stack([preprocessing(open_image(image)) for image in IMAGES])
    found = model.forward_features(batch)
    return (found if tokens else model.forward_head(found, pre_logits=True)).numpy()


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.png"
    path.write_text("meow")
    return path


@pytest.mark.parametrize("tokens", [False, True])
def test_npz(run, tmp_path, tokens):
    flags = ("--tokens", "--no-fast") if tokens else ()
    code, out, err = run("embed", DIGITS, SAMPLES, "-o", tmp_path / "x.npz", *flags)
    shape = "(17, 48) float32: all tokens" if tokens else "(48,) float32: class token"
    told = f"10 images in {tmp_path / 'x.npz'}\nfeatures {shape} after the final norm\n"
    assert (code, out, err) == (0, "", told)
    with np.load(tmp_path / "x.npz") as written:
        assert list(written["paths"]) == [str(image) for image in IMAGES]
        wanted = features(tokens=tokens)
        assert written["features"].shape == wanted.shape
        assert np.abs(written["features"] - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_safetensors_without_the_images_that_failed(run, tmp_path, bad):
    output = tmp_path / "x.safetensors"
    code, _, err = run("embed", DIGITS, bad, SAMPLES, "-o", output)
    assert code == 1
    assert err.startswith("error: corrupt-file\n")
    with safe_open(output, "numpy") as written:
        assert json.loads(written.metadata()["paths"]) == [str(image) for image in IMAGES]
        assert np.abs(written.get_tensor("features") - features()).max() < 1e-4


@pytest.mark.parametrize("on_stdout", [True, False])
def test_lines_of_json(run, tmp_path, bad, on_stdout):
    output = tmp_path / "x.jsonl"
    where = () if on_stdout else ("-o", output, "-q")
    code, out, _ = run("embed", DIGITS, SAMPLES, bad, *where)
    lines = [json.loads(line) for line in (out if on_stdout else output.read_text()).splitlines()]
    assert code == 1
    assert [line["path"] for line in lines] == [str(path) for path in [*IMAGES, bad]]
    found = np.array([line["features"] for line in lines[:-1]], np.float32)
    assert np.abs(found - features()).max() < 1e-4
    assert lines[-1]["features"] is None
    assert lines[-1]["error"]["code"] == "corrupt-file"


def test_layers_into_a_file_and_into_shards(run, tmp_path):
    pytest.importorskip("pyarrow")
    from tests.embedding.layouts import read_rows

    how = ("--layer", "-2", "--pool", "patches", "--no-fast")
    told = "features (16, 48) {}: patches after block 3 of 4, without the final norm\n"
    answer = run("embed", DIGITS, SAMPLES, "-o", tmp_path / "x.npz", *how)
    assert answer.err.endswith(told.format("float32"))
    answer = run("embed", DIGITS, SAMPLES, "-o", tmp_path / "shards", *how, "--store", "float16")
    assert answer.err.endswith(told.format("float16"))
    images = torch.stack(list(map(load_checkpoint(DIGITS).preprocessing, IMAGES)))
    with torch.inference_mode():
        wanted = load_model(DIGITS).hidden_states(images)[-2][:, 1:].numpy()
    with np.load(tmp_path / "x.npz") as written:
        np.testing.assert_allclose(written["features"], wanted, atol=1e-5)
    rows = [np.reshape(row["features"], (16, 48)) for row in read_rows(tmp_path / "shards")]
    np.testing.assert_allclose(rows, wanted, atol=1e-2)


def test_another_layer_does_not_go_on(run, tmp_path):
    pytest.importorskip("pyarrow")
    output = ("-o", tmp_path / "shards")
    assert run("embed", DIGITS, SAMPLES, *output, "--layer", 3, "--pool", "mean").code == 0
    assert run("embed", DIGITS, SAMPLES, *output, "--layer", -2, "--pool", "mean").code == 0
    code, _, err = run("embed", DIGITS, SAMPLES, *output, "--layer", 2, "--pool", "mean")
    assert code == 1 and "  computed layer  3 there, 2 now\n" in err
    code, _, err = run("embed", DIGITS, SAMPLES, *output)
    assert code == 1 and "  computed pool   mean there, None now\n" in err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--layer", 5), "  layers  1 to 4, or -4 to -1\n"),
        (("--layer", 0), "  layers  1 to 4, or -4 to -1\n"),
        (("--layer", 1, "--runtime", "auto"), "layer: only torch computes other features"),
        (("--tokens", "--pool", "cls"), "  --pool: all tokens are asked for.\n"),
        (("--projected", "--layer", 1), "layer: projected are of the model's own features.\n"),
    ],
)
def test_error_such_features_are_none(flags, told, run, tmp_path):
    code, _, err = run("embed", DIGITS, SAMPLES, "-o", tmp_path / "x.npz", *flags)
    assert code == 2 and told in err


def test_a_terminal_is_told_at_once_that_the_model_is_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run("embed", DIGITS, SAMPLES, "-o", tmp_path / "x.npz").err.startswith("reading the mod")
    assert run("embed", DIGITS, SAMPLES, "-o", tmp_path / "y.npz", "-q").err == ""


def test_error_a_classifier_projects_nothing(run):
    code, out, err = run("embed", DIGITS, IMAGES[0], "--projected")
    assert (code, out) == (1, "")
    assert err == (
        "error: conflicting-fact\n"
        "  The model's head has a bias, so it is a classifier and not a projection.\n"
        "  classes  10\n"
        "  hint: leave out --projected.\n"
    )


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "jsonl"])
def test_no_features_make_no_file_but_lines_of_errors(run, tmp_path, bad, suffix):
    output = tmp_path / f"x.{suffix}"
    code, out, err = run("embed", DIGITS, bad, "-o", output)
    assert (code, out) == (1, "")
    assert err.startswith("error: corrupt-file\n")
    if suffix == "jsonl":
        assert err.endswith(f"\n0 images in {output}\n")
        assert json.loads(output.read_text())["error"]["code"] == "corrupt-file"
    else:
        assert err.endswith(f"\nThere are no features, so {output} is not written.\n")
        assert not output.exists()


@pytest.mark.parametrize("suffix", [".jsonl", ".npz", ".safetensors"])
def test_error_the_output_is_there(run, tmp_path, suffix):
    output = tmp_path / f"x{suffix}"
    assert run("embed", DIGITS, IMAGES[0], "-o", output).code == 0
    earlier = output.read_bytes()
    code, _, err = run("embed", DIGITS, IMAGES[0], "-o", output)
    assert code == 1
    assert err == (
        "error: output-exists\n"
        "  The output exists already.\n"
        f"  output  {output}\n"
        "  hint: --force replaces it, if it holds features.\n"
    )
    assert output.read_bytes() == earlier
    assert run("embed", DIGITS, IMAGES[1], "-o", output, "--force").code == 0
    assert str(IMAGES[1]).encode() in output.read_bytes().replace(b"\0", b"")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b'{"path": "a.jpg", "label": 3}\n'),
        ("x.jsonl", b"[3]\n"),
        ("x.npz", b"mine"),
        ("x.safetensors", (DIGITS / "model.safetensors").read_bytes()),
    ],
)
def test_force_replaces_no_other_files(run, tmp_path, name, content):
    output = tmp_path / name
    output.write_bytes(content)
    code, _, err = run("embed", DIGITS, IMAGES[0], "-o", output, "--force")
    assert code == 1
    assert "The file does not hold features of images" in err
    assert output.read_bytes() == content


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            "x.csv",
            "  Features cannot be written as .csv.\n"
            "  output  {output}\n"
            "  known   .npz, .safetensors, .jsonl\n",
        ),
        (
            "gone/x.npz",
            "  The directory of the output does not exist.\n  directory  {output.parent}\n"
            "  hint: `mkdir -p {output.parent}` makes it.\n",
        ),
    ],
)
def test_error_places(place, message, run, tmp_path):
    code, _, err = run("embed", DIGITS, IMAGES[0], "-o", tmp_path / place)
    assert (code, err) == (2, "error: usage\n" + message.format(output=tmp_path / place))


PIXELS = ("--mean", "0.4,0.5,0.6", "--std", "0.3", "-q")


@pytest.mark.parametrize(
    ("kind", "flags", "shape"),
    sampled(
        [
            ("SiglipVisionModel", (), (9, 36)),
            ("BlipVisionModel", (), (10, 36)),
            ("SamVisionModel", ("--tokens",), (36, 9)),  # of the neck
            ("Qwen3VLVisionModel", (), (4, 20)),  # squares of four patches become one
            ("Qwen3VLVisionModel", ("--tokens",), (16, 36)),
        ],
        3,
        "slow",
    ),
)
def test_a_model_that_pools_nothing_gives_tokens_to_each_format(kind, flags, shape, run, tmp_path):
    pytest.importorskip("pyarrow")
    from tests.embedding.layouts import read_rows
    from tests.huggingface.every_class import made

    headless = {"vision_use_head": False} if kind == "SiglipVisionModel" else {}
    made(kind, **headless).save_pretrained(tmp_path / "model")
    for output in ("x.npz", "shards"):
        given = ("embed", tmp_path / "model", SAMPLES, "-o", tmp_path / output, "--no-fast")
        code, _, err = run(*given, *PIXELS, *flags)
        assert code == 0, err
    with np.load(tmp_path / "x.npz") as written:
        assert written["features"].shape == (10, *shape)
        rows = [np.reshape(row["features"], shape) for row in read_rows(tmp_path / "shards")]
        np.testing.assert_array_equal(written["features"], rows)
