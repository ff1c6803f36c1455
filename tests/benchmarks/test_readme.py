"""Each benchmark has its place in benchmarks/README.md, with a command that can be typed again."""

import re
import shlex
from pathlib import Path

import pytest

from vitconvert.cli import main

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = (BENCHMARKS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        *("loading", "headers", "converting", "inference", "runtimes", "anywhere", "techniques"),
        *("scale", "many", "embedding"),
    ],
)
def test_figures_name_their_machine_and_their_command(name):
    begin = f"<!-- {name}: written by benchmarks/{name}.py -->"
    end = f"<!-- end of {name} -->"
    assert TEXT.count(begin) == TEXT.count(end) == 1
    figures = TEXT.partition(begin)[2].partition(end)[0]
    commands = re.findall(r"^Command: `python -m benchmarks\.(.+)`$", figures, flags=re.MULTILINE)
    assert len(commands) == len(re.findall("^Machine: ", figures, flags=re.MULTILINE)) > 0
    files = (BENCHMARKS / file for file in (f"{name}.py", "measuring.py"))
    options = "".join(file.read_text(encoding="utf-8") for file in files)
    for module, *arguments in map(str.split, commands):
        assert module == name
        assert all(f'"{word}"' in options for word in arguments if word.startswith("-"))


def test_the_picture_is_what_its_command_draws(tmp_path, monkeypatch):
    import numpy as np
    from PIL import Image

    (command,) = re.findall(r"^vitconvert (attention .+)$", TEXT, flags=re.MULTILINE)
    monkeypatch.chdir(BENCHMARKS.parent)
    arguments = [
        str(tmp_path / "made.png") if word == "benchmarks/attention.png" else word
        for word in shlex.split(command)
    ]
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, "-q"])
    assert exit_.value.code == 0
    shipped, made = (
        np.asarray(Image.open(file).convert("RGB"), np.int16)
        for file in (BENCHMARKS / "attention.png", tmp_path / "made.png")
    )
    assert shipped.shape == made.shape
    assert np.abs(shipped[20:] - made[20:]).mean() < 0.5  # below the titles, whose font may differ
    assert (BENCHMARKS / "attention.png").stat().st_size < 60_000
