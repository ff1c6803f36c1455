"""Nothing that is written, and so may be published, tells where files lie on this machine."""

import json

import pytest

from tests.packages import timm

PLACE = "Jane-Doe-secret"  # a folder that holds all files of a conversion
SMALL = {"depth": 2, "embed_dim": 30, "num_heads": 3, "img_size": 48, "mlp_ratio": 1.5}
TABLE = '[dialect]\nextends = "timm"\n[config]\nnorm_eps = 1e-6\n'
PROCESSOR = {"size": {"height": 48, "width": 48}, "image_processor_type": "ViTImageProcessor"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder, with a model of timm, the settings of its photographs, and a table."""
    place = tmp_path / PLACE
    (place / "vit").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **SMALL)
    model.pretrained_cfg["file"] = str(place / "vit.bin")
    timm.models.save_for_hf(model, str(place / "vit"), model_args=SMALL, safe_serialization=True)
    config = json.loads((place / "vit" / "config.json").read_text())
    config["pretrained_cfg"]["file"] = str(place / "vit" / "model.safetensors")
    (place / "vit" / "config.json").write_text(json.dumps(config))
    (place / "vit" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (place / "mine.toml").write_text(TABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    return place


def _told(place):
    """What the record says, if no file of the output tells the place."""
    for file in (place / "out").iterdir():
        assert PLACE.encode() not in file.read_bytes(), file.name
    return json.loads((place / "out" / "vitconvert.json").read_text())


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("work", f"../{PLACE}/vit"),
        ("work", f"./../work/../{PLACE}/vit/model.safetensors"),
        (".", f"{PLACE}/vit"),
        (".", f"./{PLACE}/vit/model.safetensors"),
        (PLACE, "vit"),
        (PLACE, "{place}/vit"),
        (PLACE, "~/" + PLACE + "/vit"),
        ("work", "local-dir:{place}/vit/"),
        (".", f"local-dir:{PLACE}/vit"),
        ("work", "local-dir:~/" + PLACE + "/vit"),
    ],
)
def test_sources_are_told_by_their_last_name(folder, source, place, run, monkeypatch):
    monkeypatch.chdir(place.parent / folder)
    source = source.format(place=place)
    answer = run("file", source, "-o", place / "out", "--no-verify")
    assert answer.code == 0, answer.err
    record = _told(place)
    name = "model.safetensors" if source.endswith("model.safetensors") else "vit"
    kind = "local-dir:" if source.startswith("local-dir:") else ""
    assert record["source"]["reference"] == kind + name
    assert record["command"] == f"vitconvert file {kind}{name} -o out --no-verify"


@pytest.mark.parametrize("to", ["timm", "hf", "vit", "jeonsworld", "torchvision"])
def test_no_argument_tells_a_place(to, place, run, monkeypatch):
    """With the proof, and all that programs say when they open the output."""
    monkeypatch.chdir(place.parent)
    options = [f"--table={PLACE}/mine.toml", "--checkpoint", f"{PLACE}/vit", f"-o{PLACE}/out"]
    answer = run(
        "timm", "vit_tiny_patch16_224", *options, "--cache-dir", place / "cache", "--to", to
    )
    assert answer.code == 0, answer.err
    record = _told(place)
    assert record["command"] == (
        f"vitconvert timm vit_tiny_patch16_224 --to {to} -o out --checkpoint vit "
        "--table mine.toml --cache-dir cache"
    )
    assert record["source"]["reference"] == record["parity"]["source"] == "vit"
    assert record["preprocessing"]["origin"] == "preprocessor_config.json"


def test_a_path_that_stands_for_a_name(place, run, monkeypatch):
    monkeypatch.chdir(place.parent)
    theirs = ["--to", "hf", "-o", place / "theirs", "--no-verify"]
    assert run("file", place / "vit", *theirs).code == 0
    options = ["--checkpoint", place / "theirs", "-o", place / "out", "--no-verify"]
    answer = run("hf", f"{PLACE}/vit", *options)
    assert answer.code == 0, answer.err
    record = _told(place)
    assert record["source"]["name"] == "vit"
    assert "# `vit`\n" in (place / "out" / "README.md").read_text()
