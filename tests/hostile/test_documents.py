"""Documents of others: whatever they say, a refusal that names the file, or an answer."""

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hostile.documents import changed, make_checkpoint
from tests.hostile.harness import Answer, call_limited, run_limited
from tests.packages import transformers
from tests.sampling import sampled
from vitconvert.api import load_checkpoint
from vitconvert.demo.demonstration import DIGITS
from vitconvert.documents import MOST_BYTES
from vitconvert.formats import open_container, write_safetensors

INDEX = "model.safetensors.index.json"
DOCUMENTS = ("config.json", "preprocessor_config.json", "vitconvert.json")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A sound one, to be spoiled."""
    place = tmp_path / "model"
    shutil.copytree(DIGITS, place)
    return place


@functools.cache
def _made(kind: str, factory: Callable[..., Path]) -> Path:
    return make_checkpoint(kind, factory("documents"))


def refused(answer: Answer, word: str, code: int = 1) -> None:
    """A refusal of this kind, within the limits of the harness, and no more than a message."""
    assert answer.err.startswith(f"error: {word}\n"), answer.err[-2000:]
    assert answer.code == code
    assert "Traceback" not in answer.err
    assert len(answer.err) < 20_000


def predict(checkpoint: Path) -> Answer:
    """Ask for what needs every document."""
    return run_limited("predict", checkpoint, DIGITS / "samples" / "3.png")


def spoil(checkpoint: Path, name: str) -> Path:
    """Where a document lies, with no other that says the same."""
    if name != "vitconvert.json":
        (checkpoint / "vitconvert.json").unlink(missing_ok=True)
    return checkpoint / name


SPOILED = {
    "deep lists": b"[" * 200_000 + b"]" * 200_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "as deep as Python can": b'{"a":' * 300 + b"1" + b"}" * 300,
    "a list": b"[1, 2]",
    "a number": b"12",
    "null": b"null",
    "nothing": b"",
    "a web page": b"<!doctype html><html></html>",
    "truncated": b'{"model_type": "vit", "hidden_s',
    "not UTF-8": b'{"model_type": "\xff\xfe"}',
    "UTF-16": '{"model_type": "vit"}'.encode("utf-16"),
    "half a character": b'{"model_type": "\\ud800"}',
    "many small lists": b"[" + b"[]," * (MOST_BYTES // 3 - 9) + b"[]]",
    "gigabytes of holes": b"{",
}
HOLES = (b"{", b"\0")  # the beginnings of files with nothing behind them


def put(path: Path, content: bytes) -> None:
    """Write a file; after some beginnings it goes on with gigabytes of holes."""
    with path.open("wb") as file:
        file.write(content)
        file.truncate(8 * 2**30 if content in HOLES else None)


@pytest.mark.parametrize("name", [*DOCUMENTS, INDEX])
@pytest.mark.parametrize("what", sampled(SPOILED, 5, "slow"))
def test_what_is_no_document_is_refused(what, name, checkpoint):
    put(spoil(checkpoint, name), SPOILED[what])
    answer = predict(checkpoint / name if name == INDEX else checkpoint)
    refused(answer, "corrupt-file")
    assert str(checkpoint / name) in answer.err


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_pipe_lets_nobody_wait(name, checkpoint):
    spoil(checkpoint, name).unlink(missing_ok=True)
    os.mkfifo(checkpoint / name)
    refused(predict(checkpoint), "source-not-found")


@pytest.mark.parametrize("name", ["config.json", "vitconvert.json"])
def test_numbers_without_end_are_numbers(name, checkpoint):
    file = checkpoint / name
    text = file.read_text().rstrip().removesuffix("}")
    file.write_text(f'{text}, "of somebody else": [{"9" * 5000}, -{"9" * 5000}, 1e9999]}}')
    assert predict(checkpoint).code == 0


@pytest.fixture
def of_transformers(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    assert transformers.ViTForImageClassification  # imported once, and not by each fork
    made = _made("hf", tmp_path_factory.mktemp)
    return Path(shutil.copytree(made, tmp_path / "model"))


def restate(place: Path, **fields: Any) -> None:
    config = json.loads((place / "config.json").read_text()) | fields
    (place / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_norm_eps", float("nan")),
        ("layer_norm_eps", float("inf")),
        ("layer_norm_eps", -1.0),
        ("layer_norm_eps", 10**400),
        ("num_attention_heads", 10**400),
        ("num_attention_heads", 0),
        ("num_attention_heads", -3),
        ("num_attention_heads", float("nan")),
        ("image_size", 10**18),
        ("image_size", [10**18, 10**18]),
        ("patch_size", 0),
        ("hidden_act", "\x1b[2J"),
        ("hidden_act", ["gelu"]),
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
@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_dropout_prob": 1.5},
        {"hidden_dropout_prob": float("nan")},  # which the class notices when it computes
        {"hidden_dropout_prob": "none"},
        {"initializer_range": -1},
        {"pooler_output_size": 10**12},
        {"encoder_stride": 10**18},
        {"problem_type": {"a": 1}},
        {"torch_dtype": "no such"},
        {"dtype": 10**30},
    ],
    ids=lambda value: str(value)[:30],
)
def test_facts_that_only_transformers_reads(fields, of_transformers):
    restate(of_transformers, **fields)
    answer = run_limited("verify", of_transformers)
    assert not answer.err, answer.err
    assert answer.code in (0, 1)
    assert answer.out.startswith("not verified: " if answer.code else "equal to "), answer.out
    assert answer.peak_mib < 600


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        (("config",), None, "corrupt-file"),
        (("config",), [], "corrupt-file"),
        (("target",), 1, "corrupt-file"),
        (("target",), None, "corrupt-file"),
        (("config", "stem_depths"), [10**9, 10**12], "conflicting-fact"),
        (("config", "stem_depths"), [10**9], "conflicting-fact"),
        (("config", "stem_depths"), [1] * 10**6, "conflicting-fact"),
        (("config", "depth"), 10**18, "conflicting-fact"),
        (("config", "norm_eps"), float("nan"), "conflicting-fact"),
        (("config", "norm_eps"), float("inf"), "conflicting-fact"),
        (("config", "norm_eps"), -1e-6, "conflicting-fact"),
        (("config", "norm_eps"), 1e9, "conflicting-fact"),
        (("config", "attention_scale"), float("nan"), "conflicting-fact"),
        (("config", "attention_scale"), float("inf"), "conflicting-fact"),
        (("config", "attention_scale"), -0.125, "conflicting-fact"),
        (("config", "attention_scale"), 1e30, "conflicting-fact"),
        (("config", "rope_temperature"), float("inf"), "conflicting-fact"),
        (("config", "drop_rate"), 1.5, "conflicting-fact"),
        (("config", "proj_drop_rate"), -0.5, "conflicting-fact"),
        (("config", "attention_drop_rate"), float("nan"), "conflicting-fact"),
        (("preprocessing",), [1], "conflicting-fact"),
        (("preprocessing", "image_size"), 10**18, "conflicting-fact"),
        (("preprocessing", "std"), [1e-320] * 3, "conflicting-fact"),
        (("preprocessing", "patch_size"), "16", "conflicting-fact"),
        (("preprocessing", "origin"), ["\x1b[2J"], "conflicting-fact"),
        (("labels",), "digits", "conflicting-fact"),
    ],
)
def test_what_vitconvert_cannot_have_written(place, value, word, checkpoint):
    (checkpoint / "config.json").unlink()  # which has names of classes, too
    file = checkpoint / "vitconvert.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), place, value)))
    refused(predict(checkpoint), word)


@pytest.mark.slow
@pytest.mark.parametrize(
    "section",
    [
        {"input_size": [3, 10**18, 10**18]},
        {"input_size": [10**400, 1, 1]},
        {"crop_pct": 5e-324},
        {"crop_pct": float("nan")},
        {"mean": float("inf")},
        {"std": [0.5, 0.6]},
        {"std": "half"},
        {"crop_mode": ["center"]},
        {"interpolation": {"a": 1}},
    ],
    ids=str,
)
def test_a_pretrained_cfg_that_cannot_be(section, checkpoint):
    (checkpoint / "vitconvert.json").unlink()
    file = checkpoint / "config.json"
    config = json.loads(file.read_text())
    config["pretrained_cfg"] |= section
    file.write_text(json.dumps(config))
    refused(predict(checkpoint), "conflicting-fact")


# Tables

_TABLE = """
[dialect]
title = "mine"
extends = "timm"
"""
HOSTILE_TABLES = {
    "words that multiply": (
        "[words]\n"
        + "".join(f"word{chr(97 + i)} = {[f'x{j}' for j in range(10)]}\n" for i in range(12))
        + '[rows]\ncls_token = "'
        + "".join(f"{{word{chr(97 + i)}}}" for i in range(12))
        + '"\n'
    ).replace("'", '"'),
    "words that double": (
        '[words]\nword0 = "x"\n'
        + "".join(f'word{i} = "{{word{i - 1}}}{{word{i - 1}}}"\n' for i in range(1, 60))
        + '[rows]\ncls_token = "{word59}"\n'
    ),
    "a chain of words": (
        '[words]\nword0 = "x"\n'
        + "".join(f'word{i} = "{{word{i - 1}}}"\n' for i in range(1, 5000))
        + '[rows]\ncls_token = "{word4999}"\n'
    ),
    "words in a circle": '[words]\naa = "{bb}"\nbb = "{aa}"\n[rows]\ncls_token = "{aa}"\n',
    "long words that repeat": (
        f'[words]\nlong = "{"x" * 100_000}"\n[rows]\ncls_token = "{"{long}" * 150}"\n'
    ),
    "nested braces": f'[rows]\ncls_token = "{"{" * 9000}{"}" * 9000}"\n',
    "nested brackets": f'[rows]\ncls_token = "{"cat(" * 9000}{")" * 9000}"\n',
    "a deep condition": f'[must]\n"{"(" * 9000}stem{")" * 9000}" = "why"\n',
    "deep lists": f"[rows]\ncls_token = {'[' * 5000}{']' * 5000}\n",
    "deep inline tables": f"[config]\nx = {'{a=' * 3000}1{'}' * 3000}\n",
    "a deep dotted key": f"[config]\n{'a.' * 50_000}a = 1\n",
    "a deep header": f"[{'a.' * 50_000}a]\n",
    "many deep keys": "".join(f"{'a.' * 30}b{i} = 1\n" for i in range(10_000)),
    "a number of 5000 digits": f"[config]\nnorm_eps = {'9' * 5000}\n",
    "a number of 400 digits": f"[config]\nnorm_eps = {'9' * 400}\n",
    "a giant index": f'[rows]\n"blocks.{{i}}.ls1.gamma" = "x.{{{"9" * 5000}*i}}"\n',
    "another kind": "[rows]\ncls_token = 12\n",
    "no words": "words = 12\n",
    "not UTF-8": "[config]\nx = '\udcff'\n",
    "half a character": '[config]\nx = "\\ud800"\n',
}


@pytest.mark.parametrize(
    "what", sampled([*HOSTILE_TABLES, "gigabytes of holes", "a pipe"], 5, "slow")
)
def test_hostile_tables_are_refused(what, tmp_path):
    file = tmp_path / "mine.toml"
    text = HOSTILE_TABLES.get(what, "\0")
    if what == "a pipe":
        os.mkfifo(file)
    else:
        whole = what in ("no words", "many deep keys", "gigabytes of holes")
        put(file, (text if whole else _TABLE + text).encode("utf-8", "surrogateescape"))
    refused(run_limited("verify", DIGITS, "--table", file), "table-error")


def test_a_table_with_what_is_no_number(tmp_path):
    shutil.copy(DIGITS / "model.safetensors", tmp_path)
    (tmp_path / "mine.toml").write_text(f"{_TABLE}[config]\nnorm_eps = nan\n")
    asked = ("verify", tmp_path, "--table", tmp_path / "mine.toml", "--set", "num_heads=3")
    refused(run_limited(*asked), "conflicting-fact")


def test_a_long_name_is_no_file():
    for asked in (("inspect",), ("file", "-o", "out")):
        refused(run_limited(*asked, "x" * 5000), "source-not-found")
        refused(run_limited(*asked, f"{'x/' * 2000}y.pth"), "source-not-found")
    refused(run_limited("inspect", "local-dir:" + "x" * 5000), "source-not-found")
    refused(call_limited(load_checkpoint, "x" * 5000), "source-not-found")
