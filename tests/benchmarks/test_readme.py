"""Each benchmark has its place in benchmarks/README.md, with a command that can be typed again."""

import re
from pathlib import Path

import pytest

from benchmarks import terminal

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


def test_the_picture_is_what_its_commands_print(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    lines = terminal.session()
    assert f"$ {terminal.COMMANDS[0]}" == lines[0]
    assert "  likely cause   activation is gelu, not gelu_tanh" in lines
    shipped = terminal.PICTURE.read_text(encoding="utf-8")
    assert _numberless(terminal.drawn(lines)) == _numberless(shipped), (
        "python -m benchmarks.terminal"
    )


def _numberless(text: str) -> str:
    """Text in which rounding, and versions of packages, do not count."""
    return re.sub(r"\d[\d.,]*(e-\d+)?", "0", text)
