"""Disks that are full, and sources that change: an output is whole or not there."""

import json
import os
import resource
import shutil
from pathlib import Path

import pytest

import vitconvert
from tests.hostile.harness import Answer, call_limited, run_limited
from vitconvert.cli import main
from vitconvert.conversion import convert as conversion
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import IntegrityError

SAMPLE = DIGITS / "samples" / "3.png"
WRITES = {
    "convert": ("file", DIGITS, "--to", "timm", "-o", "out", "--force", "--no-verify"),
    "embed lines": ("embed", DIGITS, *[SAMPLE] * 9, "-o", "out.jsonl", "--force"),
    "verify": ("verify", DIGITS, "--report", "out.html", "--force"),
}


def refused(answer: Answer, *said: str) -> None:
    assert answer.err.startswith("error: error\n"), answer
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert all(part in answer.err for part in said), answer.err


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_leaves_the_earlier_output(what, tmp_path):
    assert run_limited(*WRITES[what], cwd=tmp_path).code == 0
    before = contents(tmp_path)
    assert before

    def run() -> None:
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        main([str(word) for word in WRITES[what]])

    refused(call_limited(run), "File too large")
    assert contents(tmp_path) == before


def test_lines_that_a_disk_has_no_room_for_are_not_cut(tmp_path):
    """A new file of features keeps the lines that fit."""

    def run() -> None:
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        main(["embed", str(DIGITS), *[str(SAMPLE)] * 9, "-o", "out.jsonl"])

    refused(call_limited(run), "File too large")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)
    assert all(json.loads(line)["features"] and line.endswith(b"\n") for line in lines)
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_source_that_changes_meanwhile_is_not_converted(name, tmp_path, monkeypatch):
    source = Path(shutil.copytree(DIGITS, tmp_path / "source"))
    step = conversion.write_card

    def changing(*args: object, **kwargs: object) -> object:
        with (source / name).open("ab") as file:
            file.write(b" ")
        return step(*args, **kwargs)

    monkeypatch.setattr(conversion, "write_card", changing)
    with pytest.raises(IntegrityError) as caught:
        vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    assert str(caught.value) == (
        f"error: hash-mismatch\n  {name} was changed since it was opened.\n"
        f"  file  {source / name}\n"
        "  The tensors may come from two versions of the file, so nothing was written.\n"
        "  hint: run again when no other program writes this file."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
