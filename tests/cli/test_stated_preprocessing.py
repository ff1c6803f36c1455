"""What is unknown of photographs stays unknown through a conversion, and may be stated."""

import contextlib
import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.packages import timm
from vitconvert.preprocessing import Preprocessing

STATED = ("--set", "num_heads=3", "--set", "norm_eps=1e-6", "--set", "rope=none")
CONFIGURATION = {"num_heads": 3, "norm_eps": 1e-6, "rope": "none"}


@pytest.fixture
def weights(tmp_path):
    """A file of weights with nothing beside it, and a photograph."""
    torch.manual_seed(0)
    sizes = {"img_size": 32, "depth": 2, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **sizes)
    torch.nn.init.normal_(model.head.weight)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    pixels = np.random.default_rng(0).integers(0, 256, (61, 75, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "weights.pth"


def _top(answer):
    assert answer.code == 0, answer.err
    return {c["index"]: c["logit"] for c in json.loads(answer.out)["top"]}


@pytest.mark.parametrize("to", ["timm", "hf", "torchvision", "openclip", "vit"])
def test_what_is_unknown_is_so_in_the_output(to, weights, tmp_path, run):
    out = tmp_path / "out"
    vitconvert.convert(weights, to=to, output=out, overrides=CONFIGURATION, verify=False)
    assert vitconvert.load_checkpoint(out).preprocessing is None
    code, _, err = run("predict", out, tmp_path / "photo.png")
    assert code == 1
    assert err.startswith("error: missing-fact\n  No file states this checkpoint's preprocessing")
    again = tmp_path / "again"
    vitconvert.convert(out, to="timm", output=again, verify=False)
    assert vitconvert.load_checkpoint(again).preprocessing is None


def test_what_somebody_adds_to_an_output_is_taken(weights, tmp_path):
    out = tmp_path / "out"
    vitconvert.convert(weights, to="timm", output=out, overrides=CONFIGURATION, verify=False)
    config = json.loads((out / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.5] * 3, "std": [0.25] * 3}
    (out / "config.json").write_text(json.dumps(config))
    assert vitconvert.load_checkpoint(out).preprocessing.std == (0.25,) * 3


@pytest.mark.parametrize(
    ("options", "cfg"),
    [
        (("--mean", "0.5", "--std", "0.25"), {"mean": [0.5] * 3, "std": [0.25] * 3}),
        (
            ("--mean", "0.1,0.2,0.3", "--std", "0.5", "--crop", "1"),
            {"mean": [0.1, 0.2, 0.3], "std": [0.5] * 3, "crop_pct": 1.0},
        ),
    ],
    ids=str,
)
def test_numbers_make_the_pixels_that_timm_makes_of_them(options, cfg, weights, tmp_path, run):
    found = run("predict", weights, tmp_path / "photo.png", "--json", *STATED, *options)
    assert found.err.startswith("note: preprocessing: stated by you; assumed: bicubic")
    data = {"input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 0.875} | cfg
    pixels = timm.data.create_transform(**data)(Image.open(tmp_path / "photo.png"))
    model = vitconvert.load_model(weights, overrides=CONFIGURATION)
    with torch.inference_mode():
        logits = model(pixels[None])[0].tolist()
    top = _top(found)
    assert [top[i] for i in range(5)] == pytest.approx(logits, abs=1e-4)


def test_numbers_replace_those_of_the_checkpoint_and_nothing_else(weights, tmp_path, run):
    cfg = {"input_size": [3, 32, 32], "crop_pct": 0.9, "interpolation": "bilinear"}
    cfg |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    (tmp_path / "cfg.json").write_text(json.dumps(cfg))
    (tmp_path / "other.json").write_text(json.dumps({"pretrained_cfg": cfg | {"std": [0.2] * 3}}))
    shared = ("predict", weights, tmp_path / "photo.png", "--json", *STATED)
    both = run(*shared, "--preprocessor", tmp_path / "cfg.json", "--std", "0.2")
    assert "preprocessing: cfg.json, stated by you; std: stated by you\n" in both.err
    file = run(*shared, "--preprocessor", tmp_path / "other.json")
    plain = run(*shared, "--preprocessor", tmp_path / "cfg.json", "-q")
    assert _top(both) == _top(file) != _top(plain)
    assert plain.err == ""
    cropped = run(*shared, "--preprocessor", tmp_path / "cfg.json", "--crop", "0.5")
    assert _top(cropped) != _top(plain)


def test_a_file_of_transformers_is_read_and_embed_takes_it(weights, tmp_path, run):
    steps = Preprocessing.from_timm(
        {"mean": [0.3] * 3, "std": [0.2] * 3, "input_size": [3, 32, 32]}
    )
    file = tmp_path / "p.json"
    file.write_text(json.dumps(steps.to_huggingface()))
    shared = ("embed", weights, tmp_path / "photo.png", *STATED)
    found = run(*shared, "--preprocessor", file)
    assert found.code == 0, found.err
    theirs = Preprocessing.from_huggingface(json.loads(file.read_text()))
    (wanted,) = vitconvert.embed(
        vitconvert.load_checkpoint(weights, overrides=CONFIGURATION),
        [tmp_path / "photo.png"],
        theirs,
    )
    assert json.loads(found.out)["features"] == wanted.features.tolist()


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--mean", "0.5"), 1, "missing  --std"),
        (("--mean", "0.5,0.4", "--std", "1"), 1, "--mean has 2 numbers, and images have 3"),
        (("--mean", "grey", "--std", "1"), 2, "'grey' is not a number"),
        (("--crop", "0"), 2, "crop = 0.0 must be a number above 0 and at most 1"),
        (("--mean", "0.5", "--std", "0"), 1, "contradicts itself"),
    ],
    ids=str,
)
def test_errors(options, code, told, weights, tmp_path, run):
    answer = run("predict", weights, tmp_path / "photo.png", *STATED, *options)
    assert answer.code == code
    assert told in answer.err


NAMES = ["ant", "bee, wild", "cat", "dog", "emu"]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(NAMES) + "\n",
        json.dumps(NAMES),
        json.dumps(dict(enumerate(NAMES))),
        json.dumps({"model_type": "vit", "id2label": dict(enumerate(NAMES))}),
        json.dumps({str(i): [f"n{i:08}", name] for i, name in enumerate(NAMES)}),  # Keras'
    ],
)
def test_labels_of_a_file(text, weights, tmp_path, run):
    (tmp_path / "labels").write_text(text)
    options = ("--mean", "0.5", "--std", "0.5", "--labels", tmp_path / "labels")
    found = run("predict", weights, tmp_path / "photo.png", "--json", *STATED, *options)
    assert found.code == 0, found.err
    assert all(c["label"] == NAMES[c["index"]] for c in json.loads(found.out)["top"])


@pytest.mark.parametrize("text", ["ant\nbee", "[1, ", '{"a": 1}', "", "\xff"])
def test_error_labels(text, weights, tmp_path, run):
    (tmp_path / "labels").write_text(text, encoding="latin-1")
    options = ("--mean", "0.5", "--std", "0.5", "--labels", tmp_path / "labels")
    found = run("predict", weights, tmp_path / "photo.png", *STATED, *options)
    assert found.code == 1
    assert found.err.startswith(("error: conflicting-fact", "error: corrupt-file"))


def test_a_preprocessing_that_is_stated_in_part_is_told_once(run, tmp_path):
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "best.pth.tar")
    architecture = ("--architecture", "vit_tiny_patch16_224")
    typed = ("convert", tmp_path / "best.pth.tar", *architecture, "--to", "timm", "--no-verify")
    with contextlib.chdir(tmp_path):
        found = run(*typed, "--mean", "0.1,0.2,0.3")
    assert (tmp_path / "best-timm").is_dir()
    assert found.out.count("timm's own for vit_tiny_patch16_224") == 1


STATING = {"labels": NAMES, "mean": 0.5, "std": (0.1, 0.2, 0.3), "crop": 0.9}


@pytest.mark.parametrize("to", ["timm", "hf", "torchvision", "openclip", "vit"])
def test_what_is_stated_of_a_conversion_is_in_its_output(to, weights, tmp_path):
    out = tmp_path / "out"
    stated = {"overrides": CONFIGURATION, **STATING}
    conversion = vitconvert.convert(weights, to=to, output=out, verify=False, **stated)
    assert "labels: labels, stated by you" in conversion.ledger.notes
    assert "preprocessing: stated by you; assumed: bicubic, as in timm" in conversion.ledger.notes
    plan = vitconvert.plan_conversion(weights, to=to, **stated)
    assert plan.ledger.notes == conversion.ledger.notes
    written = vitconvert.load_checkpoint(out)
    assert list(written.labels) == NAMES
    assert written.labels.origin == "labels, stated by you, recorded in vitconvert.json"
    known = written.preprocessing
    assert (known.mean, known.std, known.resize_size) == ((0.5,) * 3, (0.1, 0.2, 0.3), (35, 35))
    # The project's own files say it too.
    (out / "vitconvert.json").unlink()
    if to in ("timm", "hf"):
        theirs = vitconvert.load_checkpoint(out)
        assert list(theirs.labels) == NAMES
        assert theirs.preprocessing.std == (0.1, 0.2, 0.3)


@pytest.mark.slow
def test_the_command_line_converts_and_exports_with_what_is_stated(weights, tmp_path, run):
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    options = ("--mean", "0.5", "--std", "0.1,0.2,0.3", "--crop", "0.9", *STATED, "--no-verify")
    options += ("--labels", tmp_path / "labels.txt")
    converted = run("convert", weights, "-o", tmp_path / "out", "-v", *options)
    assert converted.code == 0, converted.err
    assert "note           labels: labels.txt, stated by you\n" in converted.out
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert " --labels labels.txt --mean 0.5 --std 0.1,0.2,0.3 --crop 0.9" in record["command"]
    assert (record["labels"], record["labels_origin"]) == (NAMES, "labels.txt, stated by you")
    exported = run("export", weights, "--to", "pt2", "-o", tmp_path / "m.pt2", "--json", *options)
    assert exported.code == 0, exported.err
    stated = json.loads(exported.out)["record"]
    assert stated["labels"] == NAMES
    assert stated["preprocessing"] == record["preprocessing"]


def test_a_stated_file_is_read_in_the_place_of_a_damaged_one(weights, tmp_path):
    good = Preprocessing.from_timm({"mean": [0.3] * 3, "std": [0.2] * 3, "input_size": [3, 32, 32]})
    (tmp_path / "good.json").write_text(json.dumps(good.to_huggingface()))
    (tmp_path / "preprocessor_config.json").write_text('{"crop_size": "?"}')
    found = vitconvert.load_checkpoint(weights, overrides=CONFIGURATION)
    assert found.preprocessing is None
    assert any("preprocessor_config.json is not read" in note for note in found.ledger.notes)
    stated = {"preprocessor": tmp_path / "good.json", "overrides": CONFIGURATION}
    assert vitconvert.load_checkpoint(weights, **stated).preprocessing.std == (0.2,) * 3


def test_workers_elsewhere_need_no_stated_file(weights, tmp_path):
    from vitconvert.checkpoint import ReadOptions
    from vitconvert.embedding.embedder import Task

    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    stated = {**STATING, "overrides": CONFIGURATION, "labels": tmp_path / "labels.txt"}
    task = Task(model=weights, computed="classes", reading=ReadOptions(**stated)).settled()
    assert (list(task.labels), task.preprocessing.std) == (NAMES, (0.1, 0.2, 0.3))
    assert not task.reading.of_images


@pytest.mark.parametrize("verb", ["inspect", "diff", "verify"])
def test_verbs_that_show_neither_do_not_list_them(verb, run):
    assert "--mean" not in run(verb, "--help").out
    assert "Images and classes:\n  --labels FILE" in run("convert", "--help").out


@pytest.mark.parametrize("name", ["nearest", "lanczos"])
def test_a_stated_filter_is_timms(name, weights, tmp_path, run):
    options = ("--mean", "0.5", "--std", "0.25", "--crop", "0.9", "--interpolation", name)
    found = run("predict", weights, tmp_path / "photo.png", "--json", *STATED, *options)
    assert found.err.startswith("preprocessing: stated by you\n")
    data = {"input_size": (3, 32, 32), "interpolation": name, "crop_pct": 0.9}
    pixels = timm.data.create_transform(**data, mean=(0.5,) * 3, std=(0.25,) * 3)
    pixels = pixels(Image.open(tmp_path / "photo.png"))
    model = vitconvert.load_model(weights, overrides=CONFIGURATION)
    with torch.inference_mode():
        logits = model(pixels[None])[0].tolist()
    top = _top(found)
    assert [top[i] for i in range(5)] == pytest.approx(logits, abs=1e-4)


def test_error_a_verb_that_states_no_pixels_names_one_that_does(weights, run):
    for option in ("--mean", "--labels", "--interpolation"):
        refused = run("verify", weights, *STATED, option, "0.5")
        assert refused.err == (
            "error: usage\n"
            f"  No such option '{option}'.\n"
            f"  hint: `vitconvert verify` has no {option}; `vitconvert convert` has: "
            "convert first, and name its output here.\n"
        )
