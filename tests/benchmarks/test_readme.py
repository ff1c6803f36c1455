"""Each benchmark has its place in benchmarks/README.md, with a command that can be typed again."""

import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = (BENCHMARKS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["loading", "converting", "inference", "techniques", "scale"])
def test_figures_name_their_machine_and_their_command(name):
    begin = f"<!-- {name}: written by benchmarks/{name}.py -->"
    end = f"<!-- end of {name} -->"
    assert TEXT.count(begin) == TEXT.count(end) == 1
    figures = TEXT.partition(begin)[2].partition(end)[0]
    commands = re.findall(r"^Command: `python -m benchmarks\.(.+)`$", figures, flags=re.MULTILINE)
    assert len(commands) == len(re.findall("^Machine: ", figures, flags=re.MULTILINE)) > 0
    options = (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8")
    for module, *arguments in map(str.split, commands):
        assert module == name
        assert all(f'"{word}"' in options for word in arguments if word.startswith("-"))
