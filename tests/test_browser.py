"""What docs/browser.py answers, which the page "Inspect in the browser" runs in Pyodide."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitconvert
from tests.matrix_sources import SOURCES
from tests.small_models import small_timm
from tests.spelling import google_arrays
from vitconvert.conversion.target import describe, ecosystems_that_hold

ROOT = Path(__file__).parents[1]
# Arguments: the checkout, a function, and what it is asked.
RUN = """
import sys
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/docs"]
import browser
print(getattr(browser, sys.argv[2])(*sys.argv[3:]))
"""


def answer(question: str, *words: str) -> dict:
    """Of a Python that has its standard library and nothing else."""
    command = [sys.executable, "-I", "-S", "-c", RUN, str(ROOT), question, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def told(folder: Path, reference: str = "", described: str = "", **answers: str) -> tuple:
    """What is said of the files of a folder at first, and of targets."""
    words = (str(folder), reference, described, json.dumps(answers))
    return answer("header", *words), answer("targets", *words)


def test_python_without_packages_lacks_numpy():
    command = [sys.executable, "-I", "-S", "-c", "import numpy"]
    assert b"No module named 'numpy'" in subprocess.run(command, capture_output=True).stderr


@pytest.mark.parametrize(
    ("source", "stated"),
    [
        ("hf", {}),  # safetensors and config.json
        ("jax", {"num_heads": "3"}),  # npz
        ("openai_clip", {}),  # torch
    ],
)
def test_it_needs_the_standard_library_alone_and_says_what_inspect_says(source, stated, tmp_path):
    written = SOURCES[source].write(tmp_path / "dropped")
    header, targets = told(tmp_path / "dropped", **stated)
    checkpoint = vitconvert.load_checkpoint(written, overrides=stated)
    found = vitconvert.inspect(written, overrides=stated)
    assert header["problem"] is None
    assert header["dialect"] == found.dialect
    assert header["config"].keys() == found.told.keys()
    assert header["config"]["depth"] == [str(found.facts["depth"].value), "tensors"]
    assert header["count"] == len(found.tensors)
    assert targets["targets"] == list(ecosystems_that_hold(describe(checkpoint)))
    settings = [f" --set {name}={value}" for name, value in stated.items()]
    file = header["source"]
    assert targets["command"].startswith(f"vitconvert convert {file} --to ")
    assert targets["command"].endswith("".join(settings))


def test_what_torch_wrote_before_1_6_is_read_too(tmp_path):
    model = small_timm(img_size=32, embed_dim=48, mlp_ratio=4).state_dict()
    torch.save(model, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    header, targets = told(tmp_path)
    assert header["dialect"] == "timm"
    assert list(header["missing"]) == ["num_heads"]
    assert targets["problem"]["code"] == "missing-fact"
    header, targets = told(tmp_path, num_heads="3")
    assert "hf" in targets["targets"]
    assert targets["command"] == "vitconvert convert old.pth --to hf --set num_heads=3"


def test_shards_are_one_checkpoint(tmp_path):
    state = small_timm(img_size=32, embed_dim=48, mlp_ratio=4).state_dict()
    names = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(state)}
    for file in set(names.values()):
        save_file({name: state[name] for name in state if names[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    header, targets = told(tmp_path, num_heads="3")
    assert header["count"] == len(state)
    assert targets["command"].startswith("vitconvert convert model.safetensors.index.json --to hf")


def test_an_answer_that_is_none_is_refused_in_the_words_of_the_command_line(tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=2, heads=3, width=48, size=48, classes=12))
    header, _ = told(tmp_path, num_heads="many")
    text = "error: usage\n  num_heads must be a whole number, not 'many'."
    assert header["problem"] == {"code": "usage", "text": text, "note": ""}


def test_a_format_that_needs_a_package_is_named_as_such(tmp_path):
    (tmp_path / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    problem = told(tmp_path)[0]["problem"]
    assert problem["text"].startswith("error: missing-package\n  h5py, which reads and writes")
    assert "on your own machine" in problem["note"]


def test_a_hostile_header_is_refused_as_anywhere(tmp_path):
    evil = "<img src=x onerror=alert(1)>\u202e\x1b[2J"
    entry = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}
    text = json.dumps({evil: entry}).encode()
    (tmp_path / "evil.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    problem = told(tmp_path)[0]["problem"]
    with pytest.raises(vitconvert.VitConvertError) as raised:
        vitconvert.inspect(tmp_path / "evil.safetensors")
    here = str(raised.value).replace(f"{tmp_path}/", "")
    assert problem == {"code": "corrupt-file", "text": here, "note": ""}


def test_a_repository_is_the_one_that_its_reference_names():
    page = "https://huggingface.co/org/vit/tree/v2"
    for reference in ("org/vit@v2", "hf:org/vit@v2", page):
        found = answer("listing", reference)
        assert found == {"address": "api/models/org/vit/revision/v2?blobs=true"}
    refused = answer("listing", "timm:vit_tiny_patch16_224")["problem"]["text"]
    assert "This is no repository of the Hub." in refused
