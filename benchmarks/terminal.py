"""The picture in README: commands in a terminal with what they print, as SVG.

`python -m benchmarks.terminal` runs them on the ViT of `vitconvert demo`, and writes
benchmarks/conversion.svg.
"""

import contextlib
import io
import shlex
import shutil
import tempfile
import textwrap
from html import escape
from pathlib import Path

from vitconvert.cli import main
from vitconvert.demo.demonstration import DIGITS

PICTURE = Path(__file__).parent / "conversion.svg"
COMMANDS = (
    "vitconvert convert digits --to hf -o digits-hf",
    "vitconvert verify digits --set activation=gelu_tanh  # a mistake",
)
_WIDTH, _LINE, _LETTER = 96, 20, 8.43  # letters; pixels of a line, of a letter of 14 pixels
_INDENT = 15  # of what belongs to a title
_TITLES = ("converted", "parity", "output", "assumed", "note")
_GREEN, _RED, _GREY = "#7ee787", "#ff7b72", "#8b949e"


def session() -> list[str]:
    """The commands, each followed by what it prints, in lines that fit."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copytree(DIGITS, "digits")
        for command in COMMANDS:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
                main(shlex.split(command, comments=True)[1:])
            lines.append(f"$ {command}")
            for line in printed.getvalue().splitlines():
                lines += textwrap.wrap(line, _WIDTH, subsequent_indent=" " * _INDENT)
            lines.append("")
    return lines[:-1]


def drawn(lines: list[str]) -> str:
    """Lines of a terminal, as SVG."""
    width, height = round(_WIDTH * _LETTER) + 40, len(lines) * _LINE + 40
    rows = "\n".join(
        f'<text x="20" y="{34 + row * _LINE}">{_coloured(line)}</text>'
        for row, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"\n'
        '  font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="#d7dce2">\n'
        "<title>A conversion and its parity report</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>\n{rows}\n</svg>\n'
    )


def _coloured(line: str) -> str:
    """A command is bold, titles are grey, what is equal is green, and what is not is red."""
    text = escape(line).replace(" ", "\u00a0")  # of several blanks, SVG shows one
    if line.startswith("$ "):
        return f'<tspan fill="#ffffff" font-weight="bold">{text}</tspan>'
    if line.startswith(("not equal", "  likely cause")):
        return f'<tspan fill="{_RED}">{text}</tspan>'
    first = line.split(" ", 1)[0]
    if first in _TITLES:
        text = text.replace(first, f'<tspan fill="{_GREY}">{first}</tspan>', 1)
    return text.replace("bit-equal", f'<tspan fill="{_GREEN}">bit-equal</tspan>')


if __name__ == "__main__":
    PICTURE.write_text(drawn(session()), encoding="utf-8")
