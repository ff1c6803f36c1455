"""Write what is generated in docs/pages/vit-weights-explained.md, and the notebook beside it.

`python -m tests.vit_weights.make_page` fills the tables between their marks, runs the Python of the
page in order and writes what it prints under each block; the notebook is the page in cells.
"""

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.vit_weights.layouts import STEPS, numerics_table, step_table, structure_table, way_table
from tests.vit_weights.mistakes import SILENT, loud_table, silent_table

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "vit-weights-explained.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
INSTALL = '%pip install -q "vitconvert[references] @ git+URL"  # URL: of the repository'
# Tables from `weights_map/` and of shapes, and those that are measured: seconds.
WRITTEN: Mapping[str, Callable[[], str]] = {
    "the way": way_table,
    **{step: partial(step_table, step) for step in STEPS},
    "structure": structure_table,
    "numerics": numerics_table,
}
MEASURED: Mapping[str, Callable[[], str]] = {
    **{f"mistakes in {group}": partial(silent_table, group) for group in (*SILENT, "CLIP")},
    "errors": loud_table,
}
_MARKED = re.compile(
    r"(<!-- ([^>]+): written by tests/vit_weights -->\n).*?(<!-- end -->)", re.DOTALL
)
_RUN = re.compile(r"```python\n(.*?)```\n(?:\n```output\n(.*?)```\n)?", re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The page with some of its tables as they are made today."""
    missing = tables.keys() - {mark[2] for mark in _MARKED.finditer(text)}
    assert not missing, f"no mark of {missing}"

    def made(mark: re.Match[str]) -> str:
        return f"{mark[1]}{tables[mark[2]]()}\n{mark[3]}" if mark[2] in tables else mark[0]

    return _MARKED.sub(made, text)


def blocks(text: str) -> Sequence[tuple[str, str]]:
    """The page's Python, and what stands under each block as its output."""
    return [(code, output or "") for code, output in _RUN.findall(text)]


def printed(codes: Sequence[str], folder: Path) -> Iterator[str]:
    """What blocks of Python print that are run in order, in a folder."""
    scope: dict[str, object] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        for number, code in enumerate(codes, start=1):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, f"block {number}", "exec"), scope)
            yield out.getvalue()


def with_outputs(text: str) -> str:
    """The page with what its Python prints today."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = iter([*printed([code for code, _ in blocks(text)], Path(folder))])

    def shown(block: re.Match[str]) -> str:
        output = next(outputs)
        under = f"\n```output\n{output}```\n" if output else ""
        return f"```python\n{block[1]}```\n{under}"

    return _RUN.sub(shown, text)


def notebook(text: str) -> str:
    """The page as a notebook: its Python with what it prints, and the rest, in cells."""
    title, _, rest = re.sub(r"<!-- .* -->\n", "", text).partition("\n## ")
    words, *runs = _RUN.split(f"## {rest}")
    cells = [_markdown(title), _code(INSTALL, ""), _markdown(words)]
    for code, output, words in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        cells.append(_code(code, output or ""))
        if words.strip():
            cells.append(_markdown(words))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    made = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text)}


def _code(code: str, output: str) -> dict[str, Any]:
    shown = [{"name": "stdout", "output_type": "stream", "text": output.splitlines(True)}]
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": shown if output else [],
        "source": _lines(code),
    }


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    page = with_tables(PAGE.read_text(encoding="utf-8"), {**WRITTEN, **MEASURED})
    page = with_outputs(page)
    PAGE.write_text(page, encoding="utf-8")
    NOTEBOOK.write_text(notebook(page), encoding="utf-8")
