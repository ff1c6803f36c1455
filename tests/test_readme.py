"""The README says what is true: its tables are generated, its examples run."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.make_readme import README, filled
from tests.spelling import google_arrays
from vitconvert.cli import main

TEXT = README.read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    np.savez("ViT-B_16.npz", **google_arrays(depth=2, heads=3, width=48, size=48))
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Path("photos").mkdir()
    for photograph in ("photo.jpg", "photos/one.jpg", "photos/two.png"):
        Image.fromarray(pixels).save(photograph)
    torch.set_num_threads(1)
    return tmp_path


def test_generated_parts_are_up_to_date():
    assert filled(TEXT) == TEXT, "run: python tests/make_readme.py"


def test_it_opens_with_the_two_commands():
    first, second = _blocks("sh")[:2]
    assert first == "pip install . && vitconvert demo\n"
    assert second == "pip install -e '.[test]' && pytest\n"
    assert "pip install --quiet -e '.[test]'" in (README.parent / ".ci" / "run").read_text()


def test_python_examples(workplace):
    scope: dict[str, object] = {}
    for block in _blocks("python"):
        exec(compile(block, "README.md", "exec"), scope)
    assert (workplace / "vit-b-16" / "model.safetensors").is_file()


def _commands(*, online: bool) -> list[list[str]]:
    """The command lines of the README, without their comments."""
    lines = [line for block in _blocks("sh")[2:] for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    return [command for command in commands if _needs_network(command) == online]


def _needs_network(command: list[str]) -> bool:
    downloads = command[0] in ("timm", "hf", "jax") and "--no-pretrained" not in command
    return downloads or "mystery.pth" in command


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(_commands(online=False))))
def test_commands(number, workplace, capsys):
    commands = _commands(online=False)
    needed = [
        c for c in commands[:number] if "-o" in c and c[c.index("-o") + 1] in commands[number]
    ]
    for command in [*needed, commands[number]]:
        with pytest.raises(SystemExit) as exit_:
            main(command)
        assert exit_.value.code == 0, capsys.readouterr().err


def test_commands_that_need_a_network_at_least_parse(capsys):
    assert len(_commands(online=True)) == 4
    for command in _commands(online=True):
        with pytest.raises(SystemExit) as exit_:
            main([command[0], "--help"])
        assert exit_.value.code == 0
        options = {word for word in command if word.startswith("--")}
        assert options <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out)), sys.argv
