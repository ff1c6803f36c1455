"""Documents of others: whatever they say, a refusal that names the file, or an answer."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.hostile.documents import changed, make_checkpoint
from tests.hostile.harness import Answer, run_limited
from tests.packages import transformers
from tests.sampling import sampled
from vitconvert.demo.demonstration import DIGITS
from vitconvert.formats import open_container, write_safetensors

INDEX = "model.safetensors.index.json"
DOCUMENTS = ("config.json", "preprocessor_config.json", "vitconvert.json")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A sound one, to be spoiled."""
    return Path(shutil.copytree(DIGITS, tmp_path / "model"))


def refused(answer: Answer, word: str, code: int = 1) -> None:
    """A refusal of this kind, within the limits of the harness, and no more than a message."""
    assert answer.err.startswith(f"error: {word}\n"), answer.err[-2000:]
    assert answer.code == code
    assert "Traceback" not in answer.err
    assert len(answer.err) < 20_000


def predict(checkpoint: Path) -> Answer:
    """Ask for what needs every document."""
    return run_limited("predict", checkpoint, DIGITS / "samples" / "3.png")


SPOILED = {
    "deep lists": b"[" * 200_000 + b"]" * 200_000,
    "a list": b"[1, 2]",
    "null": b"null",
    "nothing": b"",
    "a web page": b"<!doctype html><html></html>",
    "truncated": b'{"model_type": "vit", "hidden_s',
    "not UTF-8": b'{"model_type": "\xff\xfe"}',
    "half a character": b'{"model_type": "\\ud800"}',
}


@pytest.mark.parametrize("name", [*DOCUMENTS, INDEX])
@pytest.mark.parametrize("what", sampled(SPOILED, 4, "slow"))
def test_what_is_no_document_is_refused(what, name, checkpoint):
    if name != "vitconvert.json":
        (checkpoint / "vitconvert.json").unlink()  # which says the same
    (checkpoint / name).write_bytes(SPOILED[what])
    answer = predict(checkpoint / name if name == INDEX else checkpoint)
    refused(answer, "corrupt-file")
    assert str(checkpoint / name) in answer.err


def test_numbers_without_end_are_numbers(checkpoint):
    for name in ("config.json", "vitconvert.json"):
        file = checkpoint / name
        text = file.read_text().rstrip().removesuffix("}")
        file.write_text(f'{text}, "of somebody else": [{"9" * 5000}, -{"9" * 5000}, 1e9999]}}')
    assert predict(checkpoint).code == 0


@pytest.fixture
def of_transformers(tmp_path: Path) -> Path:
    assert transformers.ViTForImageClassification  # imported once, and not by each fork
    return make_checkpoint("hf", tmp_path)


def restate(place: Path, **fields: object) -> None:
    config = json.loads((place / "config.json").read_text()) | fields
    (place / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_norm_eps", float("nan")),
        ("layer_norm_eps", -1.0),
        ("num_attention_heads", 10**400),
        ("num_attention_heads", 0),
        ("image_size", 10**18),
        ("patch_size", 0),
        ("hidden_act", "\x1b[2J"),
        ("qkv_bias", [[]]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_facts_of_transformers_that_cannot_be(field, value, of_transformers):
    restate(of_transformers, **{field: value})
    answer = run_limited("verify", of_transformers)
    word, code = ("conflicting-fact", 1)
    if "which vitconvert has no word for" in answer.err:
        word, code = ("not-representable", 5)
    refused(answer, word, code)


@pytest.mark.slow
def test_a_part_that_a_config_makes_too_large(of_transformers):
    """A bare model has a pooler, of a size that only config.json says."""
    weights = of_transformers / "model.safetensors"
    with open_container(weights) as container:
        read = {name: container.read(name).clone() for name in container.manifest}
    tensors = {name.removeprefix("vit."): t for name, t in read.items() if "classifier" not in name}
    width = len(tensors["layernorm.weight"])
    tensors |= {
        "pooler.dense.weight": torch.randn(width, width),
        "pooler.dense.bias": torch.zeros(width),
    }
    write_safetensors(weights, tensors)
    restate(of_transformers, pooler_output_size=10**9, architectures=["ViTModel"])
    answer = run_limited("verify", of_transformers)
    assert not answer.err, answer.err
    assert answer.out.startswith("not verified: ")
    assert "far larger than its tensors" in answer.out


@pytest.mark.parametrize(
    ("place", "value", "word"),
    sampled(
        [
            (("config", "depth"), 10**18, "conflicting-fact"),
            (("config", "stem_depths"), [10**9, 10**12], "conflicting-fact"),
            (("config",), None, "corrupt-file"),
            (("target",), 1, "corrupt-file"),
            (("config", "norm_eps"), float("nan"), "conflicting-fact"),
            (("config", "attention_scale"), 1e30, "conflicting-fact"),
            (("config", "drop_rate"), 1.5, "conflicting-fact"),
            (("preprocessing",), [1], "conflicting-fact"),
            (("preprocessing", "image_size"), 10**18, "conflicting-fact"),
            (("preprocessing", "origin"), ["\x1b[2J"], "conflicting-fact"),
            (("labels",), "digits", "conflicting-fact"),
        ],
        4,
        "slow",
    ),
)
def test_what_vitconvert_cannot_have_written(place, value, word, checkpoint):
    (checkpoint / "config.json").unlink()  # which has names of classes, too
    file = checkpoint / "vitconvert.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), place, value)))
    refused(predict(checkpoint), word)


@pytest.mark.parametrize(
    "section",
    sampled(
        [
            {"input_size": [3, 10**18, 10**18]},
            {"crop_pct": float("nan")},
            {"std": [0.5, 0.6]},
            {"interpolation": {"a": 1}},
        ],
        1,
        "slow",
    ),
)
def test_a_pretrained_cfg_that_cannot_be(section, checkpoint):
    (checkpoint / "vitconvert.json").unlink()
    file = checkpoint / "config.json"
    config = json.loads(file.read_text())
    config["pretrained_cfg"] |= section
    file.write_text(json.dumps(config))
    refused(predict(checkpoint), "conflicting-fact")


def test_a_long_name_is_no_file():
    for name in ("x" * 5000, f"{'x/' * 2000}y.pth", "local-dir:" + "x" * 5000):
        refused(run_limited("inspect", name), "source-not-found")
