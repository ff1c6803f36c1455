"""Names that others chose, of files, tensors, classes and repositories: shown, and never obeyed."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.hostile.harness import Answer, call_limited, run_limited
from vitconvert.api import convert, embed, load_checkpoint
from vitconvert.demo.demonstration import DIGITS
from vitconvert.formats import open_container, write_safetensors
from vitconvert.sources import locate

SAMPLE = DIGITS / "samples" / "3.png"
# It colours, clears, titles a window, begins a line, turns the direction, and breaks out of places.
EVIL = "\x1b[31m\x1b[2J\x1b]0;x\x07\r\n\u202egnp\x9b1m`|</td><script>alert(1)</script>](http://x)"
STEERING = "\x1b\x07\x9b\r\u202e"


def steers_nothing(text: str) -> None:
    assert not any(sign in text for sign in STEERING), ascii(text)
    assert not any(line.startswith(("\u202e", "gnp")) for line in text.splitlines())


def quiet(answer: Answer, *codes: int) -> None:
    assert answer.code in codes, answer
    assert "Traceback" not in answer.err
    steers_nothing(answer.out + answer.err)


def renamed(folder: Path, old: str, new: str) -> None:
    """Another name of a tensor."""
    with open_container(DIGITS / "model.safetensors") as container:
        tensors = {name: container.read(name) for name in container.manifest}
    tensors[new] = tensors.pop(old) if old else torch.zeros(3)
    write_safetensors(folder / "model.safetensors", tensors)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DIGITS, tmp_path / "source"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "form"),
    [("", "npz"), ("blocks.0.norm1.weight", "pth"), ("blocks.0.norm1.weight", "safetensors")],
)
def test_tensors(old, form, source, tmp_path):
    renamed(source, old, f"a{EVIL}")
    if form != "safetensors":
        from vitconvert.formats.npz import write_file as write_npz
        from vitconvert.formats.torch.writing import write_file as write_torch

        with open_container(source / "model.safetensors") as container:
            tensors = {name: container.read(name) for name in container.manifest}
            write = write_torch if form == "pth" else write_npz
            write(source / f"model.{form}", tensors)
        (source / "model.safetensors").unlink()
    other = tmp_path / "other.pth"
    torch.save({f"b{EVIL}": torch.zeros(2), f"c{EVIL}": torch.zeros(4)}, other)
    for verb in (
        ("inspect", source),
        ("inspect", source, "--json"),
        ("diff", source, DIGITS),
        ("diff", source, other, "-v"),
        ("diff", source, other, "--json"),
        ("file", source, "-o", tmp_path / "out"),
        ("file", source, "-o", tmp_path / "out", "--dry-run", "-v"),
        ("verify", source),
        ("predict", source, SAMPLE),
    ):
        quiet(run_limited(*verb), 0, 1, 3)


def test_wrappers_and_what_lies_beside_the_tensors(tmp_path):
    with open_container(DIGITS / "model.safetensors") as container:
        tensors = {name: container.read(name) for name in container.manifest}
    path = tmp_path / "model.pth"
    torch.save({EVIL: tensors, f"note {EVIL}": EVIL, "epoch": 3}, path)
    quiet(run_limited("inspect", path), 0, 1)
    quiet(run_limited("inspect", path, "--prefer", f"x{EVIL}"), 1, 2)
    torch.save({"model": tensors, EVIL: {EVIL: torch.zeros(2)}}, path)
    quiet(run_limited("inspect", path), 0, 1)
    quiet(run_limited("file", path, "-o", tmp_path / "out"), 0, 1)


@pytest.mark.slow
def test_labels_metadata_and_facts(source, tmp_path):
    own = json.loads((source / "vitconvert.json").read_text())
    own["labels"] = [f"{EVIL}{i}" for i in range(10)]
    (source / "vitconvert.json").write_text(json.dumps(own))
    config = json.loads((source / "config.json").read_text())
    config[f"x{EVIL}"] = EVIL
    config["label_names"] = own["labels"]
    config.setdefault("pretrained_cfg", {})["license"] = EVIL
    (source / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    quiet(run_limited("predict", source, SAMPLE), 0)
    quiet(run_limited("file", source, "-o", out, "--classes", f"1,2,{EVIL}"), 2)
    quiet(run_limited("file", source, "-o", out, "--set", f"x{EVIL}=1"), 2)
    quiet(run_limited("file", source, "-o", out), 0)
    quiet(run_limited("diff", source, DIGITS), 0, 3)
    card(out)
    (source / "vitconvert.json").unlink()
    for field in ("architecture", "model_type", "global_pool", "architectures"):
        changed = config | {field: [EVIL] if field == "architectures" else EVIL}
        (source / "config.json").write_text(json.dumps(changed))
        quiet(run_limited("predict", source, SAMPLE), 0, 1, 5)
        quiet(run_limited("file", source, "-o", out, "--force"), 0, 1, 5)
        card(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [f"m{EVIL}".replace("/", "_"), "m\udcff\udc80"], ids=["evil", "bytes"]
)
def test_places(name, tmp_path):
    """Folders and files of this name are read and written."""
    source, out = tmp_path / name, tmp_path / "out"
    shutil.copytree(DIGITS, source)
    table = tmp_path / f"{name}.toml"
    table.write_text('[dialect]\ntitle = "mine"\nextends = "timm"\n')
    asked = ("file", source, "-o", out, "--table", table, "--set", "num_heads=3", "--to", "timm")
    quiet(run_limited(*asked), 0)
    written(out)
    page = tmp_path / f"{name}.html"
    quiet(run_limited("verify", source, "--report", page), 0)
    text = page.read_text(encoding="utf-8")
    steers_nothing(text)
    assert "<script" not in text
    shutil.copy(SAMPLE, image := tmp_path / f"{name}.png")
    for suffix in ("npz", "safetensors", "jsonl"):
        quiet(run_limited("embed", source, image, "-o", tmp_path / f"{name}.{suffix}"), 0)
    quiet(run_limited("inspect", source), 0)
    quiet(run_limited("diff", source, out), 0)
    quiet(run_limited("push", source, "org/name", "--dry-run"), 0)
    quiet(run_limited("file", tmp_path / f"not {name}", "-o", tmp_path / "x"), 1)


@pytest.mark.slow
def test_an_output_of_an_odd_name(tmp_path):
    out = tmp_path / f"m{EVIL}".replace("/", "_")
    quiet(run_limited("file", DIGITS, "--to", "timm", "-o", tmp_path / out.name), 0)
    written(tmp_path / out.name)
    quiet(run_limited("push", tmp_path / out.name, "org/name", "--dry-run"), 0)
    answer = run_limited("file", DIGITS, "-o", tmp_path / "m\udcff" / "out")
    quiet(answer, 2)
    assert "not valid UTF-8" in answer.err


def written(folder: Path) -> None:
    text = (folder / "vitconvert.json").read_text(encoding="utf-8")
    steers_nothing(text)
    json.dumps(json.loads(text), ensure_ascii=False).encode()
    card(folder)


def card(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    steers_nothing(text)
    outside = "".join(text.split("```")[::2])  # what is not in a block of code
    assert "<script" not in outside
    assert "](http://x" not in outside


IMPOSSIBLE = {
    "long": "x" * 300,
    "NUL": "x\0y",
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_outputs_that_no_system_can_write(what, tmp_path, monkeypatch):
    name = IMPOSSIBLE[what]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    asked = {
        "convert": lambda: convert(DIGITS, output=f"here/{name}"),
        "page": lambda: run_verify(f"here/{name}.html"),
        "push": lambda: run_push(f"here/{name}"),
    }
    for verb, ask in asked.items():
        answer = call_limited(ask)
        word = "upload-failed" if verb == "push" else "usage"
        assert answer.err.startswith(f"error: {word}\n"), (verb, answer)
        assert "Traceback" not in answer.err
    assert not list((tmp_path / "here").iterdir())


def run_verify(page: str) -> None:
    from vitconvert.pages import check_file

    check_file(Path(page), overwrite=False)


def run_push(folder: str) -> None:
    from vitconvert.conversion.push import files_to_push

    files_to_push(Path(folder))


def test_outputs_may_have_names_as_long_as_any(tmp_path):
    for asked in (
        ("file", DIGITS, "-o", "x" * 255, "--no-verify"),
        ("embed", DIGITS, SAMPLE, "-o", f"{'y' * 251}.npz"),
        ("embed", DIGITS, SAMPLE, "-o", "z" * 255),
    ):
        answer = run_limited(*asked, cwd=tmp_path)
        assert answer.code == 0, answer
        assert "Traceback" not in answer.err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_tensors_of_memory_whose_names_are_none(tmp_path):
    for name in ("x\ud800", ""):
        answer = call_limited(write_safetensors, tmp_path / "x.safetensors", {name: torch.zeros(1)})
        assert answer.code in (0, 2), answer
        assert "Traceback" not in answer.err


def test_a_name_of_an_image_is_what_it_is_for_programs(tmp_path):
    image = tmp_path / "\udcff\x1b.png"
    shutil.copy(SAMPLE, image)
    (found,) = embed(load_checkpoint(DIGITS), [image])
    assert found.path == image
    assert os.fsencode(json.loads(json.dumps(found.to_dict()))["path"]) == os.fsencode(image)


def test_an_address_tells_no_secret(source, tmp_path):
    address = "https://user:pass@example.org/vit.safetensors?token=secret"
    located = replace(locate(source), reference=address, url=address)
    convert(located, to="timm", output=tmp_path / "out", verify=False)
    for name in ("vitconvert.json", "README.md", "model.safetensors"):
        text = (tmp_path / "out" / name).read_bytes()
        assert b"pass" not in text.replace(b"passed_over", b"")
        assert b"secret" not in text
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["source"]["url"] == "https://example.org/vit.safetensors"
